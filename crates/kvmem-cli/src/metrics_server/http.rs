//! *HTTP*: as much of a server as a scrape takes, in one thread and bounded memory.
//!
//! One thread waits for all connections with `poll`. A client sends one request, gets one answer,
//! and the connection is closed. Clients cannot take more than a fixed share of the process:
//!
//! - **Connections**: at most [`CONNECTIONS`]. One more closes the oldest that has not sent its
//!   whole request. A client that sends its request at once is served, however many others stay
//!   silent.
//! - **Time**: a connection is closed if it has not sent its request after [`REQUEST`], or not read
//!   the answer after [`ANSWER`].
//! - **Bytes**: the head of a request is at most [`HEAD`] bytes. A body is not read.

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Maximum connections at once.
pub(super) const CONNECTIONS: usize = 32;
/// Time for a client to send its request.
const REQUEST: Duration = Duration::from_secs(5);
/// Time for a client to read the answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Time for a client to close its side after the answer. Until then its bytes are read and dropped:
/// closing a connection with unread bytes would discard the answer.
const FAREWELL: Duration = Duration::from_secs(1);
/// Maximum bytes of the request line and the header fields.
const HEAD: usize = 8 << 10;
/// Time until the next attempt to accept when the process has no free descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// An answer.
pub(super) struct Answer {
    /// Such as `200 OK`.
    pub(super) status: &'static str,
    /// The content type of the body.
    pub(super) content_type: &'static str,
    pub(super) body: String,
}

/// Answers a request for a path, by GET or HEAD.
type Answers = Box<dyn FnMut(&str) -> Answer + Send>;

/// A server that runs until it is dropped.
pub(super) struct HttpServer {
    address: SocketAddr,
    /// Closing this ends the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Starts to serve.
    ///
    /// # Errors
    /// The error of the system: no thread, or no descriptor.
    pub(super) fn start(listener: TcpListener, answers: Answers) -> io::Result<HttpServer> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stopped, stop) = io::pipe()?;
        let mut serving =
            Serving { listener, stopped, answers, connections: Vec::new(), paused: None };
        let thread = thread::Builder::new().name("kvmem-metrics".into());
        let thread = thread.spawn(move || while serving.iteration() {})?;
        Ok(HttpServer { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns its address.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has printed a panic.
            let _ = thread.join();
        }
    }
}

/// The state of the serving thread.
struct Serving {
    listener: TcpListener,
    stopped: PipeReader,
    answers: Answers,
    /// In the order of arrival.
    connections: Vec<Connection>,
    /// Nothing is accepted before this time.
    paused: Option<Instant>,
}

struct Connection {
    stream: TcpStream,
    state: Exchange,
    /// The deadline for its next state.
    deadline: Instant,
}

enum Exchange {
    Reading(Vec<u8>),
    Writing(Vec<u8>, usize),
    Closing,
    Closed,
}

impl Serving {
    /// Waits for an event and handles it. Returns false when the server is stopped.
    fn iteration(&mut self) -> bool {
        let now = Instant::now();
        self.paused = self.paused.filter(|until| *until > now);
        let accepts = if self.paused.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.stopped.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), accepts),
        ];
        for Connection { stream, state, .. } in &self.connections {
            let wanted =
                if matches!(state, Exchange::Writing(..)) { PollFlags::OUT } else { PollFlags::IN };
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), wanted));
        }
        let deadlines = self.connections.iter().map(|connection| connection.deadline);
        let next = deadlines.chain(self.paused).min();
        let timeout =
            next.map(|next| next.saturating_duration_since(now) + Duration::from_millis(1));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // Out of memory.
            Err(_) => thread::sleep(PAUSE),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            return false;
        }
        let now = Instant::now();
        for (connection, _) in
            self.connections.iter_mut().zip(&ready[2..]).filter(|(_, ready)| **ready)
        {
            connection.go_on(now, &mut self.answers);
        }
        self.connections.retain(|one| !matches!(one.state, Exchange::Closed) && one.deadline > now);
        if ready[1] && self.paused.is_none() {
            self.accept(now);
        }
        true
    }

    fn accept(&mut self, now: Instant) {
        // At most one full set of connections; then the present ones are served first.
        for _ in 0..CONNECTIONS {
            match self.listener.accept() {
                Ok((stream, _)) => self.add(stream, now),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    // The client has closed the connection.
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                    // No descriptor: closing the oldest connection frees one.
                    _ => {
                        self.close_one();
                        self.paused = Some(now + PAUSE);
                        return;
                    }
                },
            }
        }
    }

    fn add(&mut self, stream: TcpStream, now: Instant) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        if self.connections.len() == CONNECTIONS {
            self.close_one();
        }
        let (state, deadline) = (Exchange::Reading(Vec::new()), now + REQUEST);
        let mut connection = Connection { stream, state, deadline };
        // Its bytes are read at once, because the next connection might close it.
        connection.go_on(now, &mut self.answers);
        if !matches!(connection.state, Exchange::Closed) {
            self.connections.push(connection);
        }
    }

    /// Closes the oldest connection, preferring those that have sent no request.
    fn close_one(&mut self) {
        let silent =
            self.connections.iter().position(|one| matches!(one.state, Exchange::Reading(_)));
        if !self.connections.is_empty() {
            self.connections.remove(silent.unwrap_or(0));
        }
    }
}

