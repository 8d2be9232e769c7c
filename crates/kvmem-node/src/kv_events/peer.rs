//! [`EventPeer`]: a connection to a subscriber, or to one that asks for a replay.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use super::index::Announcement;
use super::zmtp::{self, Malformed, Reader, Said, SocketType};

/// While more bytes than this wait for a peer, its announcement and its replay wait, too.
const ENOUGH_WAITING: usize = 1 << 20;
/// The most topics that a peer subscribes to, and replays that it has requested.
const MAX_TOPICS: usize = 64;
const MAX_REQUESTS: usize = 16;
/// Messages that one system call sends.
const AT_ONCE: usize = 64;

/// A replay that is sent.
#[derive(Debug)]
pub(super) enum Replay {
    /// What was published, from a number on.
    Recent { next: u64 },
    /// Everything, because what was published is no longer known; with the next number.
    Everything { announcement: Announcement, next: u64 },
}

/// The part that a peer has taken: it subscribes, or it requests replays.
#[derive(Debug)]
pub(super) enum Role {
    /// It has not said so yet.
    Unknown,
    Subscriber {
        topics: Vec<Vec<u8>>,
        /// What it has to learn before it knows everything.
        announcement: Option<Announcement>,
    },
    Replayer {
        /// The frames of a message that has not ended.
        frames: Vec<Vec<u8>>,
        requests: VecDeque<u64>,
        replay: Option<Replay>,
    },
}

/// A connection.
#[derive(Debug)]
pub(super) struct EventPeer {
    pub(super) stream: TcpStream,
    reader: Reader,
    pub(super) role: Role,
    pub(super) connected: Instant,
    waiting: VecDeque<Arc<Vec<u8>>>,
    /// Bytes of the first one that were sent.
    sent: usize,
    waiting_bytes: usize,
    max_waiting: usize,
    pub(super) is_over: bool,
    /// It is over because it read too slowly, or broke the protocol.
    pub(super) is_at_fault: bool,
}

impl EventPeer {
    pub(super) fn new(stream: TcpStream, max_waiting: usize, now: Instant) -> EventPeer {
        let mut peer = EventPeer {
            stream,
            reader: Reader::default(),
            role: Role::Unknown,
            connected: now,
            waiting: VecDeque::new(),
            sent: 0,
            waiting_bytes: 0,
            max_waiting,
            is_over: false,
            is_at_fault: false,
        };
        peer.send(zmtp::greeting().to_vec());
        peer
    }

    /// Queues a message.
    pub(super) fn send(&mut self, message: impl Into<Arc<Vec<u8>>>) {
        let message = message.into();
        self.waiting_bytes += message.len();
        if self.waiting_bytes > self.max_waiting {
            (self.is_over, self.is_at_fault) = (true, true);
            return;
        }
        self.waiting.push_back(message);
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiting_bytes < ENOUGH_WAITING
    }

    /// Returns whether what it says is understood now: the server remembers few of its requests.
    pub(super) fn is_heard(&self) -> bool {
        !matches!(&self.role, Role::Replayer { requests, .. } if requests.len() >= MAX_REQUESTS)
    }

    /// Returns whether it gets what is published under a topic.
    pub(super) fn gets(&self, topic: &[u8]) -> bool {
        match &self.role {
            Role::Subscriber { topics, .. } => topics.iter().any(|it| topic.starts_with(it)),
            _ => false,
        }
    }

    /// Sends as much as the socket takes.
    pub(super) fn flush(&mut self) {
        while !self.waiting.is_empty() && !self.is_over {
            let mut slices = [IoSlice::new(&[]); AT_ONCE];
            let messages = self.waiting.iter().take(AT_ONCE);
            let count = messages.len();
            for (slice, message) in slices.iter_mut().zip(messages) {
                *slice = IoSlice::new(message);
            }
            slices[0].advance(self.sent);
            match self.stream.write_vectored(&slices[..count]) {
                Ok(len) => self.note_sent(len),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.is_over = error.kind() != ErrorKind::WouldBlock;
                    return;
                }
            }
        }
    }

    fn note_sent(&mut self, len: usize) {
        self.waiting_bytes -= len;
        self.sent += len;
        while let Some(first) = self.waiting.front()
            && self.sent >= first.len()
        {
            self.sent -= first.len();
            self.waiting.pop_front();
        }
    }

    /// Hears what the peer says. One that subscribes to `topic` has everything to learn.
    pub(super) fn hear(&mut self, topic: &[u8]) {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.is_over = true,
            Ok(len) => {
                self.reader.add(&bytes[..len]);
                self.is_at_fault |= self.understand(topic).is_err();
                self.is_over |= self.is_at_fault;
            }
            Err(error) => {
                let again = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                self.is_over |= !again;
            }
        }
    }

    fn understand(&mut self, topic: &[u8]) -> Result<(), Malformed> {
        let mut answers = Vec::new();
        while let Some(said) = self.reader.next()? {
            match (said, &mut self.role) {
                (Said::Ready(kind), role) => {
                    *role = match kind {
                        SocketType::Pub => {
                            Role::Subscriber { topics: Vec::new(), announcement: None }
                        }
                        SocketType::Router => Role::Replayer {
                            frames: Vec::new(),
                            requests: VecDeque::new(),
                            replay: None,
                        },
                    };
                    zmtp::push_ready(&mut answers, kind);
                }
                (Said::Ping(context), _) => zmtp::push_pong(&mut answers, context),
                (Said::Other, _) => {}
                (Said::Subscribe(prefix), Role::Subscriber { topics, announcement })
                | (
                    Said::Frame { body: [1, prefix @ ..], more: false },
                    Role::Subscriber { topics, announcement },
                ) => {
                    let gets = |topics: &[Vec<u8>]| topics.iter().any(|it| topic.starts_with(it));
                    let got = gets(topics);
                    if topics.len() == MAX_TOPICS {
                        return Err(Malformed);
                    }
                    topics.push(prefix.to_vec());
                    if !got && gets(topics) {
                        *announcement = Some(Announcement::default());
                    }
                }
                (Said::Cancel(prefix), Role::Subscriber { topics, announcement })
                | (
                    Said::Frame { body: [0, prefix @ ..], more: false },
                    Role::Subscriber { topics, announcement },
                ) => {
                    if let Some(at) = topics.iter().position(|it| it == prefix) {
                        topics.swap_remove(at);
                    }
                    if !topics.iter().any(|it| topic.starts_with(it)) {
                        *announcement = None;
                    }
                }
                // A peer may send other messages to a publisher, which takes none.
                (Said::Frame { .. }, Role::Subscriber { .. }) => {}
                (Said::Frame { body, more }, Role::Replayer { frames, requests, .. }) => {
                    if frames.len() < 3 {
                        frames.push(body.to_vec());
                    }
                    if !more {
                        // Other messages are no request, and get no answer.
                        if let [delimiter, number] = &std::mem::take(frames)[..]
                            && let ([], Ok(number)) = (&delimiter[..], number[..].try_into())
                        {
                            if requests.len() >= 4 * MAX_REQUESTS {
                                return Err(Malformed);
                            }
                            requests.push_back(u64::from_be_bytes(number));
                        }
                    }
                }
                (Said::Subscribe(_) | Said::Cancel(_) | Said::Frame { .. }, _) => {
                    return Err(Malformed);
                }
            }
        }
        if !answers.is_empty() {
            self.send(answers);
        }
        Ok(())
    }

    /// Returns whether the time to say what it wants is over.
    pub(super) fn is_late(&self, deadline: Instant) -> bool {
        !self.reader.is_ready() && self.connected < deadline
    }
}
