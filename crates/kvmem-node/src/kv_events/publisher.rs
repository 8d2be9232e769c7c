//! [`Publisher`]: the thread that announces.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::num::NonZero;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::available_parallelism;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use super::KvEventsOptions;
use super::batch::Batch;
use super::feed::{Changes, Feed, PublisherCounts};
use super::index::{Announcement, Index};
use super::peer::{EventPeer, Replay, Role};
use super::zmtp::push_frame;

/// The most connections.
const PEERS: usize = 64;
/// The time for a peer to take its part.
const GREETING: Duration = Duration::from_secs(10);
/// Time until the next attempt to accept when the process has no free descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Time between two looks at the feed while something comes.
const LOOK: Duration = Duration::from_millis(2);
/// Time without anything after which the thread sleeps until the bell.
const ACTIVE: Duration = Duration::from_millis(50);
/// The thread publishes changes for one part in `PART` of the time of all processors at most. Where
/// two processors have a client and its server, which answer each other, all time of a third thread
/// is lost to both.
const PART: usize = 64;
/// Time of which it may use its part later, for a burst.
const SAVED: Duration = Duration::from_millis(50);
/// Batches, and their bytes, that can be replayed.
const RECENT: usize = 10_000;
const RECENT_BYTES: usize = 32 << 20;
/// Batches of announcements and replays between two looks at the feed.
const STEPS: usize = 16;
/// Ends a replay, in the place of a number.
const END: u64 = u64::MAX;
/// Numbers of a server begin at the milliseconds since 1970 times this.
const NUMBERS_PER_MS: u64 = 1 << 20;

/// The state of the thread.
pub(super) struct Publisher {
    feed: Arc<Feed>,
    listener: TcpListener,
    topic: Vec<u8>,
    max_waiting: usize,
    index: Index,
    batch: Batch,
    peers: Vec<EventPeer>,
    /// The number of the last batch.
    number: u64,
    /// The messages of the last batches.
    recent: VecDeque<Arc<Vec<u8>>>,
    recent_bytes: usize,
    changes: Changes,
    changed_at: Instant,
    rests_until: Instant,
    /// How much longer it rests than it runs: `PART` over the number of processors.
    rest: u32,
    /// Nothing is accepted before this time.
    paused: Option<Instant>,
}

