//! *Unread*: why a fact about the machine is unknown.

use std::io::{Error, ErrorKind};

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
