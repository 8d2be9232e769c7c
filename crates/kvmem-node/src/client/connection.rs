//! *Connection*: requests of many threads on one channel.
//!
//! A thread sends its request and then waits for its answer. One of the waiting threads reads the
//! channel, and gives the others their answers. Requests of several threads so overlap, and no
//! thread of the client's own is needed.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::channel::Channel;
use super::grants::Grants;
use super::{ClientError, ConnectOptions, farewell};
use crate::error::CallError;
use crate::node::{BlockHandle, MAX_BATCH};
use crate::protocol::{
    Answer, Call, MAX_MESSAGE, NO_ANSWER, PROTOCOL_VERSION, Response, Welcome, decode, encode,
};
use crate::session_file::SessionView;
use crate::socket;

/// Handles of one [`Call::Keep`].
const KEPT_PER_MESSAGE: usize = 4096;

/// The time in which a server that starts gives its socket the mode that it is to have.
const FORBIDDEN_FOR: Duration = Duration::from_millis(200);

/// The longest time between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

type Outcome = Result<Answer, CallError>;

/// The epoch of a release that ends reservations alone.
pub(super) const NO_PINS: u64 = 0;

/// The channel to one server, and the answers that came.
#[derive(Debug)]
struct Line {
    /// Counts the connections of this client.
    number: u64,
    channel: Arc<Channel>,
    /// Why no more answers come.
    broken: Option<Errno>,
    next_id: u32,
    /// Requests without an answer: `None` until it comes.
    /// There are as many as threads, so they are searched one by one.
    waiting: Vec<(u32, Option<Outcome>)>,
    /// Requests without an answer that no thread waits for, because their calls were interrupted.
    abandoned: HashSet<u32>,
    /// What their answers gave.
    unwanted: Vec<(u64, Vec<BlockHandle>)>,
    /// Whether a thread reads the channel.
    reading: bool,
}

/// Memory for the messages of one call.
#[derive(Debug, Default)]
struct Buffers {
    request: Vec<u8>,
    answer: Vec<u8>,
}

#[derive(Debug)]
struct Shared {
    line: Option<Line>,
    grants: Grants,
    /// The server has other memory.
    replaced: bool,
    /// Whether a thread connects again, without the lock.
    connecting: bool,
    /// Releases that the channel had no space for.
    owed: Vec<(u64, Vec<BlockHandle>)>,
    lines: u64,
    /// The number of the connection on which the client has said goodbye; 0: none.
    said_goodbye: u64,
    token: u64,
    /// Buffers that no call uses.
    spare: Vec<Buffers>,
    /// Threads that wait for `changed`.
    sleepers: usize,
}

/// A connection that is made again when it breaks.
#[derive(Debug)]
pub(super) struct Connection {
    path: PathBuf,
    options: ConnectOptions,
    node_id: u64,
    shared: Mutex<Shared>,
    changed: Condvar,
    /// The process that connected.
    process: u32,
    /// What tells whether pins are lost. Changed under the lock of `shared`.
    pin_state: RwLock<PinState>,
}

/// What tells a thread whether pins are lost.
#[derive(Debug)]
struct PinState {
    /// Counts the times that the client has learnt that the server has revoked its pins.
    revocations: u64,
    /// Counts the times that the client has learnt that the server has ended its session.
    sessions: u64,
    /// The words of the session.
    view: SessionView,
    /// The pin word while the pins of the current epoch last.
    expected: u64,
}

