//! *Trace*: the requests that a server has received, and the blocks of their prompts.
//!
//! Each format has a reader:
//!
//! | format | contents | blocks |
//! |---|---|---|
//! | [`mooncake`] | one JSON object a line, one request an object | ids of 512 tokens, for the whole trace |
//! | [`session`] | one JSON object a session, with its requests | ids of 64 tokens, of that session alone |
//! | [`azure`] | a CSV file, one request a line | none: each request has blocks of its own |
//!
//! A [`Trace`] yields [`Request`]s whose ids are comparable throughout. The format follows from the
//! first bytes, unless the caller names it. A trace is streamed: no more is in memory than a line,
//! or the sessions that run at one time. [`reuse`] computes the hit rates of a trace for all sizes
//! of a pool. [`escape`] makes text from files safe to print.
//!
//! ```
//! use std::io::Cursor;
//! use std::path::Path;
//!
//! use kvmem_trace::{Trace, TraceOptions};
//!
//! let csv = "TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-01 00:00:00.5,100,7\n";
//! let options = TraceOptions::default();
//! let trace = Trace::new(Box::new(Cursor::new(csv)), Path::new("a.csv"), &options)?;
//! let requests: Result<Vec<_>, _> = trace.collect();
//! assert_eq!(requests?[0].hash_ids.len(), 2);
//! # Ok::<(), kvmem_trace::TraceError>(())
//! ```

pub mod azure;
mod error;
pub mod escape;
pub mod mooncake;
mod recognize;
pub mod reuse;
pub mod session;
mod sessions;
mod text;

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use self::error::TraceError;
pub use self::sessions::{SESSION_BYTES_MAX, SESSIONS_BYTES_MAX};
pub use self::text::{LINE_BYTES_MAX, SECONDS_MAX, TOKENS_MAX};

use self::azure::AzureRequests;
use self::mooncake::MooncakeRequests;
use self::sessions::Sessions;
use self::text::TraceLines;

/// The bytes of a trace.
pub type TraceStream = Box<dyn BufRead + Send>;

/// The format of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum TraceFormat {
    /// One JSON object a line with timestamp, input_length, output_length and hash_ids
    Mooncake,
    /// Sessions of kv-cache-tester: a JSON object each, in a file or a folder of files
    KvCacheTester,
    /// A CSV file with TIMESTAMP, ContextTokens and GeneratedTokens, without hashes
    Azure,
}

impl fmt::Display for TraceFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TraceFormat::Mooncake => "mooncake",
            TraceFormat::KvCacheTester => "kv-cache-tester",
            TraceFormat::Azure => "azure",
        })
    }
}

/// How a trace is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceOptions {
    /// The format, if it is not to be recognized.
    pub format: Option<TraceFormat>,
    /// Tokens of a block, if they are not the format's own.
    pub block_tokens: Option<u64>,
    /// Sessions that run at one time.
    pub sessions: u32,
}

/// Sessions that run at one time, by default.
pub const SESSIONS: u32 = 50;

impl Default for TraceOptions {
    fn default() -> Self {
        TraceOptions { format: None, block_tokens: None, sessions: SESSIONS }
    }
}

/// One request of a trace.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// Arrival, in milliseconds since the trace began.
    pub timestamp: f64,
    /// Tokens of the prompt.
    pub input_length: u64,
    /// Tokens of the answer.
    pub output_length: u64,
    /// Tokens of a block.
    pub block_tokens: u64,
    /// The prompt's blocks, first to last.
    pub hash_ids: Vec<u64>,
}

/// The requests of a trace, in the order of their arrival.
///
/// The iterator ends after the first error.
pub struct Trace {
    requests: Requests,
    format: TraceFormat,
    /// The request that [`peek`](Self::peek) has read.
    peeked: Option<Option<Request>>,
    over: bool,
}

/// The requests of each format.
enum Requests {
    Mooncake(MooncakeRequests),
    Sessions(Sessions),
    Azure(AzureRequests),
}

/// A trace that is open, and of which nothing is read yet.
pub struct TraceFile {
    path: PathBuf,
    contents: TraceContents,
    len_bytes: Option<u64>,
}

enum TraceContents {
    Stream(TraceStream),
    Folder(Sessions),
}

impl TraceFile {
    /// Opens the trace at `path`; `-` is standard input, and a folder is one of sessions.
    ///
    /// # Errors
    /// [`TraceError`] if the file cannot be opened, or the folder has no sessions.
    pub fn open(path: &Path, sessions: u32) -> Result<Self, TraceError> {
        if path == Path::new("-") {
            let stdin = Box::new(BufReader::with_capacity(1 << 18, io::stdin()));
            let path = PathBuf::from("standard input");
            let contents = TraceContents::Stream(stdin);
            return Ok(TraceFile { path, contents, len_bytes: None });
        }
        let failed = |source| TraceError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let (contents, len_bytes) = if metadata.is_dir() {
            let (folder, len_bytes) = Sessions::of_folder(path, sessions)?;
            (TraceContents::Folder(folder), Some(len_bytes))
        } else {
            let file = Box::new(BufReader::with_capacity(1 << 18, file));
            (TraceContents::Stream(file), metadata.is_file().then_some(metadata.len()))
        };
        Ok(TraceFile { path: path.to_owned(), contents, len_bytes })
    }