impl Connection {
    /// Advances the connection as far as possible without waiting.
    fn go_on(&mut self, now: Instant, answers: &mut Answers) {
        loop {
            match self.step(now, answers) {
                Ok(()) if matches!(self.state, Exchange::Closed) => return,
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.state = Exchange::Closed,
            }
        }
    }

    fn step(&mut self, now: Instant, answers: &mut Answers) -> io::Result<()> {
        let mut buffer = [0; 1024];
        match &mut self.state {
            Exchange::Reading(head) => {
                let read = self.stream.read(&mut buffer)?;
                head.extend_from_slice(&buffer[..read]);
                let ends = head.windows(4).any(|four| four == b"\r\n\r\n");
                let answer = match (read, ends, head.len() <= HEAD) {
                    (_, true, true) => respond(head, answers),
                    // It closes its side before the head is complete.
                    (0, ..) => {
                        self.state = Exchange::Closed;
                        return Ok(());
                    }
                    (_, _, true) => return Ok(()),
                    _ => complaint(
                        "431 Request Header Fields Too Large",
                        "",
                        "the head is too long\n",
                    ),
                };
                (self.state, self.deadline) = (Exchange::Writing(answer, 0), now + ANSWER);
            }
            Exchange::Writing(answer, at) => {
                *at += self.stream.write(&answer[*at..])?;
                if *at == answer.len() {
                    self.stream.shutdown(Shutdown::Write)?;
                    (self.state, self.deadline) = (Exchange::Closing, now + FAREWELL);
                }
            }
            Exchange::Closing => {
                if self.stream.read(&mut buffer)? == 0 {
                    self.state = Exchange::Closed;
                }
            }
            Exchange::Closed => {}
        }
        Ok(())
    }
}

/// Answers a request with this head.
fn respond(head: &[u8], answers: &mut Answers) -> Vec<u8> {
    let line =
        head.split(|byte| *byte == b'\r').next().and_then(|line| std::str::from_utf8(line).ok());
    let words: Vec<&str> = line.unwrap_or_default().split(' ').collect();
    let [method, target, version] = words.as_slice() else {
        return complaint("400 Bad Request", "", "this is no request\n");
    };
    if !version.starts_with("HTTP/1.") {
        return complaint(
            "505 HTTP Version Not Supported",
            "",
            "this server supports HTTP/1.0 and 1.1\n",
        );
    }
    if !matches!(*method, "GET" | "HEAD") {
        let allow = "Allow: GET, HEAD\r\n";
        return complaint("405 Method Not Allowed", allow, "metrics can be read, by GET\n");
    }
    let Answer { status, content_type, body } =
        answers(target.split('?').next().unwrap_or_default());
    message(status, content_type, "", &body, *method == "GET")
}

fn complaint(status: &str, fields: &str, body: &str) -> Vec<u8> {
    message(status, "text/plain; charset=utf-8", fields, body, true)
}

fn message(status: &str, content_type: &str, fields: &str, body: &str, with_body: bool) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: \
         close\r\n{fields}\r\n",
        body.len()
    );
    let body = if with_body { body } else { "" };
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers() -> Answers {
        Box::new(|path| Answer {
            status: "200 OK",
            content_type: "text/plain",
            body: path.to_owned(),
        })
    }

    #[test]
    fn requests_are_read_as_they_are_written() {
        let status = |request: &str| {
            let answer = String::from_utf8(respond(request.as_bytes(), &mut answers())).unwrap();
            answer.split_once("\r\n").map(|(line, _)| line.to_owned()).unwrap()
        };
        assert_eq!(status("GET /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(status("HEAD / HTTP/1.0\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(status("PUT /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(status("GET / HTTP/2\r\n\r\n"), "HTTP/1.1 505 HTTP Version Not Supported");
        for none in ["\r\n\r\n", "GET /\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n", "x\u{0}\r\n\r\n"] {
            assert_eq!(status(none), "HTTP/1.1 400 Bad Request", "{none:?}");
        }
        let answer = respond(b"GET /metrics?name[]=x HTTP/1.1\r\nHost: a\r\n\r\n", &mut answers());
        assert!(String::from_utf8(answer).unwrap().ends_with("Connection: close\r\n\r\n/metrics"));
    }
}
