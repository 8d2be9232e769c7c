//! *Sessions*: those of a file or a folder, as the requests of one server.
//!
//! N sessions run at one time. The first N begin together; when one ends, the next one begins at
//! the time of its last request. Files of a folder are taken in the order of their names. Within a
//! session, requests keep their distances in time.
//!
//! Only the sessions that run are in memory, at most [`SESSIONS_BYTES_MAX`] of them together, and
//! the text of none is longer than [`SESSION_BYTES_MAX`].

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::session::{HashScope, Session, SessionFault};
use super::{Request, TraceError, TraceStream, mooncake};

/// The longest session that is read, in bytes of its text.
pub const SESSION_BYTES_MAX: u64 = 128 << 20;

/// The bytes of all sessions that run at one time.
pub const SESSIONS_BYTES_MAX: u64 = 1 << 30;

/// The sessions of a trace.
pub(super) struct Sessions {
    /// The stream that is being read.
    stream: Option<SessionStream>,
    /// Files that come after it, the next one last.
    files: Vec<PathBuf>,
    at_once: usize,
    running: BinaryHeap<Reverse<RunningSession>>,
    running_bytes: u64,
    /// Sessions that have begun.
    begun: u64,
    scope: Option<HashScope>,
    next_block: u64,
    /// When the next session begins, in milliseconds.
    now_ms: f64,
    read_bytes: u64,
}

/// A session of which not all requests are read.
struct RunningSession {
    /// The time of its next request, in milliseconds.
    next_ms: f64,
    /// Its number, which decides between equal times.
    number: u64,
    begin_ms: f64,
    bytes: u64,
    session: Session,
    /// The next request.
    at: usize,
}