impl Connection {
    /// Connects for the first time. Returns the memory file, too.
    pub(super) fn open(
        path: &Path,
        options: &ConnectOptions,
    ) -> Result<(Connection, OwnedFd, Welcome), ClientError> {
        let started = Instant::now();
        let mut pause = Duration::from_millis(1);
        let (channel, file, view, welcome) = loop {
            let until = Instant::now().checked_add(options.answer_within);
            let limits = Limits { options, until };
            let greeted = greet(path, limits, 0).and_then(|greeted| {
                let Greeted { socket, file, view, welcome } = greeted;
                Ok((open_channel(socket, false, limits)?, file, view, welcome))
            });
            match greeted {
                Ok(greeted) => break greeted,
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Transient(errno)) => {
                    let waited = started.elapsed();
                    let limit = match is_forbidden(errno) {
                        true => options.retry_for.min(FORBIDDEN_FOR),
                        false => options.retry_for,
                    };
                    if waited >= limit {
                        return Err(disconnected(path, waited, errno));
                    }
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    options.check_interrupt()?;
                }
            }
        };
        let line = Line::new(1, channel);
        let shared = Shared {
            line: Some(line),
            grants: Grants::of_epoch(welcome.epoch),
            replaced: false,
            connecting: false,
            owed: Vec::new(),
            lines: 1,
            said_goodbye: 0,
            token: welcome.token,
            spare: Vec::new(),
            sleepers: 0,
        };
        let connection = Connection {
            path: path.to_path_buf(),
            options: options.clone(),
            node_id: welcome.node_id,
            shared: Mutex::new(shared),
            changed: Condvar::new(),
            process: std::process::id(),
            pin_state: RwLock::new(PinState {
                revocations: 0,
                sessions: 0,
                view,
                expected: welcome.pin_word,
            }),
        };
        Ok((connection, file, welcome))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what the client remembers to have.
    pub(super) fn grants<R>(&self, change: impl FnOnce(&mut Grants) -> R) -> R {
        change(&mut self.lock().grants)
    }

    /// Returns how often the server has released what the client had. Pins and reservations of
    /// before are worth nothing.
    pub(super) fn revocations(&self) -> u64 {
        self.pin_state().revocations
    }

    /// Returns whether the server still has the pins that were given after a number of revocations.
    /// The loads of their bytes that this thread has made before were loads of the values then.
    pub(super) fn has_pins_of(&self, revocations: u64) -> bool {
        let state = self.pin_state();
        state.revocations == revocations && state.view.has_pin_word(state.expected)
    }

    /// Returns the number of the session: how often the server has ended an earlier one.
    pub(super) fn session(&self) -> u64 {
        self.pin_state().sessions
    }

    /// Returns whether the server still has the session with this number, and so the blocks that it
    /// has reserved in it.
    pub(super) fn has_session(&self, session: u64) -> bool {
        let state = self.pin_state();
        state.sessions == session && state.view.has_session()
    }