impl Publisher {
    pub(super) fn new(
        feed: Arc<Feed>,
        listener: TcpListener,
        options: &KvEventsOptions,
    ) -> io::Result<Publisher> {
        listener.set_nonblocking(true)?;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Publisher {
            feed,
            listener,
            topic: options.topic.clone().into_bytes(),
            max_waiting: options.max_waiting,
            index: Index::new(options.whole_hashes),
            batch: Batch::default(),
            peers: Vec::new(),
            number: (since_1970.as_millis() as u64).saturating_mul(NUMBERS_PER_MS),
            recent: VecDeque::new(),
            recent_bytes: 0,
            changes: Changes::default(),
            changed_at: Instant::now(),
            rests_until: Instant::now(),
            rest: (PART / available_parallelism().map_or(1, NonZero::get)).max(4) as u32,
            paused: None,
        })
    }

    /// Announces until the feed ends.
    pub(super) fn run(mut self) {
        while !self.feed.has_ended() {
            let (now, ran) = (Instant::now(), ran());
            let has_changes = now >= self.rests_until && {
                self.feed.take(&mut self.changes);
                self.publish(now)
            };
            let mut has_more = false;
            for _ in 0..STEPS {
                has_more = self.announce() | self.replay();
                if !has_more {
                    break;
                }
            }
            self.peers.iter_mut().for_each(EventPeer::flush);
            self.count_peers();
            self.peers.retain(|peer| !peer.is_over);
            if has_changes && self.index.is_complete {
                let from = now.checked_sub(SAVED).unwrap_or(now).max(self.rests_until);
                self.rests_until = from + self.rest * self::ran().saturating_sub(ran);
            }
            self.wait(has_more);
        }
        // Published batches are sent as far as the sockets take them.
        self.peers.iter_mut().for_each(EventPeer::flush);
    }

    fn count_peers(&self) {
        let is_subscriber =
            |it: &EventPeer| !it.is_over && matches!(it.role, Role::Subscriber { .. });
        let count =
            |is: fn(&EventPeer) -> bool| self.peers.iter().filter(|peer| is(peer)).count() as u64;
        let counts = self.feed.counts();
        counts.subscribers.store(count(is_subscriber), Ordering::Relaxed);
        let over = count(|it| it.is_over && it.is_at_fault);
        if over > 0 {
            PublisherCounts::add(&counts.disconnected, over);
        }
    }

    /// Publishes what has changed. Returns whether anything has.
    fn publish(&mut self, now: Instant) -> bool {
        if self.changes.is_empty() {
            return false;
        }
        self.changed_at = now;
        self.index.take(&mut self.changes);
        let (mut batches, mut events) = (Vec::new(), 0);
        let mut end = |batch: &mut Batch| {
            events += u64::from(batch.len);
            batches.push(batch.take(seconds()));
        };
        self.index.publish(&mut self.batch, &mut end);
        if self.batch.len > 0 {
            end(&mut self.batch);
        }
        PublisherCounts::add(&self.feed.counts().batches, batches.len() as u64);
        PublisherCounts::add(&self.feed.counts().events, events);
        for payload in batches {
            self.number += 1;
            let message = self.message(self.number, &payload);
            for peer in self.peers.iter_mut().filter(|peer| peer.gets(&self.topic)) {
                peer.send(Arc::clone(&message));
            }
            self.remember(message);
        }
        true
    }

    /// Remembers the last batch for replays.
    fn remember(&mut self, message: Arc<Vec<u8>>) {
        self.recent_bytes += message.len();
        self.recent.push_back(message);
        while (self.recent.len() > RECENT || self.recent_bytes > RECENT_BYTES)
            && let Some(first) = self.recent.pop_front()
        {
            self.recent_bytes -= first.len();
        }
    }

    /// Returns a message for subscribers.
    fn message(&self, number: u64, payload: &[u8]) -> Arc<Vec<u8>> {
        let mut message = Vec::with_capacity(self.topic.len() + payload.len() + 32);
        push_message(&mut message, &self.topic, number, payload);
        message.into()
    }

    /// Sends one batch to each peer that has everything to learn. Its number is used for all
    /// subscribers, so that no other one sees a gap: they get a batch without events. Returns
    /// whether there is more to send now.
    fn announce(&mut self) -> bool {
        let mut others = Vec::new();
        let mut goes_on = false;
        let mut is_used = false;
        for at in 0..self.peers.len() {
            if !self.peers[at].gets(&self.topic) {
                continue;
            }
            let has_room = self.peers[at].has_room();
            let Role::Subscriber { announcement: Some(it), .. } = &mut self.peers[at].role else {
                others.push(at);
                continue;
            };
            if !has_room {
                others.push(at);
                continue;
            }
            self.index.announce_some(it, &mut self.batch);
            goes_on |= !it.is_over();
            if it.is_over() {
                let Role::Subscriber { announcement, .. } = &mut self.peers[at].role else {
                    continue;
                };
                *announcement = None;
            }
            if self.batch.len == 0 {
                others.push(at);
                continue;
            }
            let payload = self.batch.take(seconds());
            let message = self.message(self.number + 1, &payload);
            self.peers[at].send(message);
            is_used = true;
        }
        if is_used {
            self.number += 1;
            let empty = self.batch.take(seconds());
            let message = self.message(self.number, &empty);
            for at in others {
                self.peers[at].send(Arc::clone(&message));
            }
            self.remember(message);
        }
        goes_on
    }

    /// Sends some of what peers have requested. Returns whether there is more to send now.
    fn replay(&mut self) -> bool {
        let mut goes_on = false;
        let oldest = self.number + 1 - self.recent.len() as u64;
        for peer in &mut self.peers {
            if !peer.has_room() {
                continue;
            }
            let Role::Replayer { requests, replay, .. } = &mut peer.role else { continue };
            if replay.is_none() {
                let Some(from) = requests.pop_front() else { continue };
                *replay = Some(if from >= oldest {
                    Replay::Recent { next: from }
                } else {
                    let next = self.number + 1 - self.index.batches();
                    Replay::Everything { announcement: Announcement::default(), next }
                });
            }
            // The delimiter of requests and answers comes before what subscribers get.
            let mut message = Vec::new();
            push_frame(&mut message, &[], true);
            let goes_on_with = match replay.as_mut() {
                Some(Replay::Recent { next }) => {
                    // Batches that were dropped meanwhile are a gap, as any other one.
                    *next = (*next).max(oldest);
                    let recent = self.recent.get((*next - oldest) as usize);
                    *next = next.saturating_add(1);
                    recent.map(|recent| message.extend(&**recent))
                }
                Some(Replay::Everything { announcement, .. }) if announcement.is_over() => None,
                Some(Replay::Everything { announcement, next }) => {
                    self.index.announce_some(announcement, &mut self.batch);
                    push_message(&mut message, &self.topic, *next, &self.batch.take(seconds()));
                    *next += 1;
                    Some(())
                }
                None => continue,
            };
            if goes_on_with.is_none() {
                push_message(&mut message, &[], END, &[]);
                *replay = None;
            }
            goes_on |= replay.is_some() || !requests.is_empty();
            peer.send(message);
            PublisherCounts::add(&self.feed.counts().replayed, 1);
        }
        goes_on
    }

    /// Waits until there is something to do, and hears peers.
    fn wait(&mut self, has_more: bool) {
        let now = Instant::now();
        self.paused = self.paused.filter(|until| *until > now);
        let wait = if has_more {
            Duration::ZERO
        } else if self.rests_until > now {
            LOOK.max(self.rests_until - now)
        } else if now.duration_since(self.changed_at) < ACTIVE || !self.feed.sleep() {
            if self.index.is_complete { LOOK } else { LOOK / 10 }
        } else if self.paused.is_some() {
            PAUSE
        } else {
            GREETING / 10
        };
        let in_if = |wanted| if wanted { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.feed.bell(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), in_if(self.paused.is_none())),
        ];
        for peer in &self.peers {
            let out = if peer.is_waiting() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(peer.stream.as_fd(), in_if(peer.is_heard()) | out));
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        let timeout = Timespec { tv_sec: wait.as_secs() as _, ..timeout };
        if poll(&mut fds, Some(&timeout)).is_err() {
            // A signal, or no memory.
            std::thread::sleep(LOOK);
            return;
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        if !ready[0].is_empty() {
            self.feed.heard();
        }
        let ended = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        for (peer, ready) in self.peers.iter_mut().zip(&ready[2..]) {
            if ready.intersects(ended) {
                peer.hear(&self.topic);
            }
        }
        if let Some(deadline) = now.checked_sub(GREETING) {
            self.peers.retain(|peer| !peer.is_late(deadline));
        }
        if !ready[1].is_empty() && self.paused.is_none() {
            self.accept(now);
        }
    }

    fn accept(&mut self, now: Instant) {
        // At most one full set of peers; then the present ones are served first.
        for _ in 0..PEERS {
            match self.listener.accept() {
                Ok((stream, _)) => self.add(stream, now),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                    // No descriptor.
                    _ => {
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
        let _ = stream.set_nodelay(true);
        let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
        if self.peers.len() >= PEERS {
            // Of those that have not said what they want, the one that has had the most time.
            let silent = |peer: &EventPeer| matches!(peer.role, Role::Unknown);
            let Some(at) = self.peers.iter().position(silent) else { return };
            self.peers.remove(at);
        }
        self.peers.push(EventPeer::new(stream, self.max_waiting, now));
    }
}

/// Adds a batch behind its topic and its number.
fn push_message(out: &mut Vec<u8>, topic: &[u8], number: u64, payload: &[u8]) {
    push_frame(out, topic, true);
    push_frame(out, &number.to_be_bytes(), true);
    push_frame(out, payload, false);
}

/// Returns the seconds since 1970.
fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Returns how long this thread has run.
fn ran() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec as u64, tv_nsec as u32)
}
