//! *Recognition* of a format by the first bytes of a trace.

use std::io::{BufRead, Cursor, Read};
use std::path::Path;

use super::{TraceError, TraceFormat, TraceStream};

/// Bytes that are looked at: a header of a CSV file, or the members before a session's requests.
const HEAD_BYTES: usize = 64 << 10;

/// The mark of UTF-8 that some programs put before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Members of which only one format has each.
const MEMBERS: [(&str, TraceFormat); 6] = [
    ("\"timestamp\"", TraceFormat::Mooncake),
    ("\"input_length\"", TraceFormat::Mooncake),
    ("\"hash_ids\"", TraceFormat::Mooncake),
    ("\"block_size\"", TraceFormat::KvCacheTester),
    ("\"requests\"", TraceFormat::KvCacheTester),
    ("\"hash_id_scope\"", TraceFormat::KvCacheTester),
];

/// Returns the format of a stream, `given` or recognized, and the stream from its beginning. A byte
/// order mark is dropped.
pub(super) fn recognize(
    mut stream: TraceStream,
    path: &Path,
    given: Option<TraceFormat>,
) -> Result<(TraceStream, TraceFormat), TraceError> {
    let mut head = Vec::new();
    let format = loop {
        let more = stream.fill_buf().map_err(|source| TraceError::Read {
            path: path.to_owned(),
            line: 1,
            source,
        })?;
        let taken = more.len().min(HEAD_BYTES.saturating_sub(head.len()));
        head.extend_from_slice(&more[..taken]);
        stream.consume(taken);
        let is_whole = taken == 0;
        let found = match given {
            Some(format) if is_whole || head.len() >= BYTE_ORDER_MARK.len() => Some(format),
            Some(_) => None,
            None => format_of(&head, is_whole),
        };
        match found {
            Some(format) => break format,
            None if is_whole => {
                let head = String::from_utf8_lossy(&head[..head.len().min(40)]).into_owned();
                return Err(TraceError::Unrecognized { path: path.to_owned(), head });
            }
            None => {}
        }
    };
    let skipped = if head.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    head.drain(..skipped);
    Ok((Box::new(Cursor::new(head).chain(stream)), format))
}

/// Returns the format of a stream that begins with `head`; `None` if that is not known yet.
fn format_of(head: &[u8], is_whole: bool) -> Option<TraceFormat> {
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head).trim_ascii_start();
    if head.is_empty() {
        // A trace without requests is one in any format.
        return is_whole.then_some(TraceFormat::Mooncake);
    }
    if head[0] == b'{' {
        let found =
            MEMBERS.iter().filter_map(|(name, format)| Some((member(head, name)?, *format)));
        let first = found.min_by_key(|(at, _)| *at).map(|(_, format)| format);
        // An object without known members is a malformed line.
        return first.or_else(|| is_whole.then_some(TraceFormat::Mooncake));
    }
    let end = head.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
    let line = &head[..end.unwrap_or(head.len())];
    let has = |name: &str| line.windows(name.len()).any(|part| part == name.as_bytes());
    (has("ContextTokens") && has("GeneratedTokens") && (end.is_some() || is_whole))
        .then_some(TraceFormat::Azure)
}

/// Returns where a member of this quoted name begins.
fn member(text: &[u8], name: &str) -> Option<usize> {
    let at = text.windows(name.len()).enumerate().filter(|(_, part)| *part == name.as_bytes());
    let mut at = at.map(|(at, _)| at);
    at.find(|at| text[at + name.len()..].trim_ascii_start().first() == Some(&b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Result<TraceFormat, TraceError> {
        let stream = Box::new(Cursor::new(text.to_owned()));
        recognize(stream, Path::new("t"), None).map(|(_, format)| format)
    }

    #[test]
    fn the_first_bytes_tell_the_format() {
        for (text, format) in [
            ("", TraceFormat::Mooncake),
            (" \n\n", TraceFormat::Mooncake),
            ("{\"timestamp\": 0, \"requests\": 1}", TraceFormat::Mooncake),
            ("\n{\"hash_ids\" : [], \"x\": 1}", TraceFormat::Mooncake),
            ("{\"other\": 1}\n", TraceFormat::Mooncake),
            ("{\"id\": \"timestamp\", \"requests\": []}", TraceFormat::KvCacheTester),
            ("{\n  \"id\": \"a\",\n  \"block_size\"\n:64}", TraceFormat::KvCacheTester),
            ("\u{feff}{\"block_size\":64}", TraceFormat::KvCacheTester),
            ("TIMESTAMP,ContextTokens,GeneratedTokens", TraceFormat::Azure),
            ("\u{feff}GeneratedTokens,\"ContextTokens\",x\r\n1,2,3", TraceFormat::Azure),
        ] {
            assert_eq!(found(text).unwrap(), format, "{text}");
        }
    }

    #[test]
    fn other_contents_are_an_error_that_names_the_formats() {
        for text in ["hello", "[1]", "ContextTokens,x\nGeneratedTokens\n", "\0\0\0"] {
            let error = found(text).unwrap_err().to_string();
            assert!(error.starts_with("t is no trace of a known format"), "{error}");
            assert!(error.contains("--format") && error.contains("azure"), "{error}");
        }
        let endless = Box::new(std::io::BufReader::new(std::io::repeat(b'x')));
        let error = recognize(endless, Path::new("zero"), None).err().unwrap();
        assert!(matches!(error, TraceError::Unrecognized { .. }), "{error}");
    }

    #[test]
    fn nothing_of_the_stream_is_lost_but_the_byte_order_mark() {
        for given in [None, Some(TraceFormat::Azure)] {
            let text = "\u{feff}{\"timestamp\": 0}".to_owned() + &"x".repeat(200_000);
            let stream = Box::new(Cursor::new(text.clone()));
            let (mut stream, _) = recognize(stream, Path::new("t"), given).unwrap();
            let mut all = String::new();
            stream.read_to_string(&mut all).unwrap();
            assert_eq!(all, text[3..]);
        }
    }
}