    fn pin_state(&self) -> RwLockReadGuard<'_, PinState> {
        self.pin_state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_pin_state(&self, change: impl FnOnce(&mut PinState)) {
        change(&mut self.pin_state.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the name of the client's namespace.
    pub(super) fn namespace(&self) -> &str {
        &self.options.namespace
    }

    /// Returns whether the channel is a pair of rings.
    pub(super) fn has_rings(&self) -> bool {
        self.lock().line.as_ref().is_some_and(|line| line.channel.has_rings())
    }

    pub(super) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Makes a call and waits for its answer. Connects again if the server has ended, and repeats
    /// the call. `note` changes what the client has, before any other thread can connect again.
    pub(super) fn call<R>(
        &self,
        call: &Call<'_>,
        note: impl Fn(&mut Grants, Answer) -> Result<R, ClientError>,
    ) -> Result<R, ClientError> {
        if self.is_forked() {
            return Err(ClientError::Forked);
        }
        let started = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            let errno = match self.attempt(call) {
                Ok((outcome, mut shared)) => return note(&mut shared.grants, outcome?),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Transient(errno)) => errno,
            };
            let waited = started.elapsed();
            if waited >= self.options.retry_for {
                return Err(disconnected(&self.path, waited, errno));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            self.options.check_interrupt()?;
        }
    }

    /// Takes note of the epoch in an answer. Returns whether the pins of the answer are still
    /// there: they are not if the answer was given before a loss that is known.
    pub(super) fn note_epoch(&self, grants: &mut Grants, epoch: u64) -> bool {
        if epoch > grants.epoch {
            let rise = epoch - grants.epoch;
            self.change_pin_state(|state| {
                state.revocations += 1;
                state.expected = state.expected.wrapping_add(rise);
            });
            grants.pins.clear();
            grants.epoch = epoch;
        }
        epoch == grants.epoch
    }

    /// Releases pins of an epoch, or reservations. Never waits: what has no space now is sent
    /// later.
    pub(super) fn release(&self, epoch: u64, handles: Vec<BlockHandle>) {
        if self.is_forked() {
            return;
        }
        let mut shared = self.lock();
        if shared.line.as_ref().is_some_and(|line| line.broken.is_none()) {
            shared.owed.push((epoch, handles));
            self.send_owed(&mut shared);
        }
        // A broken connection is made again by the next call, which tells what the client has.
    }

    /// Sends releases, as far as there is space.
    fn send_owed(&self, shared: &mut Shared) {
        let Some(line) = shared.line.as_ref().filter(|line| line.broken.is_none()) else { return };
        let channel = Arc::clone(&line.channel);
        let mut buffers = shared.spare.pop().unwrap_or_default();
        while let Some((epoch, handles)) = shared.owed.pop() {
            let call = Call::Release { epoch, handles: handles.as_slice().into() };
            encode(&Encoded { id: NO_ANSWER, call: &call }, &mut buffers.request);
            if matches!(channel.try_send(&buffers.request), Ok(false)) {
                shared.owed.push((epoch, handles));
                break;
            }
        }
        shared.spare.push(buffers);
    }

    /// Tells the server that this process runs, if it has pins. If the connection is broken and the
    /// client has pins or reservations, connects again: the next server then need not keep them for
    /// a client of which it does not hear.
    pub(super) fn keep_pins(&self) {
        if self.is_forked() {
            return;
        }
        let mut shared = self.lock();
        if let Some(line) = shared.line.as_mut().filter(|it| it.channel.has_ended()) {
            line.broken.get_or_insert(Errno::CONNRESET);
            self.changed.notify_all();
        }
        let has_pins = !shared.grants.pins.is_empty();
        let has_anything = has_pins || !shared.grants.reservations.is_empty();
        if has_anything && shared.line.as_ref().is_none_or(|line| line.broken.is_some()) {
            // The interrupt looks for signals of the thread that makes a call, which this is not.
            let options = ConnectOptions { interrupt: None, ..self.options.clone() };
            let until = Instant::now().checked_add(options.answer_within);
            // If it fails, the next call or the next look connects again.
            drop(self.reconnect(shared, Limits { options: &options, until }));
            return;
        }
        self.send_owed(&mut shared);
        drop(shared);
        if has_pins {
            self.tell(&Call::KeepPins);
        }
    }

    /// Sends a message that has no answer, if there is a connection and space. Never waits. Returns
    /// the number of the connection that has taken it.
    pub(super) fn tell(&self, call: &Call<'_>) -> Option<u64> {
        if self.is_forked() {
            return None;
        }
        let mut shared = self.lock();
        let line = shared.line.as_ref().filter(|line| line.broken.is_none())?;
        let (number, channel) = (line.number, Arc::clone(&line.channel));
        let mut buffers = shared.spare.pop().unwrap_or_default();
        drop(shared);
        encode(&Encoded { id: NO_ANSWER, call }, &mut buffers.request);
        // A ring takes messages for a server that has ended.
        let sent = channel.try_send(&buffers.request) == Ok(true) && !channel.has_ended();
        self.lock().spare.push(buffers);
        sent.then_some(number)
    }

    /// Says that the client writes no more.
    pub(super) fn say_goodbye(&self) {
        if let Some(number) = self.tell(&Call::Goodbye) {
            self.lock().said_goodbye = number;
        }
    }

    /// Sends a call until the channel takes it.
    fn send(&self, channel: &Channel, message: &[u8], limits: Limits<'_>) -> Result<(), Failure> {
        while !channel.try_send(message).map_err(Failure::Transient)? {
            limits.check()?;
            channel.wait_for_space().map_err(Failure::Transient)?;
        }
        Ok(())
    }

    fn attempt(&self, call: &Call<'_>) -> Result<(Outcome, MutexGuard<'_, Shared>), Failure> {
        let waits_for = match call {
            Call::Events { wait_ms, .. } => Duration::from_millis(u64::from(*wait_ms)),
            _ => Duration::ZERO,
        };
        let limit = self.options.answer_within.saturating_add(waits_for);
        let limits = Limits { options: &self.options, until: Instant::now().checked_add(limit) };
        let mut shared = self.lock();
        while shared.line.as_ref().is_none_or(|line| line.broken.is_some()) {
            shared = self.reconnect(shared, limits)?;
        }
        if !shared.owed.is_empty() {
            self.send_owed(&mut shared);
        }
        let line = shared.line.as_mut().expect("the connection was just made");
        let (number, channel) = (line.number, Arc::clone(&line.channel));
        line.next_id = line.next_id.checked_add(1).unwrap_or(NO_ANSWER + 1);
        let id = line.next_id;
        line.waiting.push((id, None));
        let mut buffers = shared.spare.pop().unwrap_or_default();
        drop(shared);
        let buffer = &mut buffers.request;
        encode(&Encoded { id, call }, buffer);
        let limit = MAX_MESSAGE;
        let sent = match buffer.len() {
            len if len > limit => {
                Err(Failure::Final(CallError::BatchTooLong { len, limit }.into()))
            }
            _ => self.send(&channel, buffer, limits),
        };
        let mut shared = self.lock();
        if let Err(failure) = sent {
            if let Some(line) = shared.line.as_mut().filter(|line| line.number == number) {
                line.remove(id);
                // Nothing of a call that has found no space was sent.
                if let Failure::Transient(errno) = failure
                    && errno != Errno::TIMEDOUT
                {
                    line.broken.get_or_insert(errno);
                    self.changed.notify_all();
                }
            }
            return Err(failure);
        }
        loop {
            let Some(line) = shared.line.as_mut().filter(|line| line.number == number) else {
                return Err(Failure::Transient(Errno::CONNRESET));
            };
            if let Some(outcome) = line.remove_answered(id) {
                shared.spare.push(buffers);
                return Ok((outcome, shared));
            }
            if let Some(errno) = line.broken {
                line.remove(id);
                return Err(Failure::Transient(errno));
            }
            if line.reading {
                let (guard, interrupted) = self.wait(shared, limits);
                shared = guard;
                if let Err(failure) = interrupted {
                    self.abandon(shared, number, id);
                    return Err(failure);
                }
                continue;
            }
            line.reading = true;
            drop(shared);
            let received = receive(&channel, &mut buffers.answer, limits);
            shared = self.lock();
            let mut unwanted = Vec::new();
            let mut interrupted = None;
            let mut of_another = false;
            if let Some(line) = shared.line.as_mut().filter(|line| line.number == number) {
                line.reading = false;
                match received {
                    Ok(len) => line.take(Ok(decode::<Response>(&buffers.answer[..len]))),
                    Err(Failure::Transient(errno)) if errno != Errno::TIMEDOUT => {
                        line.take(Err(errno));
                    }
                    Err(failure) => interrupted = Some(failure),
                }
                of_another = line.broken.is_none() && !line.is_answered(id);
                unwanted = std::mem::take(&mut line.unwanted);
            }
            // The call costs a system call even if no thread waits.
            if shared.sleepers > 0 {
                self.changed.notify_all();
            }
            if let Some(failure) = interrupted {
                self.abandon(shared, number, id);
                return Err(failure);
            }
            if !unwanted.is_empty() {
                drop(shared);
                unwanted.into_iter().for_each(|(epoch, handles)| self.release(epoch, handles));
                shared = self.lock();
            }
            if of_another {
                // The server may send such answers without an end.
                drop(shared);
                let over = limits.check();
                shared = self.lock();
                if let Err(failure) = over {
                    self.abandon(shared, number, id);
                    return Err(failure);
                }
            }
        }
    }

    /// Waits until another thread has read an answer. The error says that the call is to end.
    fn wait<'a>(
        &'a self,
        mut shared: MutexGuard<'a, Shared>,
        limits: Limits<'_>,
    ) -> (MutexGuard<'a, Shared>, Result<(), Failure>) {
        shared.sleepers += 1;
        let waited = self.changed.wait_timeout(shared, self.options.look());
        let (mut shared, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        shared.sleepers -= 1;
        if !timeout.timed_out() {
            return (shared, Ok(()));
        }
        // The function may wait for a lock, such as an interpreter's.
        drop(shared);
        let over = limits.check();
        (self.lock(), over)
    }

    /// Gives up a request. What its answer gives, now or later, is released.
    fn abandon(&self, mut shared: MutexGuard<'_, Shared>, number: u64, id: u32) {
        let Some(line) = shared.line.as_mut().filter(|line| line.number == number) else { return };
        let unwanted = match line.remove_answered(id) {
            Some(outcome) => handles_of(&outcome),
            None => {
                line.remove(id);
                line.abandoned.insert(id);
                None
            }
        };
        drop(shared);
        if let Some((epoch, handles)) = unwanted {
            self.release(epoch, handles);
        }
    }

    /// Connects again, and tells the server what the client has, or waits until another thread has
    /// tried. The lock is free meanwhile: pins and reservations can be dropped.
    fn reconnect<'a>(
        &'a self,
        mut shared: MutexGuard<'a, Shared>,
        limits: Limits<'_>,
    ) -> Result<MutexGuard<'a, Shared>, Failure> {
        if shared.replaced {
            return Err(Failure::Final(ClientError::MemoryReplaced));
        }
        if shared.connecting {
            let (shared, over) = self.wait(shared, limits);
            return over.map(|()| shared);
        }
        shared.connecting = true;
        let (token, named) = (shared.token, Named::of(&shared.grants));
        drop(shared);
        let greeted = self.greet_again(token, &named, limits);
        let mut shared = self.lock();
        shared.connecting = false;
        self.changed.notify_all();
        if let Err(Failure::Final(ClientError::MemoryReplaced)) = greeted {
            shared.replaced = true;
        }
        let (channel, token, view, kept) = greeted?;
        // What was owed on the connection of before was not named.
        shared.owed.clear();
        match kept {
            Resumption::Session { epoch, pins, pin_word } => {
                let mut dropped = named.dropped_since(&shared.grants, pins);
                shared.grants.epoch = epoch;
                self.change_pin_state(|state| {
                    (state.view, state.expected) = (view, pin_word);
                    state.revocations += u64::from(!pins);
                });
                if !pins {
                    shared.grants.pins.clear();
                }
                while !dropped.is_empty() {
                    let rest = dropped.split_off(dropped.len().min(MAX_BATCH));
                    shared.owed.push((epoch, std::mem::replace(&mut dropped, rest)));
                }
            }
            Resumption::Nothing { epoch, pin_word } => {
                // The server has ended the session.
                self.change_pin_state(|state| {
                    (state.view, state.expected) = (view, pin_word);
                    state.revocations += 1;
                    state.sessions += 1;
                });
                shared.grants.revoke_all();
                shared.grants.epoch = epoch;
            }
        }
        shared.token = token;
        shared.lines += 1;
        shared.line = Some(Line::new(shared.lines, channel));
        Ok(shared)
    }

    /// Makes the next connection.
    fn greet_again(
        &self,
        token: u64,
        named: &Named,
        limits: Limits<'_>,
    ) -> Result<(Channel, u64, SessionView, Resumption), Failure> {
        let Greeted { socket, welcome, view, .. } = greet(&self.path, limits, token)?;
        if welcome.node_id != self.node_id {
            return Err(Failure::Final(ClientError::MemoryReplaced));
        }
        let kept = if welcome.resumed {
            keep(&socket, named, limits)?
        } else {
            Resumption::Nothing { epoch: welcome.epoch, pin_word: welcome.pin_word }
        };
        let channel = open_channel(socket, welcome.resumed, limits)?;
        Ok((channel, welcome.token, view, kept))
    }
}

