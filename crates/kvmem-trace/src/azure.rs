//! *Azure*: the CSV files of AzurePublicDataset, one request a line.
//!
//! ```csv
//! TIMESTAMP,ContextTokens,GeneratedTokens
//! 2026-01-01 10:00:00.1250000,4808,10
//! ```
//!
//! The header names the columns, in any order; further columns are ignored. A time has a fraction
//! of any length, and `Z` or an offset such as `+00:00`; a plain number counts seconds. The files
//! have no hashes: every request gets blocks of its own, `ContextTokens` over 64 tokens, rounded
//! up. They have sizes, and nothing about reuse.

use super::text::TraceLines;
use super::{Request, TraceError};

/// Tokens of a block by default.
pub const BLOCK_TOKENS: u64 = 64;

const TIMESTAMP: &str = "TIMESTAMP";
const CONTEXT: &str = "ContextTokens";
const GENERATED: &str = "GeneratedTokens";

/// The requests of a CSV file.
pub(super) struct AzureRequests {
    pub(super) lines: TraceLines,
    pub(super) block_tokens: u64,
    /// The columns of time, prompt and answer.
    columns: Option<[usize; 3]>,
    /// The time of the first request, in seconds.
    begin_s: Option<f64>,
    next_block: u64,
}

impl AzureRequests {
    pub(super) fn new(lines: TraceLines, block_tokens: u64) -> Self {
        AzureRequests { lines, block_tokens, columns: None, begin_s: None, next_block: 0 }
    }

    /// Reads the next request; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Request>, TraceError> {
        let columns = match self.columns {
            Some(columns) => columns,
            None if !self.lines.advance()? => return Ok(None),
            None => *self.columns.insert(header(&self.lines)?),
        };
        if !self.lines.advance()? {
            return Ok(None);
        }
        let lines = &self.lines;
        let [time, context, generated] = [0, 1, 2].map(|which| column(lines, columns[which]));
        let (time, context, generated) = (time?, context?, generated?);
        let seconds = seconds(time).ok_or_else(|| {
            lines.malformed(format!(
                "{TIMESTAMP} is {}, and a time such as 2026-01-31 23:59:59.5 is expected",
                quoted(time)
            ))
        })?;
        lines.check_seconds(TIMESTAMP, seconds)?;
        let begin_s = *self.begin_s.get_or_insert(seconds);
        let input_length = tokens(lines, CONTEXT, context)?;
        let blocks = input_length.div_ceil(self.block_tokens);
        let hash_ids = (self.next_block..self.next_block + blocks).collect();
        self.next_block += blocks;
        Ok(Some(Request {
            timestamp: (seconds - begin_s) * 1000.0,
            input_length,
            output_length: tokens(lines, GENERATED, generated)?,
            block_tokens: self.block_tokens,
            hash_ids,
        }))
    }
}

/// Returns the fields of a line, without quotes and white space around them.
fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b',').map(|field| {
        let field = field.trim_ascii();
        let inner = field.strip_prefix(b"\"").and_then(|field| field.strip_suffix(b"\""));
        inner.unwrap_or(field)
    })
}

/// Finds the columns in the header.
fn header(lines: &TraceLines) -> Result<[usize; 3], TraceError> {
    let find = |name: &str| {
        fields(lines.text())
            .position(|field| field == name.as_bytes())
            .ok_or_else(|| lines.malformed(format!("the header has no column {name}")))
    };
    Ok([find(TIMESTAMP)?, find(CONTEXT)?, find(GENERATED)?])
}

fn column(lines: &TraceLines, number: usize) -> Result<&[u8], TraceError> {
    fields(lines.text()).nth(number).ok_or_else(|| {
        let found = fields(lines.text()).count();
        lines.malformed(format!("{found} columns, and the header has at least {}", number + 1))
    })
}

/// Parses a number of tokens.
fn tokens(lines: &TraceLines, field: &'static str, text: &[u8]) -> Result<u64, TraceError> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok());
    let number = number.ok_or_else(|| {
        lines.malformed(format!("{field} is {}, and a whole number is expected", quoted(text)))
    })?;
    lines.check_tokens(field, number)
}

/// Formats the beginning of a field.
fn quoted(text: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&text[..text.len().min(40)]))
}

