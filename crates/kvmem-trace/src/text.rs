//! *Text*: a trace as a stream of lines, no more than one of which is in memory.

use std::io::{BufRead, Read};
use std::path::PathBuf;

use super::{TraceError, TraceStream};

/// The longest line that is read, in bytes. A request of this length would name millions of blocks;
/// a longer "line" is a file of another kind.
pub const LINE_BYTES_MAX: u64 = 64 << 20;

/// The latest time that is read, in seconds: some 31,000 years.
pub const SECONDS_MAX: u64 = 1_000_000_000_000;

/// The most tokens of a prompt or an answer, hundreds of times what a model accepts.
pub const TOKENS_MAX: u64 = 1 << 26;

/// A trace that is read line by line.
pub(super) struct TraceLines {
    reader: TraceStream,
    path: PathBuf,
    line: u64,
    bytes: u64,
    buffer: Vec<u8>,
}

impl TraceLines {
    /// Makes the lines of `reader`; `path` names the trace in errors.
    pub(super) fn new(reader: TraceStream, path: PathBuf) -> Self {
        TraceLines { reader, path, line: 0, bytes: 0, buffer: Vec::new() }
    }

    /// Returns the bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.bytes
    }

    /// Reads the next line that is not blank; false at the end.
    pub(super) fn advance(&mut self) -> Result<bool, TraceError> {
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
                return Ok(false);
            }
            if read > LINE_BYTES_MAX {
                return Err(self.malformed(format!("longer than {LINE_BYTES_MAX} bytes")));
            }
            if !self.buffer.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    /// Returns the line that was read last, without white space at its end.
    pub(super) fn text(&self) -> &[u8] {
        self.buffer.trim_ascii_end()
    }

    /// Makes an error for this line.
    pub(super) fn malformed(&self, reason: String) -> TraceError {
        TraceError::Malformed { path: self.path.clone(), line: self.line, reason }
    }

    /// Checks that a number of tokens of this line is possible.
    pub(super) fn check_tokens(&self, field: &'static str, value: u64) -> Result<u64, TraceError> {
        check_tokens(value).map_err(|(limit, remedy)| TraceError::OutOfBounds {
            path: self.path.clone(),
            line: self.line,
            field,
            value: value.to_string(),
            limit,
            remedy,
        })
    }

    /// Checks that a time of this line, in seconds, is possible.
    pub(super) fn check_seconds(&self, field: &'static str, value: f64) -> Result<(), TraceError> {
        check_seconds(value).map_err(|(limit, remedy)| TraceError::OutOfBounds {
            path: self.path.clone(),
            line: self.line,
            field,
            value: value.to_string(),
            limit,
            remedy,
        })
    }
}

/// Checks a number of tokens; the error is the limit and the remedy.
pub(super) fn check_tokens(value: u64) -> Result<u64, (u64, &'static str)> {
    match value {
        0..=TOKENS_MAX => Ok(value),
        _ => Err((TOKENS_MAX, "write the number of tokens, or remove the request")),
    }
}

/// Checks a time in seconds; the error is the limit and the remedy.
pub(super) fn check_seconds(value: f64) -> Result<(), (u64, &'static str)> {
    match value.is_finite() && value.abs() <= SECONDS_MAX as f64 {
        true => Ok(()),
        false => Err((SECONDS_MAX, "count the time from the beginning of the trace")),
    }
}