impl Drop for Connection {
    /// Ends the session, which otherwise lasts as long as this process. The client has said so
    /// already, unless it could not be set up, a thread of it has connected again since, or the
    /// server is away.
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        let has_said = |shared: &Shared| {
            shared.line.as_ref().is_some_and(|line| line.number == shared.said_goodbye)
        };
        if !has_said(&self.lock()) {
            self.say_goodbye();
        }
        let shared = self.lock();
        if !has_said(&shared) && !shared.replaced {
            let say: farewell::SayGoodbye = |path, options, token| {
                // Another error says that the session is no longer this client's.
                !matches!(say_goodbye_at(path, options, token), Err(Failure::Transient(_)))
            };
            farewell::say_later(self.path.clone(), &self.options, shared.token, say);
        }
    }
}

/// Says goodbye to the server at `path` for the client of a session.
fn say_goodbye_at(path: &Path, options: &ConnectOptions, token: u64) -> Result<(), Failure> {
    let limits = Limits { options, until: Instant::now().checked_add(options.answer_within) };
    let Greeted { socket, welcome, .. } = greet(path, limits, token)?;
    if welcome.resumed {
        keep(&socket, &Named::default(), limits)?;
    }
    // A server that does not know the session has begun one.
    leave(&socket);
    Ok(())
}

