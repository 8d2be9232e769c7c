//! [`Connection`]: the calls of many threads to a server that may be replaced.
//!
//! A thread sends its request and then waits for its answer. One of the waiting threads reads the
//! channel, and passes the others their answers. Requests of several threads overlap without a
//! background thread.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::channel::Channel;
use super::grants::Grants;
use super::greeting::{
    FORBIDDEN_FOR, Failure, Greeted, Limits, disconnected, greet, is_forbidden, leave,
    open_channel, receive,
};
use super::link::{Link, Outcome, handles_of};
use super::resume::{Named, Resumption, resume_grants};
use super::{ClientError, ConnectOptions, farewell};
use crate::error::CallError;
use crate::node::{BlockHandle, MAX_BATCH};
use crate::protocol::{
    Answer, Call, MAX_MESSAGE, NO_ANSWER, Welcome, decode_response, encode_request,
};
use crate::session_file::SessionView;

/// The longest time between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Memory for the messages of one call.
#[derive(Debug, Default)]
struct Buffers {
    request: Vec<u8>,
    answer: Vec<u8>,
}

/// A request that was sent.
#[derive(Debug)]
pub(super) struct Sent {
    id: u32,
    /// The number of the connection.
    link: u64,
    channel: Arc<Channel>,
    buffers: Buffers,
}

#[derive(Debug)]
struct Shared {
    link: Option<Link>,
    grants: Grants,
    /// The server has other memory.
    replaced: bool,
    /// Whether a thread connects again, without the lock.
    connecting: bool,
    /// Releases that the channel had no space for.
    pending_releases: Vec<(u64, Vec<BlockHandle>)>,
    links: u64,
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
    memory_len: u64,
    /// Whether devices have the memory registered, or will. It never becomes false.
    registers: AtomicBool,
    shared: Mutex<Shared>,
    changed: Condvar,
    /// The process that connected.
    process: u32,
    /// Shows whether pins were revoked. Changed under the lock of `shared`.
    pin_state: RwLock<PinState>,
}