    /// Returns the length in bytes, if that is known.
    pub fn len_bytes(&self) -> Option<u64> {
        self.len_bytes
    }

    /// Reads the first bytes, and returns the requests.
    ///
    /// # Errors
    /// [`TraceError`] if the format is unknown, or not one of a folder.
    pub fn requests(self, options: &TraceOptions) -> Result<Trace, TraceError> {
        let TraceFile { path, contents, .. } = self;
        let folder = match contents {
            TraceContents::Stream(stream) => return Trace::new(stream, &path, options),
            TraceContents::Folder(folder) => folder,
        };
        let format = options.format.unwrap_or(TraceFormat::KvCacheTester);
        if format != TraceFormat::KvCacheTester {
            return Err(TraceError::Folder { path, format });
        }
        check_block_tokens(&path, options)?;
        Ok(Trace::of(Requests::Sessions(folder), format))
    }
}

impl Trace {
    /// Opens the trace at `path`, as [`TraceFile`] does, and reads its first bytes.
    ///
    /// # Errors
    /// [`TraceError`] if the trace cannot be opened or its format is unknown.
    pub fn open(path: &Path, options: &TraceOptions) -> Result<Self, TraceError> {
        TraceFile::open(path, options.sessions)?.requests(options)
    }

    /// Reads requests from `stream`; `path` names the trace in errors. Without a format the
    /// first bytes are read.
    ///
    /// # Errors
    /// [`TraceError`] if the format is unknown, or the first bytes cannot be read.
    pub fn new(
        stream: TraceStream,
        path: &Path,
        options: &TraceOptions,
    ) -> Result<Self, TraceError> {
        let (stream, found) = recognize::recognize(stream, path, options.format)?;
        let lines = |stream| TraceLines::new(stream, path.to_owned());
        let requests = match found {
            TraceFormat::Mooncake => Requests::Mooncake(MooncakeRequests {
                lines: lines(stream),
                block_tokens: options.block_tokens.unwrap_or(mooncake::BLOCK_TOKENS),
            }),
            TraceFormat::Azure => Requests::Azure(AzureRequests::new(
                lines(stream),
                options.block_tokens.unwrap_or(azure::BLOCK_TOKENS),
            )),
            TraceFormat::KvCacheTester => {
                check_block_tokens(path, options)?;
                Requests::Sessions(Sessions::of_stream(stream, path, options.sessions))
            }
        };
        Ok(Trace::of(requests, found))
    }

    fn of(requests: Requests, format: TraceFormat) -> Self {
        Trace { requests, format, peeked: None, over: false }
    }

    /// Returns the format.
    pub fn format(&self) -> TraceFormat {
        self.format
    }

    /// Returns the bytes read so far.
    pub fn position(&self) -> u64 {
        match &self.requests {
            Requests::Mooncake(requests) => requests.lines.position(),
            Requests::Sessions(sessions) => sessions.position(),
            Requests::Azure(requests) => requests.lines.position(),
        }
    }

    /// Returns the tokens of a block of the first request, or of the format if there is none. The
    /// first session is read for it, nothing of other formats.
    ///
    /// # Errors
    /// [`TraceError`] if the first session cannot be read.
    pub fn block_tokens(&mut self) -> Result<u64, TraceError> {
        match &self.requests {
            Requests::Mooncake(requests) => return Ok(requests.block_tokens),
            Requests::Azure(requests) => return Ok(requests.block_tokens),
            Requests::Sessions(_) => {}
        }
        let first = self.peek()?;
        Ok(first.map_or(session::BLOCK_TOKENS, |request| request.block_tokens))
    }

    /// Returns the next request, which [`next`](Iterator::next) returns again.
    fn peek(&mut self) -> Result<Option<&Request>, TraceError> {
        if self.peeked.is_none() && !self.over {
            let read = self.read();
            self.over = read.is_err();
            self.peeked = Some(read?);
        }
        Ok(self.peeked.as_ref().and_then(Option::as_ref))
    }

    fn read(&mut self) -> Result<Option<Request>, TraceError> {
        match &mut self.requests {
            Requests::Mooncake(requests) => requests.next(),
            Requests::Sessions(sessions) => sessions.next(),
            Requests::Azure(requests) => requests.next(),
        }
    }
}

impl Iterator for Trace {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = match self.peeked.take() {
            Some(request) => request.map(Ok),
            None => self.read().transpose(),
        };
        self.over = !matches!(next, Some(Ok(_)));
        next
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("format", &self.format)
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}

/// Sessions name the length of their blocks themselves.
fn check_block_tokens(path: &Path, options: &TraceOptions) -> Result<(), TraceError> {
    match options.block_tokens {
        None => Ok(()),
        Some(block_tokens) => Err(TraceError::BlockTokens { path: path.to_owned(), block_tokens }),
    }
}

/// Returns the files whose contents a trace at `path` is made of.
///
/// # Errors
/// [`TraceError`] if the folder cannot be read.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, TraceError> {
    match path.is_dir() {
        true => sessions::files(path).map(|(files, _)| files),
        false => Ok(vec![path.to_owned()]),
    }
}