/// Says goodbye on a connection that no other thread uses.
fn leave(socket: &OwnedFd) {
    let mut buffer = Vec::new();
    encode(&Encoded { id: NO_ANSWER, call: &Call::Goodbye }, &mut buffer);
    // It has space: each request has had its answer.
    let _ = socket::send(socket, &buffer, &[], SendFlags::DONTWAIT);
}

/// What a server still has of a client that connects again.
enum Resumption {
    /// The session with its reservations, and either all of its pins or none.
    Session { epoch: u64, pins: bool, pin_word: u64 },
    /// A new session.
    Nothing { epoch: u64, pin_word: u64 },
}

/// What a client has named to a server when it connects again.
#[derive(Default)]
struct Named {
    pins: HashMap<BlockHandle, u32>,
    reservations: Vec<BlockHandle>,
}

impl Named {
    fn of(grants: &Grants) -> Named {
        let reservations = grants.reservations.keys().copied().collect();
        Named { pins: grants.pins(), reservations }
    }

    /// Returns what the client has dropped since: with the pins, if the server still has them.
    fn dropped_since(&self, grants: &Grants, with_pins: bool) -> Vec<BlockHandle> {
        let has = |handle: &&BlockHandle| !grants.reservations.contains_key(handle);
        let mut dropped: Vec<BlockHandle> = self.reservations.iter().filter(has).copied().collect();
        if with_pins {
            let left = grants.pins();
            for (handle, count) in &self.pins {
                let fewer = count.saturating_sub(left.get(handle).copied().unwrap_or(0));
                dropped.extend(std::iter::repeat_n(*handle, fewer as usize));
            }
        }
        dropped
    }
}