/// Parses a time; the result is in seconds since 1970, or since whatever a plain number counts
/// from.
fn seconds(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(seconds) = text.parse::<f64>() {
        return seconds.is_finite().then_some(seconds);
    }
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.split('-').map(|part| digits(part, 4));
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    if date.next().is_some() || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (time, offset_s) = match time.find(['Z', 'z', '+', '-']) {
        Some(at) => (&time[..at], offset(&time[at..])?),
        None => (time, 0.0),
    };
    let (whole, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut clock = whole.split(':').map(|part| digits(part, 2));
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if clock.next().is_some() || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let fraction: f64 = format!("0.{fraction}").parse().ok()?;
    let clock = hour * 3600 + minute * 60 + second;
    Some((days(year, month, day) * 86_400 + clock) as f64 + fraction - offset_s)
}

/// Parses `Z` or `+hh:mm`; the result is in seconds.
fn offset(text: &str) -> Option<f64> {
    if text.eq_ignore_ascii_case("z") {
        return Some(0.0);
    }
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    let (hours, minutes) = text[1..].split_once(':').unwrap_or((&text[1..], "0"));
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    (hours < 24 && minutes < 60).then(|| sign * (hours * 3600 + minutes * 60) as f64)
}

/// Parses at most `most` digits.
fn digits(text: &str, most: usize) -> Option<i64> {
    let fits = (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    fits.then(|| text.parse().ok())?
}

/// Counts the days from 1970-01-01 in the Gregorian calendar; years begin in March, so a leap day
/// is their last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year
        - 719_468
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::path::Path;

    use super::*;
    use crate::{Trace, TraceFormat, TraceOptions};

    fn read(text: &str) -> Vec<Result<Request, TraceError>> {
        let options = TraceOptions { format: Some(TraceFormat::Azure), ..Default::default() };
        let text = Box::new(Cursor::new(text.as_bytes().to_vec()));
        Trace::new(text, Path::new("a.csv"), &options).unwrap().collect()
    }

    #[test]
    fn every_request_has_blocks_of_its_own() {
        let text = "NumImages,TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                    0,2026-02-28 23:59:59.7500000,100,7\r\n\
                    1,\"2026-03-01T00:00:01.25+00:00\",0,9\r\n\r\n\
                    2, 2026-03-01 00:00:02 ,64,0";
        let requests: Vec<Request> = read(text).into_iter().map(Result::unwrap).collect();
        let times: Vec<f64> = requests.iter().map(|request| request.timestamp).collect();
        assert_eq!(times, [0.0, 1500.0, 2250.0]);
        let blocks: Vec<&[u64]> =
            requests.iter().map(|request| request.hash_ids.as_slice()).collect();
        assert_eq!(blocks, [&[0, 1][..], &[], &[2]]);
        assert_eq!((requests[0].input_length, requests[0].output_length), (100, 7));
        assert_eq!(requests[0].block_tokens, 64);
        assert!(read("").is_empty());
        assert!(read("TIMESTAMP,ContextTokens,GeneratedTokens\n").is_empty());
    }

    #[test]
    fn faults_name_line_and_value() {
        let with = |line: &str| format!("TIMESTAMP,ContextTokens,GeneratedTokens\n\n{line}\n1,2,3");
        for (text, expected) in [
            ("a,b,c\n".to_owned(), "a.csv:1: malformed line: the header has no column TIMESTAMP"),
            (with("2026-01-01 00:00:00,5"), "a.csv:3: malformed line: 2 columns"),
            (with("yesterday,5,5"), "TIMESTAMP is \"yesterday\""),
            (with("2026-13-01 00:00:00,5,5"), "TIMESTAMP is \"2026-13-01"),
            (with("2026-01-01 24:00:00,5,5"), "a time such as"),
            (with("2026-01-01 00:00:00.x,5,5"), "a time such as"),
            (with("2026-01-01 00:00:00+99:00,5,5"), "a time such as"),
            (with("nan,5,5"), "a time such as"),
            (with("9e30,5,5"), "at most 1000000000000 is read"),
            (with("1,-5,5"), "ContextTokens is \"-5\", and a whole number"),
            (with("1,5,99999999999999999999"), "GeneratedTokens is \"99999999999999999999\""),
            (with("1,67108865,5"), "ContextTokens is 67108865, at most 67108864 is read"),
        ] {
            let requests = read(&text);
            assert_eq!(requests.len(), 1, "{text}");
            let error = requests[0].as_ref().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(days(1970, 1, 1), 0);
        assert_eq!(days(2000, 3, 1), 11_017);
        assert_eq!(days(2024, 2, 29), 19_782);
        assert_eq!(days(1969, 12, 31), -1);
        assert_eq!(seconds(b"1970-01-02T01:00:00.5+01:00"), Some(86_400.5));
        assert_eq!(seconds(b"12.25"), Some(12.25));
    }
}