impl Ord for RunningSession {
    fn cmp(&self, other: &Self) -> Ordering {
        self.next_ms.total_cmp(&other.next_ms).then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for RunningSession {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RunningSession {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for RunningSession {}

impl Sessions {
    /// Returns the sessions of a stream, one after the other.
    pub(super) fn of_stream(stream: TraceStream, path: &Path, at_once: u32) -> Self {
        Sessions {
            stream: Some(SessionStream::new(stream, path.to_owned())),
            files: Vec::new(),
            at_once: at_once.max(1) as usize,
            running: BinaryHeap::new(),
            running_bytes: 0,
            begun: 0,
            scope: None,
            next_block: 0,
            now_ms: 0.0,
            read_bytes: 0,
        }
    }

    /// Returns the sessions of a folder, and the bytes of its files.
    pub(super) fn of_folder(path: &Path, at_once: u32) -> Result<(Self, u64), TraceError> {
        let (mut files, bytes) = files(path)?;
        if files.is_empty() {
            return Err(TraceError::NoSessions { path: path.to_owned() });
        }
        files.reverse();
        let mut sessions = Sessions::of_stream(Box::new(io::empty()), path, at_once);
        sessions.stream = None;
        sessions.files = files;
        Ok((sessions, bytes))
    }

    /// Returns the bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.read_bytes + self.stream.as_ref().map_or(0, |stream| stream.bytes)
    }

    /// Returns the next request; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Request>, TraceError> {
        while self.running.len() < self.at_once && self.begin()? {}
        let Some(Reverse(mut running)) = self.running.pop() else { return Ok(None) };
        let request = &running.session.requests[running.at];
        let runs = &request.runs;
        let request = Request {
            timestamp: running.next_ms,
            input_length: request.input_length,
            output_length: request.output_length,
            block_tokens: running.session.block_tokens,
            hash_ids: runs.iter().flat_map(|run| run.first..=run.last).collect(),
        };
        running.at += 1;
        match running.session.requests.get(running.at) {
            Some(next) => {
                running.next_ms = running.begin_ms + next.t * 1000.0;
                self.running.push(Reverse(running));
            }
            None => {
                self.running_bytes -= running.bytes;
                self.now_ms = running.next_ms;
            }
        }
        Ok(Some(request))
    }

    /// Begins the next session; false if there is none.
    fn begin(&mut self) -> Result<bool, TraceError> {
        loop {
            let Some(stream) = &mut self.stream else {
                let Some(path) = self.files.pop() else { return Ok(false) };
                let file = match File::open(&path) {
                    Ok(file) => Box::new(BufReader::with_capacity(1 << 18, file)),
                    Err(source) => return Err(TraceError::Open { path, source }),
                };
                self.stream = Some(SessionStream::new(file, path));
                continue;
            };
            let Some(mut session) = stream.next()? else {
                self.read_bytes += stream.bytes;
                self.stream = None;
                continue;
            };
            if session.requests.is_empty() {
                continue;
            }
            let scope = *self.scope.get_or_insert(session.scope);
            if scope != session.scope {
                return Err(TraceError::MixedScopes {
                    path: stream.path.clone(),
                    line: stream.lines + 1,
                    scope: format!("{:?}", session.scope).to_lowercase(),
                });
            }
            let bytes = session.memory_bytes();
            self.running_bytes += bytes;
            if self.running_bytes > SESSIONS_BYTES_MAX {
                return Err(TraceError::SessionsTooLarge {
                    path: stream.path.clone(),
                    sessions: self.running.len() + 1,
                    bytes: self.running_bytes,
                    limit: SESSIONS_BYTES_MAX,
                });
            }
            if scope == HashScope::Local {
                self.next_block += session.renumber(self.next_block);
            }
            let (begin_ms, number) = (self.now_ms, self.begun);
            let next_ms = begin_ms + session.requests[0].t * 1000.0;
            self.begun += 1;
            self.running.push(Reverse(RunningSession {
                next_ms,
                number,
                begin_ms,
                bytes,
                session,
                at: 0,
            }));
            return Ok(true);
        }
    }
}

/// A stream of JSON objects, each of which is a session. White space separates them.
struct SessionStream {
    stream: TraceStream,
    path: PathBuf,
    /// Line ends read so far.
    lines: u64,
    bytes: u64,
    /// The longest text of a session.
    text_max: u64,
}

impl SessionStream {
    fn new(stream: TraceStream, path: PathBuf) -> Self {
        SessionStream { stream, path, lines: 0, bytes: 0, text_max: SESSION_BYTES_MAX }
    }

    fn next(&mut self) -> Result<Option<Session>, TraceError> {
        let failed = |path: &Path, lines: u64, source| TraceError::Read {
            path: path.to_owned(),
            line: lines + 1,
            source,
        };
        loop {
            let more =
                self.stream.fill_buf().map_err(|source| failed(&self.path, self.lines, source))?;
            if more.is_empty() {
                return Ok(None);
            }
            let blank = more.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.lines += line_ends(&more[..blank]);
            self.bytes += blank as u64;
            let is_blank = blank == more.len();
            self.stream.consume(blank);
            if !is_blank {
                break;
            }
        }
        let first_line = self.lines + 1;
        let mut text = BoundedText { remaining: self.text_max, of: self };
        // It reads single bytes, and none after the end of the object.
        let read = Session::read(&mut serde_json::Deserializer::from_reader(&mut text));
        let is_too_long = text.remaining == 0;
        let path = || self.path.clone();
        let fault = match read {
            Ok(Ok(session)) => return Ok(Some(session)),
            Ok(Err(fault)) => fault,
            Err(_) if is_too_long => {
                return Err(TraceError::OutOfBounds {
                    path: path(),
                    line: first_line,
                    field: "the text of a session",
                    value: "longer".into(),
                    limit: self.text_max,
                    remedy: "cut the session in parts",
                });
            }
            Err(error) if error.is_io() => {
                return Err(failed(&self.path, self.lines, error.into()));
            }
            Err(error) => {
                let line = first_line + error.line().saturating_sub(1) as u64;
                return Err(TraceError::Malformed {
                    path: path(),
                    line,
                    reason: mooncake::reason(&error),
                });
            }
        };
        Err(match fault {
            SessionFault::Malformed(reason) => {
                TraceError::Malformed { path: path(), line: first_line, reason }
            }
            SessionFault::OutOfBounds(field, value, limit, remedy) => TraceError::OutOfBounds {
                path: path(),
                line: first_line,
                field,
                value,
                limit,
                remedy,
            },
            SessionFault::Scope(scope) => TraceError::Malformed {
                path: path(),
                line: first_line,
                reason: format!("hash_id_scope is {scope:?}, local or global is expected"),
            },
        })
    }
}

/// The text of one session: counted, and of bounded length.
struct BoundedText<'a> {
    of: &'a mut SessionStream,
    remaining: u64,
}

impl Read for BoundedText<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.remaining == 0 {
            return Err(io::Error::other("the session is too long"));
        }
        let most = into.len().min(self.remaining as usize);
        let read = self.of.stream.read(&mut into[..most])?;
        self.remaining -= read as u64;
        self.of.bytes += read as u64;
        self.of.lines += line_ends(&into[..read]);
        Ok(read)
    }
}