/// What ends a wait.
#[derive(Clone, Copy)]
struct Limits<'a> {
    options: &'a ConnectOptions,
    /// `None`: never.
    until: Option<Instant>,
}

impl Limits<'_> {
    /// Fails if the wait is to end, with [`Errno::TIMEDOUT`] if its time is over.
    fn check(&self) -> Result<(), Failure> {
        self.options.check_interrupt()?;
        match self.until {
            Some(until) if Instant::now() >= until => Err(Failure::Transient(Errno::TIMEDOUT)),
            _ => Ok(()),
        }
    }
}

/// Receives a message, or ends because the call is to end.
fn receive(channel: &Channel, buffer: &mut Vec<u8>, limits: Limits<'_>) -> Result<usize, Failure> {
    loop {
        match channel.receive(buffer) {
            // The time of `ConnectOptions::look` is over.
            Err(Errno::AGAIN) => limits.check()?,
            received => return received.map_err(Failure::Transient),
        }
    }
}

impl Line {
    fn new(number: u64, channel: Channel) -> Line {
        Line {
            number,
            channel: Arc::new(channel),
            broken: None,
            next_id: NO_ANSWER,
            waiting: Vec::new(),
            abandoned: HashSet::new(),
            unwanted: Vec::new(),
            reading: false,
        }
    }

    /// Ends the wait for an answer.
    fn remove(&mut self, id: u32) {
        self.waiting.retain(|(of, _)| *of != id);
    }

    /// Returns whether an answer has come.
    fn is_answered(&self, id: u32) -> bool {
        self.waiting.iter().any(|(of, it)| *of == id && it.is_some())
    }

    /// Ends the wait for an answer that has come.
    fn remove_answered(&mut self, id: u32) -> Option<Outcome> {
        let place = self.waiting.iter().position(|(of, it)| *of == id && it.is_some())?;
        self.waiting.swap_remove(place).1
    }

