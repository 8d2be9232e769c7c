//! *Machine*: reads the facts file by file. A fact that cannot be read carries the reason.

use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use super::check::Check;
use super::checks;
use super::facts::Facts;
use super::report::Report;
use super::requirements::Requirements;
use super::system::System;
use crate::sys;
use crate::trace::span;

/// The largest part of a file that is read. The largest file read whole is `mountinfo`: a thousand
/// mounts take 200 KiB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A machine: a folder with its `/proc` and `/sys`, and the kernel's answers.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    system: System,
}

impl Machine {
    /// Returns the machine of this process, as this process sees it.
    #[must_use]
    pub fn here() -> Self {
        Machine::new("/", System::here())
    }

    /// Returns a machine whose files are under `root`: `<root>/proc/meminfo` and so on. For tests,
    /// and for files copied from another machine.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, system: System) -> Self {
        Machine { root: root.into(), system }
    }

    /// Compares every limit of the machine with the requirements. Maps nothing, changes nothing,
    /// and needs no privilege. Takes a few milliseconds, in proportion to the mappings of the
    /// process and the depth of its cgroup.
    ///
    /// A limit that cannot be read gets [`Verdict::Unknown`](super::Verdict::Unknown), so this
    /// never fails.
    #[must_use]
    pub fn preflight(&self, requirements: &Requirements) -> Report {
        span!(INFO, "preflight");
        let facts = Facts::read(self, requirements);
        let mut checks: Vec<Check> = Vec::new();
        checks::all(&facts, requirements, &mut checks);
        Report::new(requirements.clone(), checks)
    }

    pub(super) fn system(&self) -> &System {
        &self.system
    }

    /// Returns the path of `path`, which begins with a slash, on this machine.
    fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(super) fn is_folder(&self, path: &str) -> Read<bool> {
        match sys::is_folder(&self.place(path)).map_err(io::Error::from) {
            Ok(folder) => Ok(folder),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(Unread::io_error(path, &error)),
        }
    }

    pub(super) fn is_file(&self, path: &str) -> Read<bool> {
        match sys::is_folder(&self.place(path)).map_err(io::Error::from) {
            Ok(_) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(Unread::io_error(path, &error)),
        }
    }

    /// Reads a whole file as text. Invalid bytes become replacement characters, which no parser
    /// accepts.
    pub(super) fn text(&self, path: &str) -> Read<String> {
        let read = |place: &Path| {
            let mut bytes = Vec::new();
            sys::open_text(place)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read(&self.place(path)) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => Err(Unread::io_error(path, &error)),
        }
    }

    /// Reads a file and parses it.
    pub(super) fn value<T>(&self, path: &str, parse: impl FnOnce(&str) -> Option<T>) -> Read<T> {
        let text = self.text(path)?;
        parse(&text).ok_or_else(|| Unread::malformed(path, &text))
    }

    /// Reads a file and parses it; returns `None` if the file does not exist.
    pub(super) fn value_if_exists<T>(
        &self,
        path: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Read<Option<T>> {
        match self.value(path, parse) {
            Ok(value) => Ok(Some(value)),
            Err(unread) if unread.absent => Ok(None),
            Err(unread) => Err(unread),
        }
    }

    /// Counts the lines of a file, which may be long.
    pub(super) fn lines(&self, path: &str) -> Read<u64> {
        let count = |place: &Path| {
            let mut file = sys::open_text(place)?;
            let mut buffer = vec![0; 64 << 10];
            let mut lines = 0;
            loop {
                match file.read(&mut buffer) {
                    Ok(0) => return Ok(lines),
                    Ok(len) => {
                        lines += buffer[..len].iter().filter(|&&byte| byte == b'\n').count() as u64
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        };
        count(&self.place(path)).map_err(|error: std::io::Error| Unread::io_error(path, &error))
    }
}

/// Returns whether the file does not exist. A path component that is not a folder means the same.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// A fact, or the reason why it is unknown.
pub(super) type Read<T> = Result<T, Unread>;

/// The reason why a fact is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unread {
    why: String,
    /// Whether the file does not exist.
    pub(super) absent: bool,
}

impl Unread {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Unread { why: why.into(), absent: false }
    }

    fn io_error(path: &str, error: &std::io::Error) -> Self {
        Unread { why: format!("cannot read {path}: {error}"), absent: is_absent(error) }
    }

    /// A file with an unexpected content.
    pub(super) fn malformed(path: &str, text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let begin: String = line.chars().take(40).collect();
        Unread::new(format!("cannot parse {path}, which begins with {begin:?}"))
    }

    pub(super) fn why(&self) -> &str {
        &self.why
    }
}
