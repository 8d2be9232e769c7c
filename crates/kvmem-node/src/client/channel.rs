//! *Channel*: what carries the messages of a connection, a socket or a pair of rings.
//!
//! A thread waits for its answer awake, and then sleeps on the socket. With [rings](crate::ring)
//! the server wakes it by a packet, [`BELL`](crate::protocol::BELL), or by the end of the
//! connection.
//!
//! # How long a thread waits awake
//!
//! Waiting awake is worthwhile if the answer comes sooner than a sleep and a wake-up would take. A
//! thread waits awake for at most [`SPIN`]. If the answer has not come by then, the next wait
//! begins asleep, and after a further failure the next 2, 4, … [`MAX_ASLEEP`] waits do. How long a
//! sleep was says nothing about the next one: waking an idle processor takes longer than the server
//! does. While other threads need the processors, it [sleeps](crate::polling) in each wait.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::ClientError;
use crate::polling::may_poll;
use crate::protocol::MAX_MESSAGE;
use crate::ring::{self, BadRing, ClientEnds, Consumer, Producer};
use crate::socket;

/// The longest time that a thread waits awake.
const SPIN: Duration = Duration::from_micros(50);

/// The most waits that begin asleep before one is tried awake.
const MAX_ASLEEP: u32 = 32;

/// Polls of a ring between two looks at the clock.
const RING_POLLS: u32 = 32;

/// Pauses of the processor between two polls of a socket: each poll takes the lock that the server
/// needs to send.
const SOCKET_PAUSES: u32 = 8;

/// The time between two looks for space in a ring that is full.
const FULL_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };

/// The longest time between two looks for space in a socket that is full.
const SOCKET_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// What carries the messages of a connection.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    rings: Option<ClientRings>,
    /// Only the thread that receives locks it.
    polling: Mutex<Waits>,
}

#[derive(Debug)]
struct ClientRings {
    requests: Mutex<Producer>,
    answers: Mutex<Consumer>,
    /// The server's: an eventfd.
    bell: OwnedFd,
}

/// Which waits for an answer begin awake.
#[derive(Debug)]
struct Waits {
    /// Waits that begin asleep until the next one is tried awake.
    asleep: u32,
    /// How many there will be after a failure.
    next_asleep: u32,
}

impl Channel {
    pub(super) fn by_socket(socket: OwnedFd) -> Channel {
        Channel::new(socket, None)
    }

    fn new(socket: OwnedFd, rings: Option<ClientRings>) -> Channel {
        Channel { socket, rings, polling: Mutex::new(Waits { asleep: 0, next_asleep: 1 }) }
    }

    /// Uses rings whose descriptors the server has sent.
    pub(super) fn by_rings(
        socket: OwnedFd,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Channel, ClientError> {
        let Ok([file, bell]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Err(ClientError::Protocol {
                what: "the server passed rings without their two descriptors",
            });
        };
        let ClientEnds { requests, answers } = ring::attach(file)?;
        check_bell(&bell)?;
        let (requests, answers) = (Mutex::new(requests), Mutex::new(answers));
        Ok(Channel::new(socket, Some(ClientRings { requests, answers, bell })))
    }

    /// Returns whether the messages go through rings.
    pub(super) fn has_rings(&self) -> bool {
        self.rings.is_some()
    }

    /// Returns whether the server has closed the connection. Never waits.
    pub(super) fn has_ended(&self) -> bool {
        let mut ends = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let ready = poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        ready.is_ok_and(|ready| ready > 0)
            && ends[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP)
    }

    /// Sends a message. Returns `false` if there is no space now. Never waits.
    pub(super) fn try_send(&self, message: &[u8]) -> Result<bool, Errno> {
        match &self.rings {
            None => match socket::send(&self.socket, message, &[], SendFlags::DONTWAIT) {
                Err(Errno::AGAIN) => Ok(false),
                sent => sent.map(|()| true),
            },
            Some(rings) => rings.try_send(message),
        }
    }

    /// Waits until there may be space, for a short time. The end of the connection is an error.
    pub(super) fn wait_for_space(&self) -> Result<(), Errno> {
        let (wait_for, pause) = match &self.rings {
            None => (PollFlags::OUT | PollFlags::RDHUP, &SOCKET_PAUSE),
            Some(_) => (PollFlags::RDHUP, &FULL_PAUSE),
        };
        let mut ends = [PollFd::new(&self.socket, wait_for)];
        let ready = poll(&mut ends, Some(pause)).is_ok_and(|ready| ready > 0);
        let ended = ends[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP);
        if ready && ended { Err(Errno::CONNRESET) } else { Ok(()) }
    }

    /// Receives a message into the first bytes of `buffer`, and returns their number. Only one
    /// thread calls it at a time. The end of the connection is `ECONNRESET`. The end of the
    /// socket's time, and a doorbell without a message, are `EAGAIN`.
    pub(super) fn receive(&self, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
        let mut polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rings) = &self.rings {
            return rings.receive(self, &mut polling, buffer).map(|()| buffer.len());
        }
        // Cleared once: the length of the buffer stays.
        buffer.resize(MAX_MESSAGE, 0);
        let poll = || match self.receive_packet(buffer, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => {
                (0..SOCKET_PAUSES).for_each(|_| std::hint::spin_loop());
                Ok(None)
            }
            received => received.map(Some),
        };
        match polling.wait_awake(1, poll)? {
            Some(len) => Ok(len),
            None => self.receive_packet(buffer, RecvFlags::empty()),
        }
    }

