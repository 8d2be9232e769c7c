//! *Mooncake*: one JSON object a line, one request an object.
//!
//! This is the format of Mooncake's published production traces:
//!
//! ```json
//! {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, 49]}
//! ```
//!
//! `timestamp` is in milliseconds, the lengths are in tokens, and each of `hash_ids` stands for one
//! block of 512 input tokens *together with everything before it*: equal ids mean equal prefixes up
//! to and including the block. Further members are ignored, and so are blank lines.

use serde::Deserialize;

use super::text::TraceLines;
use super::{Request, TraceError};

/// Input tokens of one hash id of Mooncake's published traces.
pub const BLOCK_TOKENS: u64 = 512;

/// A line, as it is written.
#[derive(Deserialize)]
struct MooncakeLine {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// The requests of a trace of lines.
pub(super) struct MooncakeRequests {
    pub(super) lines: TraceLines,
    pub(super) block_tokens: u64,
}

impl MooncakeRequests {
    /// Reads the next request; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Request>, TraceError> {
        let lines = &mut self.lines;
        if !lines.advance()? {
            return Ok(None);
        }
        let line: MooncakeLine = serde_json::from_slice(lines.text())
            .map_err(|error| lines.malformed(reason(&error)))?;
        lines.check_seconds("timestamp", line.timestamp / 1000.0)?;
        Ok(Some(Request {
            timestamp: line.timestamp,
            input_length: lines.check_tokens("input_length", line.input_length)?,
            output_length: lines.check_tokens("output_length", line.output_length)?,
            block_tokens: self.block_tokens,
            hash_ids: line.hash_ids,
        }))
    }
}

/// Formats an error of serde_json with the column only, since it counts lines within one line.
pub(super) fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&place) {
        Some(bare) => format!("{bare} (column {})", error.column()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, BufReader, Cursor};
    use std::path::Path;

    use super::*;
    use crate::{Trace, TraceFormat, TraceOptions};

    const OPTIONS: TraceOptions =
        TraceOptions { format: Some(TraceFormat::Mooncake), block_tokens: None, sessions: 1 };

    fn trace(text: &[u8]) -> Trace {
        Trace::new(Box::new(Cursor::new(text.to_vec())), Path::new("t.jsonl"), &OPTIONS).unwrap()
    }

    fn read(text: &str) -> Vec<Result<Request, TraceError>> {
        trace(text.as_bytes()).collect()
    }

    const GOOD: &str =
        r#"{"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [7, 9]}"#;

    #[test]
    fn reads_requests_and_skips_blank_lines() {
        let requests = read(&format!("{GOOD}\n\n  \r\n{GOOD}"));
        assert_eq!(requests.len(), 2);
        let expected = Request {
            timestamp: 5.0,
            input_length: 600,
            output_length: 3,
            block_tokens: BLOCK_TOKENS,
            hash_ids: vec![7, 9],
        };
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
        let mut trace = trace(&bytes);
        assert!(matches!(trace.next(), Some(Err(TraceError::Malformed { line: 1, .. }))));
        assert!(trace.next().is_none());
    }

    #[test]
    fn a_line_without_end_is_not_read_into_memory() {
        let endless = Box::new(BufReader::new(io::repeat(b'x')));
        let mut trace = Trace::new(endless, Path::new("zero"), &OPTIONS).unwrap();
        let error = trace.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("zero:1: malformed line: longer than"), "{error}");
    }

    #[test]
    fn an_empty_trace_has_no_requests() {
        assert!(read("").is_empty());
        assert!(read("\n\n").is_empty());
    }

    #[test]
    fn numbers_beyond_all_servers_are_errors() {
        for (good, bad, expected) in [
            ("600", "67108865", "input_length is 67108865, at most 67108864 is read"),
            (": 3,", ": 18446744073709551615,", "output_length is 18446744073709551615"),
            (": 5,", ": 1e16,", "timestamp is 10000000000000, at most 1000000000000 is read"),
        ] {
            let error = read(&GOOD.replace(good, bad)).remove(0).unwrap_err().to_string();
            assert!(error.starts_with("t.jsonl:1: ") && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn another_length_of_blocks_can_be_given() {
        let options = TraceOptions { block_tokens: Some(16), ..OPTIONS };
        let text = Box::new(Cursor::new(GOOD));
        let mut trace = Trace::new(text, Path::new("t.jsonl"), &options).unwrap();
        assert_eq!(trace.block_tokens().unwrap(), 16);
        assert_eq!(trace.next().unwrap().unwrap().block_tokens, 16);
    }

    #[test]
    fn a_missing_file_cannot_be_opened() {
        let error = Trace::open(Path::new("no/such/trace.jsonl"), &OPTIONS).unwrap_err();
        assert!(error.to_string().starts_with("cannot read no/such/trace.jsonl: "), "{error}");
    }
}