    /// Gives an answer to the thread that waits for it.
    fn take(&mut self, response: Result<Option<Response>, Errno>) {
        match response {
            Ok(Some(Response { id, result })) => {
                if let Some((_, place)) = self.waiting.iter_mut().find(|(of, _)| *of == id) {
                    *place = Some(result);
                } else if self.abandoned.remove(&id) {
                    self.unwanted.extend(handles_of(&result));
                }
                // Any other answer is that of a server that went mad.
            }
            Ok(None) => self.broken = Some(Errno::CONNRESET),
            Err(errno) => self.broken = Some(errno),
        }
    }
}

/// Returns the pins and reservations that an answer gives, and the epoch of the pins.
fn handles_of(outcome: &Outcome) -> Option<(u64, Vec<BlockHandle>)> {
    match outcome {
        Ok(Answer::Pinned { epoch, blocks, .. }) => {
            Some((*epoch, blocks.iter().flatten().map(|it| it.handle).collect()))
        }
        Ok(Answer::Reserved(blocks)) => {
            Some((NO_PINS, blocks.iter().map(|it| it.handle).collect()))
        }
        _ => None,
    }
}

/// Why an attempt failed.
enum Failure {
    /// Another one may succeed.
    Transient(Errno),
    Final(ClientError),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        Failure::Final(error)
    }
}

/// As [`Request`], with a borrowed call.
#[derive(serde::Serialize)]
struct Encoded<'a> {
    id: u32,
    call: &'a Call<'a>,
}

fn disconnected(path: &Path, waited: Duration, errno: Errno) -> ClientError {
    let (path, error) = (path.display().to_string(), errno.into());
    if is_forbidden(errno) {
        let own = rustix::process::geteuid().as_raw();
        return ClientError::SocketNotAllowed { path, own, error };
    }
    ClientError::Disconnected { path, waited_ms: waited.as_millis() as u64, error }
}

/// Returns whether the user of this process may not reach the socket.
fn is_forbidden(errno: Errno) -> bool {
    matches!(errno, Errno::ACCESS | Errno::PERM)
}

/// A server that has answered the greeting.
struct Greeted {
    socket: OwnedFd,
    /// The memory file.
    file: OwnedFd,
    view: SessionView,
    welcome: Welcome,
}

/// Connects and greets.
fn greet(path: &Path, limits: Limits<'_>, token: u64) -> Result<Greeted, Failure> {
    let look = limits.options.look();
    let socket = socket::connect_within(path, look).map_err(Failure::Transient)?;
    // Before the first byte: what the client says and stores is for this server alone.
    let uid = socket::peer_uid(&socket).map_err(Failure::Transient)?;
    limits.options.check_server(path, uid)?;
    let ConnectOptions { namespace, read_only, .. } = limits.options;
    let (version, read_only) = (PROTOCOL_VERSION, *read_only);
    let hello = Call::Hello { version, namespace, read_only, token };
    let (answer, descriptors) =
        exchange(&socket, &hello, limits).map_err(|failure| reason_of_close(&socket, failure))?;
    let Answer::Welcome(welcome) = answer else {
        return Err(ClientError::Protocol { what: "the server did not answer the greeting" }.into());
    };
    let Ok([file, sessions]) = <[OwnedFd; 2]>::try_from(descriptors) else {
        return Err(ClientError::Protocol {
            what: "the server answered the greeting without the files of its memory",
        }
        .into());
    };
    let view = SessionView::attach(sessions, welcome.session);
    let no_session = || ClientError::Protocol { what: "the server sent an invalid session number" };
    let view = view.map_err(ClientError::Memory)?.ok_or_else(no_session)?;
    Ok(Greeted { socket, file, view, welcome })
}

/// Returns the reason for which the server has closed the connection before it read the greeting,
/// if it sent one.
fn reason_of_close(socket: &OwnedFd, failure: Failure) -> Failure {
    let Failure::Transient(Errno::PIPE | Errno::CONNRESET) = failure else { return failure };
    let mut buffer = vec![0; 4096];
    let packet = socket::receive(socket, &mut buffer, RecvFlags::DONTWAIT);
    match packet.ok().and_then(|packet| decode::<Response>(&buffer[..packet.len])) {
        Some(Response { result: Err(error), .. }) => ClientError::Call(error).into(),
        _ => failure,
    }
}