/// Shows a thread whether pins were revoked.
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
        let registers = !options.registrars.0.is_empty();
        let (channel, file, view, welcome) = loop {
            let until = Instant::now().checked_add(options.answer_within);
            let limits = Limits { options, until };
            let greeted = greet(path, limits, 0, registers).and_then(|greeted| {
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
        let link = Link::new(1, channel);
        let shared = Shared {
            link: Some(link),
            grants: Grants::of_epoch(welcome.epoch),
            replaced: false,
            connecting: false,
            pending_releases: Vec::new(),
            links: 1,
            said_goodbye: 0,
            token: welcome.token,
            spare: Vec::new(),
            sleepers: 0,
        };
        let connection = Connection {
            path: path.to_path_buf(),
            options: options.clone(),
            node_id: welcome.node_id,
            memory_len: welcome.memory_len,
            registers: AtomicBool::new(registers),
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

    /// Returns whether the server still has the pins that it granted after a number of revocations.
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
        self.lock().link.as_ref().is_some_and(|link| link.channel.has_rings())
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
        self.finish(call, None, note)
    }

    /// Sends a call, for [`finish`](Self::finish). `None`: it was not sent, and that sends it.
    pub(super) fn begin(&self, call: &Call<'_>) -> Option<Sent> {
        if self.is_forked() { None } else { self.send_call(call, self.limits(call)).ok() }
    }

    /// Waits for the answer of a call that was sent, as [`call`](Self::call) does for one that was
    /// not.
    pub(super) fn finish<R>(
        &self,
        call: &Call<'_>,
        mut sent: Option<Sent>,
        note: impl Fn(&mut Grants, Answer) -> Result<R, ClientError>,
    ) -> Result<R, ClientError> {
        if self.is_forked() {
            return Err(ClientError::Forked);
        }
        let started = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            let limits = self.limits(call);
            let sent = sent.take().map_or_else(|| self.send_call(call, limits), Ok);
            let errno = match sent.and_then(|sent| self.receive_answer(sent, limits)) {
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
    /// there: they are not if the server answered before a revocation that is known.
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
        if shared.link.as_ref().is_some_and(|link| link.broken.is_none()) {
            shared.pending_releases.push((epoch, handles));
            self.send_pending_releases(&mut shared);
        }
        // A broken connection is made again by the next call, which names the grants of the client.
    }

    /// Sends releases, as far as there is space.
    fn send_pending_releases(&self, shared: &mut Shared) {
        let Some(link) = shared.link.as_ref().filter(|link| link.broken.is_none()) else { return };
        let channel = Arc::clone(&link.channel);
        let mut buffers = shared.spare.pop().unwrap_or_default();
        while let Some((epoch, handles)) = shared.pending_releases.pop() {
            let call = Call::Release { epoch, handles: handles.as_slice().into() };
            encode_request(NO_ANSWER, &call, &mut buffers.request);
            if matches!(channel.try_send(&buffers.request), Ok(false)) {
                shared.pending_releases.push((epoch, handles));
                break;
            }
        }
        shared.spare.push(buffers);
    }

    /// Notifies the server that this process runs, if it has pins. If the connection is broken and
    /// the client has pins or reservations, connects again: the next server then need not hold them
    /// for a client of which it does not hear.
    pub(super) fn resume_pins(&self) {
        if self.is_forked() {
            return;
        }
        let mut shared = self.lock();
        if let Some(link) = shared.link.as_mut().filter(|it| it.channel.has_ended()) {
            link.broken.get_or_insert(Errno::CONNRESET);
            self.changed.notify_all();
        }
        let has_pins = !shared.grants.pins.is_empty();
        let has_anything = has_pins || !shared.grants.reservations.is_empty();
        if has_anything && shared.link.as_ref().is_none_or(|link| link.broken.is_some()) {
            // The interrupt looks for signals of the thread that makes a call, which this is not.
            let options = ConnectOptions { interrupt: None, ..self.options.clone() };
            let until = Instant::now().checked_add(options.answer_within);
            // If it fails, the next call or the next look connects again.
            drop(self.reconnect(shared, Limits { options: &options, until }));
            return;
        }
        self.send_pending_releases(&mut shared);
        drop(shared);
        if has_pins {
            self.notify(&Call::KeepPins);
        }
    }

    /// Sends a message that has no answer, if there is a connection and space. Never waits. Returns
    /// the number of the connection that has taken it.
    pub(super) fn notify(&self, call: &Call<'_>) -> Option<u64> {
        if self.is_forked() {
            return None;
        }
        let mut shared = self.lock();
        let link = shared.link.as_ref().filter(|link| link.broken.is_none())?;
        let (number, channel) = (link.number, Arc::clone(&link.channel));
        let mut buffers = shared.spare.pop().unwrap_or_default();
        drop(shared);
        encode_request(NO_ANSWER, call, &mut buffers.request);
        // A ring takes messages for a server that has ended.
        let sent = channel.try_send(&buffers.request) == Ok(true) && !channel.has_ended();
        self.lock().spare.push(buffers);
        sent.then_some(number)
    }

    /// Says that devices have the memory registered, or will: the server gives none of it back from
    /// now on.
    pub(super) fn note_registers(&self) {
        // Release: a thread that connects again meanwhile says so in its greeting.
        if !self.registers.swap(true, Ordering::AcqRel) {
            // A server that is away hears it from the next greeting.
            let _ = self.call(&Call::Registers, |_, _| Ok(()));
        }
    }

    /// Says that the client writes no more.
    pub(super) fn say_goodbye(&self) {
        if let Some(number) = self.notify(&Call::Goodbye) {
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

    fn limits(&self, call: &Call<'_>) -> Limits<'_> {
        let waits_for = match call {
            Call::Events { wait_ms, .. } => Duration::from_millis(u64::from(*wait_ms)),
            _ => Duration::ZERO,
        };
        let limit = self.options.answer_within.saturating_add(waits_for);
        Limits { options: &self.options, until: Instant::now().checked_add(limit) }
    }

    /// Sends a request. Connects again if the connection is broken.
    fn send_call(&self, call: &Call<'_>, limits: Limits<'_>) -> Result<Sent, Failure> {
        let mut shared = self.lock();
        while shared.link.as_ref().is_none_or(|link| link.broken.is_some()) {
            shared = self.reconnect(shared, limits)?;
        }
        if !shared.pending_releases.is_empty() {
            self.send_pending_releases(&mut shared);
        }
        let link = shared.link.as_mut().expect("the connection was just made");
        let (number, channel) = (link.number, Arc::clone(&link.channel));
        link.next_id = link.next_id.checked_add(1).unwrap_or(NO_ANSWER + 1);
        let id = link.next_id;
        link.waiting.push((id, None));
        let mut buffers = shared.spare.pop().unwrap_or_default();
        drop(shared);
        let buffer = &mut buffers.request;
        encode_request(id, call, buffer);
        let limit = MAX_MESSAGE;
        let sent = match buffer.len() {
            len if len > limit => {
                Err(Failure::Final(CallError::BatchTooLong { len, limit }.into()))
            }
            _ => self.send(&channel, buffer, limits),
        };
        if let Err(failure) = sent {
            let mut shared = self.lock();
            if let Some(link) = shared.link.as_mut().filter(|link| link.number == number) {
                link.remove(id);
                // Nothing of a call that has found no space was sent.
                if let Failure::Transient(errno) = failure
                    && errno != Errno::TIMEDOUT
                {
                    link.broken.get_or_insert(errno);
                    self.changed.notify_all();
                }
            }
            return Err(failure);
        }
        Ok(Sent { id, link: number, channel, buffers })
    }

    /// Waits for the answer to a request.
    fn receive_answer(
        &self,
        sent: Sent,
        limits: Limits<'_>,
    ) -> Result<(Outcome, MutexGuard<'_, Shared>), Failure> {
        let Sent { id, link: number, channel, mut buffers } = sent;
        let mut shared = self.lock();
        loop {
            let Some(link) = shared.link.as_mut().filter(|link| link.number == number) else {
                return Err(Failure::Transient(Errno::CONNRESET));
            };
            if let Some(outcome) = link.remove_answered(id) {
                shared.spare.push(buffers);
                return Ok((outcome, shared));
            }
            if let Some(errno) = link.broken {
                link.remove(id);
                return Err(Failure::Transient(errno));
            }
            if link.reading {
                let (guard, interrupted) = self.wait(shared, limits);
                shared = guard;
                if let Err(failure) = interrupted {
                    self.abandon(shared, number, id);
                    return Err(failure);
                }
                continue;
            }
            link.reading = true;
            drop(shared);
            let received = receive(&channel, &mut buffers.answer, limits);
            shared = self.lock();
            let mut unwanted = Vec::new();
            let mut interrupted = None;
            let mut of_another = false;
            if let Some(link) = shared.link.as_mut().filter(|link| link.number == number) {
                link.reading = false;
                match received {
                    Ok(len) => link.take(Ok(decode_response(&buffers.answer[..len]))),
                    Err(Failure::Transient(errno)) if errno != Errno::TIMEDOUT => {
                        link.take(Err(errno));
                    }
                    Err(failure) => interrupted = Some(failure),
                }
                of_another = link.broken.is_none() && !link.is_answered(id);
                unwanted = std::mem::take(&mut link.unwanted);
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

    /// Gives up a request that was sent.
    pub(super) fn abandon_sent(&self, sent: Sent) {
        if !self.is_forked() {
            self.abandon(self.lock(), sent.link, sent.id);
        }
    }

    /// Gives up a request. What its answer gives, now or later, is released.
    fn abandon(&self, mut shared: MutexGuard<'_, Shared>, number: u64, id: u32) {
        let Some(link) = shared.link.as_mut().filter(|link| link.number == number) else { return };
        let unwanted = match link.remove_answered(id) {
            Some(outcome) => handles_of(&outcome),
            None => {
                link.remove(id);
                link.abandoned.insert(id);
                None
            }
        };
        drop(shared);
        if let Some((epoch, handles)) = unwanted {
            self.release(epoch, handles);
        }
    }

    /// Connects again, and names to the server what the client has, or waits until another thread
    /// has tried. The lock is free meanwhile: pins and reservations can be dropped.
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
        let (channel, token, view, held) = greeted?;
        // The pending releases of the earlier connection were not named.
        shared.pending_releases.clear();
        match held {
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
                    shared.pending_releases.push((epoch, std::mem::replace(&mut dropped, rest)));
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
        shared.links += 1;
        shared.link = Some(Link::new(shared.links, channel));
        Ok(shared)
    }

    /// Makes the next connection.
    fn greet_again(
        &self,
        token: u64,
        named: &Named,
        limits: Limits<'_>,
    ) -> Result<(Channel, u64, SessionView, Resumption), Failure> {
        // Acquire: pairs with the swap of `note_registers`.
        let registers = self.registers.load(Ordering::Acquire);
        let greeted = greet(&self.path, limits, token, registers)?;
        let Greeted { socket, welcome, view, .. } = greeted;
        // Without the session, nothing has held the pages that devices have.
        let has_lost_pages = registers && welcome.is_elastic && !welcome.resumed;
        // Blocks may lie behind what this process has mapped.
        let is_longer = welcome.memory_len > self.memory_len;
        if welcome.node_id != self.node_id || is_longer || has_lost_pages {
            return Err(Failure::Final(ClientError::MemoryReplaced));
        }
        let held = if welcome.resumed {
            resume_grants(&socket, named, limits)?
        } else {
            Resumption::Nothing { epoch: welcome.epoch, pin_word: welcome.pin_word }
        };
        let channel = open_channel(socket, welcome.resumed, limits)?;
        Ok((channel, welcome.token, view, held))
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
            shared.link.as_ref().is_some_and(|link| link.number == shared.said_goodbye)
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
    let Greeted { socket, welcome, .. } = greet(path, limits, token, false)?;
    if welcome.resumed {
        resume_grants(&socket, &Named::default(), limits)?;
    }
    // A server that does not know the session has begun one.
    leave(&socket);
    Ok(())
}
