//! *Machine*: where the facts are read, file by file. What cannot be read says why.

use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use super::check::Check;
use super::checks;
use super::facts::Facts;
use super::report::Report;
use super::system::System;
use super::wish::Requirements;
use crate::sys;
use crate::trace::span;

/// The most that is read of one file. The largest read whole is `mountinfo`; a thousand mounts are
/// 200 KiB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A machine: a folder that holds its `/proc` and `/sys`, and what the kernel answers.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    system: System,
}

impl Machine {
    /// The machine this process runs on, as this process sees it.
    pub fn here() -> Self {
        Machine::new("/", System::here())
    }

    /// A machine whose files stand under `root`: `<root>/proc/meminfo` and so on. For tests, and
    /// for what was copied from another machine.
    pub fn new(root: impl Into<PathBuf>, system: System) -> Self {
        Machine { root: root.into(), system }
    }

    /// Holds every limit of the machine against `requirements`. Maps nothing, changes nothing, needs no
    /// privilege; takes a few milliseconds, in proportion to the mappings of the process and
    /// the depth of its cgroup.
    ///
    /// A limit that cannot be read is [`Verdict::Unknown`](super::Verdict::Unknown), so there is no
    /// error.
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

    /// Where `path`, which begins with a slash, stands on this machine.
    fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(super) fn is_folder(&self, path: &str) -> Read<bool> {
        match sys::is_folder(&self.place(path)).map_err(io::Error::from) {
            Ok(folder) => Ok(folder),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(Unread::refused(path, &error)),
        }
    }

    pub(super) fn is_file(&self, path: &str) -> Read<bool> {
        match sys::is_folder(&self.place(path)).map_err(io::Error::from) {
            Ok(_) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(Unread::refused(path, &error)),
        }
    }

    /// A whole file as text. Bytes that are no text become replacement characters, which no parser
    /// takes.
    pub(super) fn text(&self, path: &str) -> Read<String> {
        let read = |place: &Path| {
            let mut bytes = Vec::new();
            sys::open_text(place)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read(&self.place(path)) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => Err(Unread::refused(path, &error)),
        }
    }

    /// What `parse` makes of a file.
    pub(super) fn value<T>(&self, path: &str, parse: impl FnOnce(&str) -> Option<T>) -> Read<T> {
        let text = self.text(path)?;
        parse(&text).ok_or_else(|| Unread::odd(path, &text))
    }

    /// As [`value`](Self::value), but a file that is not there is `None`.
    pub(super) fn value_if_there<T>(
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

    /// Lines of a file that may be long.
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
        count(&self.place(path)).map_err(|error: std::io::Error| Unread::refused(path, &error))
    }
}

/// Whether there is no such file. A component that is no folder means the same.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// A fact, or why it is not known.
pub(super) type Read<T> = Result<T, Unread>;

/// Why a fact is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unread {
    why: String,
    /// There is no such file.
    pub(super) absent: bool,
}

impl Unread {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Unread { why: why.into(), absent: false }
    }

    fn refused(path: &str, error: &std::io::Error) -> Self {
        Unread { why: format!("cannot read {path}: {error}"), absent: is_absent(error) }
    }

    /// A file that says what nobody expects.
    pub(super) fn odd(path: &str, text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let begin: String = line.chars().take(40).collect();
        Unread::new(format!("cannot make sense of {path}, which begins with {begin:?}"))
    }

    pub(super) fn why(&self) -> &str {
        &self.why
    }
}