/// Asks for rings if the client wants them and the server has some. `resumed` says that the session
/// stays if that fails.
fn open_channel(socket: OwnedFd, resumed: bool, limits: Limits<'_>) -> Result<Channel, Failure> {
    if !limits.options.rings {
        return Ok(Channel::by_socket(socket));
    }
    let failure = match exchange(&socket, &Call::Rings, limits) {
        Ok((Answer::Rings, descriptors)) => return Ok(Channel::by_rings(socket, descriptors)?),
        Ok(_) => {
            ClientError::Protocol { what: "the server did not answer the request for rings" }.into()
        }
        Err(Failure::Final(ClientError::Call(CallError::TooMany { .. }))) => {
            return Ok(Channel::by_socket(socket));
        }
        Err(failure) => failure,
    };
    if !resumed {
        // The session that was just begun is not used.
        leave(&socket);
    }
    Err(failure)
}

/// Tells a server what this client has, which its predecessor gave it.
fn keep(socket: &OwnedFd, named: &Named, limits: Limits<'_>) -> Result<Resumption, Failure> {
    let pins: Vec<(BlockHandle, u32)> =
        named.pins.iter().map(|(handle, count)| (*handle, *count)).collect();
    for pins in pins.chunks(KEPT_PER_MESSAGE) {
        let call = Call::Keep { pins: pins.to_vec(), reservations: Vec::new() };
        exchange(socket, &call, limits)?;
    }
    for reservations in named.reservations.chunks(KEPT_PER_MESSAGE) {
        let reservations = reservations.to_vec();
        exchange(socket, &Call::Keep { pins: Vec::new(), reservations }, limits)?;
    }
    match exchange(socket, &Call::Kept, limits)?.0 {
        Answer::Kept { epoch, pins_kept, pin_word } => {
            Ok(Resumption::Session { epoch, pins: pins_kept, pin_word })
        }
        _ => Err(ClientError::Protocol {
            what: "the server did not answer the request to resume the session",
        }
        .into()),
    }
}

/// Sends one request on a connection that no other thread uses, and receives its answer.
fn exchange(
    socket: &OwnedFd,
    call: &Call<'_>,
    limits: Limits<'_>,
) -> Result<(Answer, Vec<OwnedFd>), Failure> {
    let id = NO_ANSWER + 1;
    let mut buffer = Vec::new();
    encode(&Encoded { id, call }, &mut buffer);
    socket::send(socket, &buffer, &[], SendFlags::empty()).map_err(Failure::Transient)?;
    buffer.resize(MAX_MESSAGE, 0);
    let packet = loop {
        match socket::receive(socket, &mut buffer, RecvFlags::empty()) {
            Err(Errno::AGAIN) => limits.check()?,
            received => break received.map_err(Failure::Transient)?,
        }
    };
    if packet.len == 0 {
        return Err(Failure::Transient(Errno::CONNRESET));
    }
    match decode::<Response>(&buffer[..packet.len]) {
        Some(Response { result, .. }) => {
            let answer = result.map_err(ClientError::Call)?;
            Ok((answer, packet.descriptors))
        }
        None => Err(ClientError::Protocol {
            what: "the server sent an answer that this release cannot decode",
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Granted;

    #[test]
    fn what_an_abandoned_call_is_given_is_released() {
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let mut line = Line::new(1, Channel::by_socket(socket.into()));
        let handle = BlockHandle { slot: 3, generation: 7 };
        let granted = Granted { handle, offset: 0, len: 1, checksum: None };
        let pinned = || {
            let blocks = vec![None, Some(granted)];
            Ok(Answer::Pinned { epoch: 9, blocks, pending: Vec::new() })
        };
        line.waiting.push((5, None));
        line.abandoned.insert(6);
        for id in [5, 6, 7] {
            line.take(Ok(Some(Response { id, result: pinned() })));
        }
        assert!(matches!(line.remove_answered(5), Some(Ok(Answer::Pinned { .. }))));
        assert_eq!((line.unwanted, line.abandoned.len()), (vec![(9, vec![handle])], 0));
    }
}
