//! *Trace*: one JSON object a line, one request an object.
//!
//! This is the format of Mooncake's published production traces:
//!
//! ```json
//! {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, 49]}
//! ```
//!
//! `timestamp` is in milliseconds, the lengths are in tokens, and each of `hash_ids` stands for one
//! block of [`BLOCK_TOKENS`] input tokens *together with everything before it*: equal ids mean
//! equal prefixes up to and including the block. Further members are ignored, and so are blank
//! lines. A trace is streamed: no more than one line of it is in memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::escape::shown;

/// Input tokens of one hash id.
pub const BLOCK_TOKENS: u64 = 512;

/// The longest line that is read, in bytes. A request of this length would name millions of blocks;
/// a longer "line" is a file of another kind.
pub const LINE_BYTES_MAX: u64 = 64 << 20;

/// One request of a trace.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Request {
    /// Arrival, in milliseconds since the trace began.
    pub timestamp: f64,
    /// Tokens of the prompt.
    pub input_length: u64,
    /// Tokens of the answer.
    pub output_length: u64,
    /// The prompt's blocks, first to last.
    pub hash_ids: Vec<u64>,
}

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
    /// A line is not a request.
    #[error("{}:{line}: malformed line: {reason}", shown(.path))]
    Malformed {
        /// The file being read.
        path: PathBuf,
        /// The offending line, from 1.
        line: u64,
        /// The fault of the line.
        reason: String,
    },
}

/// The requests of a trace, read line by line.
///
/// The iterator ends after the first error.
pub struct Trace<R> {
    reader: R,
    path: PathBuf,
    line: u64,
    bytes: u64,
    buffer: Vec<u8>,
    over: bool,
}

impl Trace<Box<dyn BufRead + Send>> {
    /// Opens the trace at `path`, and returns its length in bytes if that is known; `-` is standard
    /// input.
    ///
    /// # Errors
    /// [`TraceError::Open`] if the file cannot be opened or is a folder.
    pub fn open(path: &Path) -> Result<(Self, Option<u64>), TraceError> {
        if path == Path::new("-") {
            let stdin = BufReader::with_capacity(1 << 18, io::stdin());
            return Ok((Trace::new(Box::new(stdin), Path::new("standard input")), None));
        }
        let failed = |source| TraceError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let len_bytes = metadata.is_file().then_some(metadata.len());
        Ok((Trace::new(Box::new(BufReader::with_capacity(1 << 18, file)), path), len_bytes))
    }
}

impl<R: BufRead> Trace<R> {
    /// Reads requests from `reader`; `path` names the trace in errors.
    pub fn new(reader: R, path: &Path) -> Self {
        Trace { reader, path: path.to_owned(), line: 0, bytes: 0, buffer: Vec::new(), over: false }
    }

    /// Returns the number of the last line read, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns the bytes read so far.
    pub fn position(&self) -> u64 {
        self.bytes
    }

    fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        loop {
            self.line += 1;
            self.buffer.clear();
            let read = (&mut self.reader)
                .take(LINE_BYTES_MAX + 1)
                .read_until(b'\n', &mut self.buffer)
                .map_err(|source| TraceError::Read {
                    path: self.path.clone(),
                    line: self.line,
                    source,
                })? as u64;
            self.bytes += read;
            if read == 0 {
                return Ok(None);
            }
            if read > LINE_BYTES_MAX {
                return Err(self.malformed(format!("longer than {LINE_BYTES_MAX} bytes")));
            }
            if self.buffer.trim_ascii().is_empty() {
                continue;
            }
            return serde_json::from_slice(&self.buffer)
                .map(Some)
                .map_err(|error| self.malformed(reason(&error)));
        }
    }

    fn malformed(&self, reason: String) -> TraceError {
        TraceError::Malformed { path: self.path.clone(), line: self.line, reason }
    }
}

impl<R: BufRead> Iterator for Trace<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.next_request().transpose();
        self.over = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Formats an error of serde_json with the column only, since it counts lines within one line.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&place) {
        Some(bare) => format!("{bare} (column {})", error.column()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Result<Request, TraceError>> {
        Trace::new(text.as_bytes(), Path::new("t.jsonl")).collect()
    }

    const GOOD: &str =
        r#"{"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [7, 9]}"#;

    #[test]
    fn reads_requests_and_skips_blank_lines() {
        let requests = read(&format!("{GOOD}\n\n  \r\n{GOOD}"));
        assert_eq!(requests.len(), 2);
        let expected =
            Request { timestamp: 5.0, input_length: 600, output_length: 3, hash_ids: vec![7, 9] };
        for request in requests {
            assert_eq!(request.unwrap(), expected);
        }
    }

    #[test]
    fn further_members_are_ignored() {
        let line = GOOD.replace("{\"timestamp\"", "{\"priority\": \"high\", \"timestamp\"");
        assert!(read(&line)[0].is_ok());
    }

    #[test]
    fn a_malformed_line_is_named_by_its_number_and_ends_the_trace() {
        for bad in [
            "{",
            "[]",
            "{\"timestamp\": 5}",
            &GOOD.replace("600", "-600"),
            &GOOD.replace("[7, 9]", "[7, 9.5]"),
            &GOOD.replace("[7, 9]", "null"),
            "\u{fffd}",
            &format!("{GOOD} {GOOD}"),
        ] {
            let requests = read(&format!("{GOOD}\n\n{bad}\n{GOOD}\n"));
            assert_eq!(requests.len(), 2, "{bad}");
            let error = requests[1].as_ref().unwrap_err().to_string();
            assert!(error.starts_with("t.jsonl:3: malformed line: "), "{error}");
            assert!(!error.contains("at line"), "{error}");
        }
    }

    #[test]
    fn bytes_that_are_not_text_are_malformed() {
        let mut bytes = GOOD.as_bytes().to_vec();
        bytes[2] = 0xff;
        let mut trace = Trace::new(bytes.as_slice(), Path::new("t.jsonl"));
        assert!(matches!(trace.next(), Some(Err(TraceError::Malformed { line: 1, .. }))));
        assert!(trace.next().is_none());
    }

    #[test]
    fn a_line_without_end_is_not_read_into_memory() {
        let endless = BufReader::new(io::repeat(b'x'));
        let mut trace = Trace::new(endless, Path::new("zero"));
        let error = trace.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("zero:1: malformed line: longer than"), "{error}");
    }

    #[test]
    fn an_empty_trace_has_no_requests() {
        assert!(read("").is_empty());
        assert!(read("\n\n").is_empty());
    }

    #[test]
    fn a_folder_and_a_missing_file_cannot_be_opened() {
        for path in [env!("CARGO_MANIFEST_DIR"), "no/such/trace.jsonl"] {
            let error = Trace::open(Path::new(path)).err().unwrap();
            assert!(error.to_string().starts_with(&format!("cannot read {path}: ")), "{error}");
        }
    }
}
