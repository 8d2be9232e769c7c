//! *Machine files*: reads `/proc` and `/sys` file by file, those of this machine or made-up ones.

use crate::sys::{self, StoredFile};
use std::io::{self, Error, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// The largest part of a file that is read. The largest file read whole is `mountinfo`: a thousand
/// mounts take 200 KiB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The `/proc` and `/sys` of a machine. Every limit is read through them, so a test can replace
/// all of them by a folder.
#[derive(Clone, Debug)]
pub(crate) struct MachineFiles {
    root: PathBuf,
}

impl MachineFiles {
    /// Returns the files of this machine, as this process sees them.
    pub(crate) fn here() -> MachineFiles {
        MachineFiles::under("/")
    }

    /// Returns the files under `root`: `<root>/proc/meminfo` and so on.
    pub(crate) fn under(root: impl Into<PathBuf>) -> MachineFiles {
        MachineFiles { root: root.into() }
    }

    /// Returns the path of `path`, which begins with a slash, on this machine.
    fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(crate) fn is_folder(&self, path: &str) -> Read<bool> {
        match sys::is_folder(&self.place(path)).map_err(io::Error::from) {
            Ok(folder) => Ok(folder),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(Unread::io_error(path, &error)),
        }
    }

    pub(crate) fn is_file(&self, path: &str) -> Read<bool> {
        match sys::is_folder(&self.place(path)).map_err(io::Error::from) {
            Ok(_) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(Unread::io_error(path, &error)),
        }
    }

    /// Lists the names in a folder, in ascending order.
    pub(crate) fn names(&self, path: &str) -> Read<Vec<String>> {
        let names = sys::folder_names(&self.place(path)).map_err(io::Error::from);
        let mut names = names.map_err(|error| Unread::io_error(path, &error))?;
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn link(&self, path: &str) -> Read<String> {
        let target = sys::link_target(&self.place(path)).map_err(io::Error::from);
        target.map_err(|error| Unread::io_error(path, &error))
    }

    /// Returns the properties of a regular file; `None` if the path is something else.
    pub(crate) fn stored(&self, path: &str) -> Read<Option<StoredFile>> {
        let found = sys::stored_file(&self.place(path)).map_err(io::Error::from);
        found.map_err(|error| Unread::io_error(path, &error))
    }

    /// Reads a whole file as text. Invalid bytes become replacement characters, which no parser
    /// accepts.
    pub(crate) fn text(&self, path: &str) -> Read<String> {
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
    pub(crate) fn value<T>(&self, path: &str, parse: impl FnOnce(&str) -> Option<T>) -> Read<T> {
        let text = self.text(path)?;
        parse(&text).ok_or_else(|| Unread::malformed(path, &text))
    }

    /// Reads a file and parses it; returns `None` if the file does not exist.
    pub(crate) fn value_if_exists<T>(
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
    pub(crate) fn lines(&self, path: &str) -> Read<u64> {
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
        count(&self.place(path)).map_err(|error: io::Error| Unread::io_error(path, &error))
    }
}

/// A fact, or the reason why it is unknown.
pub(crate) type Read<T> = Result<T, Unread>;

/// The reason why a fact is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    why: String,
    /// Whether the file does not exist.
    pub(crate) absent: bool,
}

impl Unread {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Unread { why: why.into(), absent: false }
    }

    pub(super) fn io_error(path: &str, error: &Error) -> Self {
        Unread { why: format!("cannot read {path}: {error}"), absent: is_absent(error) }
    }

    /// A file with an unexpected content.
    pub(super) fn malformed(path: &str, text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let begin: String = line.chars().take(40).collect();
        Unread::new(format!("cannot parse {path}, which begins with {begin:?}"))
    }

    pub(crate) fn why(&self) -> &str {
        &self.why
    }
}

/// Returns whether the file does not exist. A path component that is not a folder means the same.
pub(super) fn is_absent(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