fn line_ends(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Returns the files of a folder that may be sessions, in the order of their names, and their
/// bytes.
pub(super) fn files(folder: &Path) -> Result<(Vec<PathBuf>, u64), TraceError> {
    let failed = |source| TraceError::Open { path: folder.to_owned(), source };
    let (mut files, mut bytes) = (Vec::new(), 0);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_named = path.extension().is_some_and(|end| end == "json" || end == "jsonl");
        // A file that cannot be looked at is opened later, for the error.
        let metadata = fs::metadata(&path);
        if is_named && metadata.as_ref().map_or(true, |metadata| metadata.is_file()) {
            bytes += metadata.map_or(0, |metadata| metadata.len());
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok((files, bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::{Trace, TraceFile, TraceFormat, TraceOptions};

    fn trace(text: &str, sessions: u32) -> Trace {
        let options = TraceOptions { sessions, ..Default::default() };
        let text = Box::new(Cursor::new(text.as_bytes().to_vec()));
        Trace::new(text, Path::new("s.json"), &options).unwrap()
    }

    /// Three sessions of one request a second, with as many requests as their number and one more.
    fn three() -> String {
        (1..=3)
            .map(|number| {
                let request = |t: u64| {
                    let ids: Vec<u64> = (1..=t + 1).collect();
                    format!("{{\"t\": {t}, \"in\": {}, \"hash_ids\": {ids:?}}}", 64 * (t + 1))
                };
                let requests: Vec<String> = (0..=number).map(request).collect();
                format!("{{\"block_size\": 64, \"requests\": [\n{}]}}\n\n", requests.join(","))
            })
            .collect()
    }

    fn times_and_ids(trace: Trace) -> Vec<(f64, Vec<u64>)> {
        trace.map(|request| request.map(|it| (it.timestamp, it.hash_ids)).unwrap()).collect()
    }

    #[test]
    fn the_next_session_begins_when_one_ends() {
        let one_by_one = times_and_ids(trace(&three(), 1));
        let times: Vec<f64> = one_by_one.iter().map(|(ms, _)| ms / 1000.0).collect();
        assert_eq!(times, [0.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0, 5.0, 6.0]);
        let two = times_and_ids(trace(&three(), 2));
        let times: Vec<f64> = two.iter().map(|(ms, _)| ms / 1000.0).collect();
        // The third begins at 1 s, when the first has sent its last request.
        assert_eq!(times, [0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn sessions_share_no_block_unless_their_ids_are_global() {
        let distinct = |text: &str| {
            let all = times_and_ids(trace(text, 3)).into_iter().flat_map(|(_, ids)| ids);
            all.collect::<std::collections::HashSet<u64>>().len()
        };
        assert_eq!(distinct(&three()), 2 + 3 + 4);
        let global =
            three().replace("{\"block_size\"", "{\"hash_id_scope\":\"global\",\"block_size\"");
        assert_eq!(distinct(&global), 4);
        let mixed =
            three().replacen("{\"block_size\"", "{\"hash_id_scope\":\"global\",\"block_size\"", 1);
        let error = trace(&mixed, 3).next().unwrap().unwrap_err().to_string();
        assert!(
            error.contains("hash_id_scope is \"local\"") && error.contains("two traces"),
            "{error}"
        );
    }

    #[test]
    fn faults_name_the_line_within_the_file() {
        let good = three();
        for (bad, line) in [
            ("{\"block_size\": 64, \"requests\": [\n{\"t\": 0,\n\"in\": -1}]}", 12),
            ("{\"block_size\": 64}", 10),
            ("{\"block_size\": 64, \"requests\": [{\"t\": 1}]}", 10),
            ("hello", 10),
        ] {
            let mut trace = trace(&format!("{good}{bad}\n{good}"), 50);
            let error = trace.next().unwrap().unwrap_err().to_string();
            assert!(error.starts_with(&format!("s.json:{line}: malformed line: ")), "{error}");
            assert!(trace.next().is_none());
        }
        let cut = &good[..good.len() / 2];
        assert!(trace(cut, 50).next().unwrap().unwrap_err().to_string().contains("EOF"));
    }

    #[test]
    fn a_session_without_end_is_not_read_into_memory() {
        let begin = Cursor::new(b"{\"requests\": [], \"id\": \"".to_vec());
        let endless = BufReader::new(begin.chain(io::repeat(b'x')));
        let mut stream = SessionStream::new(Box::new(endless), PathBuf::from("zero"));
        assert_eq!(stream.text_max, SESSION_BYTES_MAX);
        stream.text_max = 100_000;
        let error = stream.next().unwrap_err().to_string();
        assert_eq!(stream.bytes, 100_000);
        assert!(error.contains("zero:1: the text of a session is longer, at most"), "{error}");
    }

    #[test]
    fn a_folder_is_read_by_the_names_of_its_files() {
        let made = tempfile::tempdir().unwrap();
        let folder = made.path();
        let options = TraceOptions::default();
        let error = Trace::open(folder, &options).unwrap_err().to_string();
        assert!(error.contains("none of its files ends in .json"), "{error}");
        let session = |ids: &str| {
            format!(r#"{{"block_size": 32, "requests": [{{"t": 0, "in": 9, "hash_ids": {ids}}}]}}"#)
        };
        fs::write(folder.join("b.json"), session("[1, 2]")).unwrap();
        fs::write(folder.join("a.jsonl"), session("[1]") + "\n" + &session("[1, 2, 3]")).unwrap();
        fs::write(folder.join("notes.txt"), "hello").unwrap();
        let bytes = TraceFile::open(folder, 1).unwrap().len_bytes();
        let mut trace = Trace::open(folder, &options).unwrap();
        assert_eq!(trace.block_tokens().unwrap(), 32);
        assert_eq!(trace.format(), TraceFormat::KvCacheTester);
        let all: Vec<Request> = trace.by_ref().map(Result::unwrap).collect();
        let ids: Vec<&[u64]> = all.iter().map(|request| request.hash_ids.as_slice()).collect();
        assert_eq!(ids, [&[0][..], &[1, 2, 3], &[4, 5]]);
        assert_eq!(Some(trace.position()), bytes);
        assert_eq!(crate::files(folder).unwrap().len(), 2);

        let wrong = TraceOptions { format: Some(TraceFormat::Azure), ..options };
        assert!(Trace::open(folder, &wrong).unwrap_err().to_string().contains("a folder"));
        let wrong = TraceOptions { block_tokens: Some(512), ..options };
        assert!(
            Trace::open(folder, &wrong).unwrap_err().to_string().contains("--block-tokens 512")
        );
    }
}