    fn receive_packet(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        match socket::receive(&self.socket, buffer, flags)?.len {
            0 => Err(Errno::CONNRESET),
            len => Ok(len),
        }
    }
}

impl ClientRings {
    fn try_send(&self, message: &[u8]) -> Result<bool, Errno> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if !requests.try_send(message).map_err(damaged)? {
            return Ok(false);
        }
        let due = requests.bell_is_due();
        drop(requests);
        if due {
            self.ring_bell()?;
        }
        Ok(true)
    }

    fn receive(
        &self,
        channel: &Channel,
        polling: &mut Waits,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let poll = || {
            if answers.try_receive(buffer).map_err(damaged)? {
                return Ok(Some(()));
            }
            std::hint::spin_loop();
            Ok(None)
        };
        if polling.wait_awake(RING_POLLS, poll)?.is_some() {
            return self.received(&answers);
        }
        if answers.prepare_to_sleep().map_err(damaged)? {
            let packet = channel.receive_packet(&mut [0; 64], RecvFlags::empty());
            packet.inspect_err(|_| answers.stay_awake())?;
        }
        let received = answers.try_receive(buffer).map_err(damaged)?;
        answers.stay_awake();
        // A doorbell may ring once too often. The caller looks at the time before it waits again.
        if received { self.received(&answers) } else { Err(Errno::AGAIN) }
    }

    /// Notifies the server of the space that a message has left, if it waits for that.
    fn received(&self, answers: &Consumer) -> Result<(), Errno> {
        if answers.bell_is_due() { self.ring_bell() } else { Ok(()) }
    }

    /// Wakes the server. Never waits: the descriptor is the server's, so it may be anything, and a
    /// bell that takes no more has rung.
    fn ring_bell(&self) -> Result<(), Errno> {
        let mut bell = [PollFd::new(&self.bell, PollFlags::OUT)];
        if poll(&mut bell, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
            return Ok(());
        }
        match rustix::io::write(&self.bell, &1_u64.to_ne_bytes()) {
            Err(Errno::AGAIN) => Ok(()),
            written => written.map(drop),
        }
    }
}

impl Waits {
    /// Polls for an answer for a while, `polls` times between two looks at the clock.
    fn wait_awake<R>(
        &mut self,
        polls: u32,
        mut poll: impl FnMut() -> Result<Option<R>, Errno>,
    ) -> Result<Option<R>, Errno> {
        if self.asleep > 0 {
            self.asleep -= 1;
            return Ok(None);
        }
        let mut deadline = None;
        loop {
            for _ in 0..polls {
                if let Some(answer) = poll()? {
                    self.next_asleep = 1;
                    return Ok(Some(answer));
                }
            }
            let now = Instant::now();
            if deadline.is_none() && !may_poll(now) {
                return Ok(None);
            }
            if now >= *deadline.get_or_insert(now + SPIN) {
                self.asleep = self.next_asleep;
                self.next_asleep = (2 * self.next_asleep).min(MAX_ASLEEP);
                return Ok(None);
            }
        }
    }
}

/// Returns an error for a descriptor that a write could end this process by: one of a pipe or of a
/// socket whose other end is closed raises SIGPIPE. No write to any other one waits.
fn check_bell(bell: &OwnedFd) -> Result<(), ClientError> {
    let is_bell = || -> Result<bool, Errno> {
        let mode = rustix::fs::fstat(bell)?.st_mode;
        rustix::io::ioctl_fionbio(bell, true)?;
        Ok(!matches!(FileType::from_raw_mode(mode), FileType::Fifo | FileType::Socket))
    };
    if is_bell().unwrap_or(false) {
        Ok(())
    } else {
        Err(ClientError::Protocol {
            what: "the descriptor that wakes the server's thread is not an eventfd",
        })
    }
}

/// A ring that cannot be used ends the connection, and the next one has other rings.
fn damaged(error: BadRing) -> Errno {
    match error {
        BadRing::TooLong { .. } => Errno::MSGSIZE,
        BadRing::Position { .. } | BadRing::Length { .. } => Errno::BADMSG,
    }
}
