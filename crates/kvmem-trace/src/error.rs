//! *Errors* of traces: each names the file, the line, the value, the limit and a remedy.

use std::io;
use std::path::PathBuf;

use super::TraceFormat;
use crate::escape::shown;

/// A trace cannot be read to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be opened.
    #[error("cannot read {}: {source}", shown(.path))]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Reading stopped in the middle.
    #[error("{}:{line}: cannot read on: {source}", shown(.path))]
    Read {
        /// The file being read.
        path: PathBuf,
        /// The line that could not be read, from 1.
        line: u64,
        /// The error of the system.
        source: io::Error,
    },
    /// The content begins like no format.
    #[error(
        "{} is no trace of a known format, it begins with {head:?}: --format names one of \
         mooncake, kv-cache-tester and azure",
        shown(.path)
    )]
    Unrecognized {
        /// The file.
        path: PathBuf,
        /// The first bytes.
        head: String,
    },
    /// A line is not a request.
    #[error("{}:{line}: malformed line: {reason}; correct or remove it", shown(.path))]
    Malformed {
        /// The file being read.
        path: PathBuf,
        /// The offending line, from 1.
        line: u64,
        /// The fault of the line.
        reason: String,
    },
    /// A number is beyond what any server has.
    #[error("{}:{line}: {field} is {value}, at most {limit} is read; {remedy}", shown(.path))]
    OutOfBounds {
        /// The file being read.
        path: PathBuf,
        /// The offending line, from 1.
        line: u64,
        /// The member or column.
        field: &'static str,
        /// Its value.
        value: String,
        /// The limit.
        limit: u64,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A folder has no sessions.
    #[error(
        "{}: a folder is read as sessions of kv-cache-tester, and none of its files ends in .json \
         or .jsonl; name a file, or a folder that has some",
        shown(.path)
    )]
    NoSessions {
        /// The folder.
        path: PathBuf,
    },
    /// A folder was named, and a format whose traces are files.
    #[error("{}: a trace in the format {format} is a file, and this is a folder; name one of its \
             files", shown(.path))]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The format.
        format: TraceFormat,
    },
    /// Some sessions have hash ids of their own, and others share theirs.
    #[error(
        "{}:{line}: hash_id_scope is {scope:?}, unlike that of the sessions before it: local and \
         global ids cannot be distinguished; read them as two traces",
        shown(.path)
    )]
    MixedScopes {
        /// The file being read.
        path: PathBuf,
        /// The first line of the session.
        line: u64,
        /// The scope.
        scope: String,
    },
    /// The sessions that run at one time do not fit.
    #[error(
        "{}: {sessions} sessions that run at one time take {bytes} bytes, at most {limit} are \
         held; choose fewer with --sessions",
        shown(.path)
    )]
    SessionsTooLarge {
        /// The file being read.
        path: PathBuf,
        /// The sessions that are open.
        sessions: usize,
        /// The bytes of all of them.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The sessions say how long their blocks are.
    #[error(
        "{}: --block-tokens {block_tokens} contradicts the format kv-cache-tester, whose sessions \
         name their block_size; leave it out",
        shown(.path)
    )]
    BlockTokens {
        /// The trace.
        path: PathBuf,
        /// The requested length.
        block_tokens: u64,
    },
}
