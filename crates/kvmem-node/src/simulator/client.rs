//! [`Client`]: a client as a state machine, which speaks the protocol as the library's client does.
//!
//! The library's client blocks in its thread, so it is not this one. What it does with messages,
//! rings and words is done here in the same order: it greets, names its grants when it returns,
//! repeats the calls without an answer, and looks at its words after it has read bytes. The ends of
//! its rings and the view of its words are those of the library.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use kvmem_testkit::random::Random;

use super::contents::{MIN_LEN, Moment, ValueId};
use super::environment;
use super::wire::ClientEnd;
use super::world::Outside;
use crate::crc;
use crate::error::CallError;
use crate::node::{BlockHandle, Granted};
use crate::protocol::{
    Answer, BELL, Call, Commit, FIRST_ID, Key, NO_ANSWER, PROTOCOL_VERSION, Response,
    decode_response, encode_request,
};
use crate::ring::{self, ClientEnds};
use crate::session_file::{SessionView, before_writing};
use crate::test_stores::{Effect, effects_of};

/// The calls of one client that wait at a time.
const MAX_CALLS: usize = 3;

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Runs,
    /// Until a time.
    Stopped(u64),
    /// The kernel tears the process down: its memory, its files, and then its number.
    Ends(u8),
    /// Another process takes its place at a time.
    Gone(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It connects at a time.
    Away,
    Greeting,
    Resuming,
    ResumeEnding,
    AsksForRings,
    Open,
    /// It has said goodbye, and closes.
    Leaving,
}

/// A call of a thread of the client.
#[derive(Clone, Debug)]
enum Want {
    Lookup(Vec<Vec<u8>>),
    Acquire { keys: Vec<Vec<u8>>, prefix_only: bool, wait: bool, release: (u64, Vec<BlockHandle>) },
    Reserve { values: Vec<(Vec<u8>, u64)>, wait: bool },
    Commit { values: Vec<(BlockHandle, ValueId)>, parents: bool, priority: u8 },
    Remove(Vec<Vec<u8>>),
    Touch(Vec<Vec<u8>>),
    Locate(Vec<Vec<u8>>),
    Events { from: u64, wait_ms: u32 },
    Evict(u64),
    Resize(u64),
    Clear,
    KeepAlive,
    KeepPins,
    Stats,
}

#[derive(Clone, Debug)]
struct MadeCall {
    want: Want,
    /// When it was sent first.
    at: Moment,
    at_ms: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pin {
    pub(super) handle: BlockHandle,
    pub(super) granted: Granted,
    pub(super) value: ValueId,
}

#[derive(Clone, Debug)]
struct Held {
    granted: Granted,
    value: ValueId,
    written: usize,
    /// It is part of a commit.
    sent: bool,
}

/// The connection.
#[derive(Debug)]
struct ClientLink {
    end: ClientEnd,
    rings: Option<ClientEnds>,
    /// The server's stores of its last moment are taken back, and cannot be in this ring.
    ring_is_dead: bool,
    /// The client waits for a packet.
    asleep: bool,
    /// It has found no answer in its ring.
    tired: bool,
    /// The doorbell is due, if the server sleeps.
    looks_at_bell: bool,
    next_id: u32,
    waiting: BTreeMap<u32, MadeCall>,
}

/// The session of a client, and its words.
#[derive(Debug)]
struct ClientSession {
    token: u64,
    view: SessionView,
    epoch: u64,
    pin_word: u64,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) name: usize,
    pub(super) pid: u32,
    pub(super) number: u64,
    pub(super) life: Life,
    pub(super) uid: u32,
    namespace: usize,
    read_only: bool,
    wants_rings: bool,
    phase: Phase,
    /// It does nothing of its own before this time, in milliseconds.
    until: u64,
    link: Option<ClientLink>,
    session: Option<ClientSession>,
    /// The welcome of a greeting, until the session is resumed.
    welcomed: Option<(bool, u64, SessionView)>,
    pub(super) pins: Vec<Pin>,
    reservations: Vec<Held>,
    /// Pins to release, with their epoch.
    dropped: Vec<BlockHandle>,
    calls: VecDeque<MadeCall>,
    /// Stores to a ring that are still to be made.
    stores: VecDeque<Effect>,
    /// It makes no more calls, and gives back all that it has.
    winds_up: bool,
}

/// The outcome of a step of a client.
type Step = Result<Cow<'static, str>, String>;

impl Client {
    pub(super) fn new(name: usize, random: &mut Random, outside: &Outside) -> Client {
        let (pid, number) = environment::start_process();
        Client {
            name,
            pid,
            number,
            life: Life::Runs,
            uid: own_uid() + if outside.config.users { random.below(3) as u32 } else { 0 },
            namespace: random.below(outside.config.namespaces as u64) as usize,
            read_only: random.once_in(8),
            wants_rings: outside.config.rings && !random.once_in(3),
            phase: Phase::Away,
            until: 0,
            link: None,
            session: None,
            welcomed: None,
            pins: Vec::new(),
            reservations: Vec::new(),
            dropped: Vec::new(),
            calls: VecDeque::new(),
            stores: VecDeque::new(),
            winds_up: outside.winds_up,
        }
    }

    fn is_operator(&self) -> bool {
        self.uid == own_uid()
    }

    /// Returns whether the client has something to do now.
    pub(super) fn is_runnable(&self, now: u64, listens: bool) -> bool {
        match self.life {
            Life::Runs => {}
            Life::Stopped(until) | Life::Gone(until) => return now >= until,
            Life::Ends(_) => return true,
        }
        if !self.stores.is_empty() {
            return true;
        }
        let Some(link) = &self.link else {
            return now >= self.until && (listens || !self.winds_up) && !self.is_done();
        };
        if link.looks_at_bell || link.end.is_readable() {
            return true;
        }
        if link.rings.is_some() && !link.asleep && self.phase == Phase::Open {
            return true;
        }
        self.phase == Phase::Leaving || self.phase == Phase::Open && self.acts_itself(now)
    }

    fn acts_itself(&self, now: u64) -> bool {
        let Some(link) = &self.link else { return false };
        let writes = self.reservations.iter().any(|it| !it.sent);
        let has_place = link.waiting.len() < MAX_CALLS;
        match self.winds_up {
            true => link.waiting.is_empty(),
            false => has_place && (!self.calls.is_empty() || now >= self.until || writes),
        }
    }

    /// Returns the time at which the client acts by itself.
    pub(super) fn next_time(&self) -> Option<u64> {
        match self.life {
            Life::Runs if self.link.is_some() && self.phase != Phase::Open => None,
            Life::Runs if self.link.as_ref().is_some_and(|it| it.waiting.len() >= MAX_CALLS) => {
                None
            }
            Life::Runs if self.winds_up && self.link.is_some() => None,
            Life::Runs if self.is_done() => None,
            Life::Runs => Some(self.until),
            Life::Stopped(until) | Life::Gone(until) => Some(until),
            Life::Ends(_) => None,
        }
    }

    /// Returns whether the client waits for an answer, and for which.
    pub(super) fn waits_for(&self) -> Option<String> {
        let link = self.link.as_ref().filter(|_| self.life == Life::Runs)?;
        let is_event = |it: &MadeCall| matches!(it.want, Want::Events { .. });
        match self.phase {
            Phase::Open => {
                link.waiting.iter().find(|(_, it)| !is_event(it)).map(|it| format!("{it:?}"))
            }
            Phase::Away | Phase::Leaving => None,
            phase => Some(format!("{phase:?}")),
        }
    }

    /// Returns whether the client has given back all that it had.
    pub(super) fn is_done(&self) -> bool {
        self.winds_up && self.link.is_none() && self.session.is_none()
    }

    /// Returns an error if bytes of the client's grants are those of others.
    pub(super) fn check(&self, outside: &Outside) -> Result<(), String> {
        let Some(session) = &self.session else { return Ok(()) };
        if matches!(self.life, Life::Ends(_) | Life::Gone(_)) {
            return Ok(());
        }
        for pin in &self.pins {
            let Granted { offset, len, .. } = pin.granted;
            let is = outside.contents.has(pin.value, offset, len as usize, false);
            if !is && session.view.has_pin_word(session.pin_word) {
                return Err(format!("client {}: {pin:?} has other bytes, and is valid", self.name));
            }
        }
        for held in &self.reservations {
            let is = outside.contents.has(held.value, held.granted.offset, held.written, false);
            if !held.sent && !is && session.view.has_session() {
                return Err(format!("client {}: another one writes to {held:?}", self.name));
            }
        }
        Ok(())
    }

    /// Makes one step.
    pub(super) fn step(&mut self, random: &mut Random, outside: &mut Outside) -> Step {
        let now = environment::time().as_millis() as u64;
        match self.life {
            Life::Runs => {}
            Life::Stopped(_) => {
                self.life = Life::Runs;
                return Ok("runs again".into());
            }
            Life::Gone(_) => {
                *self = Client::new(self.name, random, outside);
                return Ok(format!("starts as process {}", self.pid).into());
            }
            Life::Ends(stage) => return Ok(self.end(stage, random, now)),
        }
        if let Some(store) = self.stores.pop_front() {
            return Ok(self.store(store));
        }
        if self.link.is_none() {
            return self.connect(random, outside, now);
        }
        if let Some(link) = &mut self.link
            && std::mem::take(&mut link.looks_at_bell)
        {
            if let Some(rings) = &link.rings
                && (rings.requests.bell_is_due() | rings.answers.bell_is_due())
            {
                link.end.ring();
            }
            return Ok("looks at the flags of its rings".into());
        }
        if self.phase == Phase::Leaving {
            self.leave();
            return Ok("closes".into());
        }
        let acts = self.phase == Phase::Open && self.acts_itself(now);
        let link = self.link.as_ref().expect("it has one");
        if link.end.is_readable() && !(acts && random.once_in(2)) {
            return self.receive(random, outside);
        }
        if link.rings.is_some()
            && self.phase == Phase::Open
            && !link.asleep
            && !(acts && random.once_in(2))
        {
            return self.receive_by_ring(random, outside);
        }
        if acts { self.act(random, outside, now) } else { Ok("waits".into()) }
    }

    /// Ends the process.
    fn end(&mut self, stage: u8, random: &mut Random, now: u64) -> Cow<'static, str> {
        match stage {
            0 => {
                // The mappings go, and with the words the lock.
                (self.session, self.welcomed) = (None, None);
                if let Some(link) = &mut self.link {
                    link.rings = None;
                }
                (self.pins, self.reservations) = (Vec::new(), Vec::new());
                self.stores.clear();
            }
            1 => self.link = None,
            _ => {
                environment::end_process(self.pid);
                self.life = Life::Gone(now + random.log_below(100_000));
                return "is gone".into();
            }
        }
        self.life = Life::Ends(stage + 1);
        "is torn down".into()
    }

    fn connect(&mut self, random: &mut Random, outside: &mut Outside, now: u64) -> Step {
        if self.winds_up && self.session.is_none() {
            return Ok("has nothing".into());
        }
        let Some(end) = outside.connect(self) else {
            self.until = now + 1 + random.log_below(2000);
            return Ok("finds no server".into());
        };
        let token = self.session.as_ref().map_or(0, |it| it.token);
        self.link = Some(ClientLink {
            end,
            rings: None,
            ring_is_dead: false,
            asleep: false,
            tired: false,
            looks_at_bell: false,
            next_id: FIRST_ID,
            waiting: BTreeMap::new(),
        });
        self.phase = Phase::Greeting;
        let namespace = outside.namespace(self.namespace);
        let read_only = self.read_only;
        self.send(
            FIRST_ID,
            &Call::Hello { version: PROTOCOL_VERSION, namespace, read_only, token },
        );
        Ok(format!("greets, session {token:x}").into())
    }

    /// Sends a packet or a message by the ring. The latter is stored word by word, in later steps.
    fn send(&mut self, id: u32, call: &Call<'_>) -> bool {
        let mut message = Vec::new();
        encode_request(id, call, &mut message);
        let Some(link) = &mut self.link else { return false };
        let Some(rings) = link.rings.as_mut().filter(|_| self.phase == Phase::Open) else {
            return link.end.send(message).unwrap_or(true);
        };
        let (sent, effects) = effects_of(|| rings.requests.try_send(&message));
        take_back(&effects);
        self.stores.extend(effects);
        sent.expect("the server's words are possible")
    }

    /// Makes a store to a ring.
    fn store(&mut self, store: Effect) -> Cow<'static, str> {
        let Effect::Word { address, bytes, after, .. } = store else { unreachable!("of a ring") };
        if let Some(link) = self.link.as_mut().filter(|it| it.rings.is_some()) {
            write_word(address, bytes, after);
            link.looks_at_bell = self.stores.is_empty();
        }
        "stores to its ring".into()
    }

    /// Ends the connection; the calls without an answer are repeated.
    pub(super) fn lose_link(&mut self) {
        self.stores.clear();
        self.welcomed = None;
        if let Some(link) = self.link.take() {
            let is_repeated = |it: &MadeCall| !matches!(it.want, Want::Events { .. });
            self.calls.extend(link.waiting.into_values().filter(is_repeated));
            for call in &mut self.calls {
                // The client does not name them, so they end.
                if let Want::Acquire { release, .. } = &mut call.want {
                    release.1.clear();
                }
            }
        }
        self.phase = Phase::Away;
    }

    /// Makes no more calls from now on.
    pub(super) fn wind_up_soon(&mut self, now: u64) {
        (self.winds_up, self.until) = (true, self.until.min(now));
        if let Life::Gone(until) = &mut self.life {
            *until = (*until).min(now);
        }
    }

    /// The power was cut.
    pub(super) fn cut_power(&mut self, now: u64) {
        if !matches!(self.life, Life::Gone(_)) {
            environment::end_process(self.pid);
        }
        self.leave();
        self.life = Life::Gone(now);
    }

    pub(super) fn has_link(&self) -> bool {
        self.link.is_some()
    }

    /// Notes that a server has ended before some of its last stores to the ring.
    pub(super) fn lose_ring(&mut self) {
        if let Some(link) = &mut self.link {
            link.ring_is_dead = true;
        }
    }

    pub(super) fn wire_has_ended(&self) -> bool {
        self.link.as_ref().is_some_and(|it| it.end.has_ended())
    }

    fn leave(&mut self) {
        self.lose_link();
        self.calls.clear();
        self.session = None;
        (self.pins, self.reservations) = (Vec::new(), Vec::new());
        self.dropped.clear();
    }

    fn receive(&mut self, random: &mut Random, outside: &mut Outside) -> Step {
        let link = self.link.as_mut().expect("it has one");
        let received = link.end.receive().expect("the wire is readable");
        let Some((bytes, descriptors)) = received else {
            self.lose_link();
            self.until = outside.now() + random.log_below(100);
            return Ok("has lost its connection".into());
        };
        if bytes == BELL {
            link.asleep = false;
            if let Some(rings) = &link.rings {
                rings.answers.stay_awake();
            }
            return Ok("is woken".into());
        }
        let response = decode_response(&bytes).ok_or("an answer cannot be decoded")?;
        match self.phase {
            Phase::Open => self.answered(response, random, outside),
            _ => self.greeted(response, descriptors, random, outside),
        }
    }

    fn receive_by_ring(&mut self, random: &mut Random, outside: &mut Outside) -> Step {
        let link = self.link.as_mut().expect("it has one");
        let rings = link.rings.as_mut().expect("it has rings");
        if link.ring_is_dead {
            self.lose_link();
            return Ok("has lost its ring".into());
        }
        if std::mem::take(&mut link.tired) {
            let sleeps = rings.answers.prepare_to_sleep().map_err(|error| error.to_string())?;
            link.asleep = sleeps;
            return Ok("goes to sleep".into());
        }
        let mut message = Vec::new();
        let received = rings.answers.try_receive(&mut message);
        if received.map_err(|error| error.to_string())? {
            link.looks_at_bell = true;
            let response = decode_response(&message).ok_or("an answer cannot be decoded")?;
            return self.answered(response, random, outside);
        }
        link.tired = true;
        Ok("finds its ring empty".into())
    }

    /// Takes the answer to a message of the greeting.
    fn greeted(
        &mut self,
        Response { result, .. }: Response,
        descriptors: Vec<OwnedFd>,
        random: &mut Random,
        outside: &mut Outside,
    ) -> Step {
        let answer = match result {
            Ok(answer) => answer,
            Err(CallError::TooMany { .. }) if self.phase == Phase::AsksForRings => {
                self.wants_rings = false;
                self.phase = Phase::Open;
                return Ok("gets no rings".into());
            }
            Err(error) => {
                self.lose_link();
                self.until = outside.now() + 100 + random.log_below(5000);
                return match error {
                    CallError::TooMany { .. } => Ok("may not connect".into()),
                    error => Err(format!("client {} is greeted with {error}", self.name)),
                };
            }
        };
        match (self.phase, answer) {
            (Phase::Greeting, Answer::Welcome(it)) => {
                let mut descriptors = descriptors.into_iter();
                let (_memory, words) = (descriptors.next(), descriptors.next());
                let words = words.ok_or("a welcome without descriptors")?;
                let view = SessionView::attach(words, it.session).map_err(|it| it.to_string())?;
                let Some(view) = view else {
                    // The session has ended meanwhile.
                    self.lose_link();
                    return Ok("is too late for its session".into());
                };
                if !it.resumed {
                    self.begin(it.token, view, it.epoch, it.pin_word);
                    return Ok(self.opened("has a session"));
                }
                self.welcomed = Some((true, it.token, view));
                let pins = self.named_pins();
                let reservations = self.reservations.iter().map(|it| it.granted.handle).collect();
                self.dropped.clear();
                self.phase = Phase::Resuming;
                self.send(2, &Call::Resume { pins, reservations });
                Ok("names its grants".into())
            }
            (Phase::Resuming, Answer::Done) => {
                self.phase = Phase::ResumeEnding;
                self.send(3, &Call::ResumeEnd);
                Ok("has named its grants".into())
            }
            (Phase::ResumeEnding, Answer::Resumed { epoch, pins_resumed, pin_word }) => {
                let (_, token, view) = self.welcomed.take().expect("it was welcomed");
                if !pins_resumed {
                    self.pins.clear();
                }
                self.session = Some(ClientSession { token, view, epoch, pin_word });
                Ok(self.opened("has its session again"))
            }
            (Phase::AsksForRings, Answer::Rings) => {
                let file = descriptors.into_iter().next().ok_or("rings without a descriptor")?;
                let rings = ring::attach(file).map_err(|error| error.to_string())?;
                self.link.as_mut().expect("it has one").rings = Some(rings);
                self.phase = Phase::Open;
                Ok("has rings".into())
            }
            (phase, answer) => Err(format!("client {}: {answer:?} in {phase:?}", self.name)),
        }
    }

    fn named_pins(&self) -> Vec<(BlockHandle, u32)> {
        let mut pins: Vec<(BlockHandle, u32)> = Vec::new();
        for pin in &self.pins {
            match pins.iter_mut().find(|(handle, _)| *handle == pin.handle) {
                Some((_, count)) => *count += 1,
                None => pins.push((pin.handle, 1)),
            }
        }
        pins
    }

    /// Begins a session: the client has nothing of an earlier one.
    fn begin(&mut self, token: u64, view: SessionView, epoch: u64, pin_word: u64) {
        self.session = Some(ClientSession { token, view, epoch, pin_word });
        (self.pins, self.reservations) = (Vec::new(), Vec::new());
        self.dropped.clear();
        // The library's client fails them: their reservations are gone.
        self.calls.retain(|it| !matches!(it.want, Want::Commit { .. }));
    }

    fn opened(&mut self, what: &'static str) -> Cow<'static, str> {
        self.phase = Phase::Open;
        self.link.as_mut().expect("it has one").next_id = 4;
        if self.wants_rings && !self.winds_up {
            self.phase = Phase::AsksForRings;
            self.send(4, &Call::Rings);
        }
        what.into()
    }

    /// Does something of its own.
    fn act(&mut self, random: &mut Random, outside: &mut Outside, now: u64) -> Step {
        if self.winds_up {
            return Ok(self.wind_up(random));
        }
        if let Some(call) = self.calls.pop_front() {
            return Ok(self.call(call, outside));
        }
        let writes = self.reservations.iter().filter(|it| !it.sent).count() as u64;
        if writes > 0 && (now < self.until || !random.once_in(4)) {
            return self.write(random, outside);
        }
        if random.once_in(4) && !self.pins.is_empty() {
            return self.release(random, outside);
        }
        let want = self.choose(random, outside);
        self.until = now + think(random);
        Ok(self.call(MadeCall { want, at: outside.moment, at_ms: now }, outside))
    }

    /// Gives back what the client has, and says goodbye.
    fn wind_up(&mut self, random: &mut Random) -> Cow<'static, str> {
        self.calls.clear();
        if self.pins.is_empty() && self.reservations.is_empty() && self.dropped.is_empty() {
            if self.send(NO_ANSWER, &Call::Goodbye) {
                self.phase = match self.link.as_ref().is_some_and(|it| it.rings.is_some()) {
                    // The goodbye is stored first.
                    true => Phase::Open,
                    false => Phase::Leaving,
                };
                if self.phase == Phase::Open {
                    while let Some(store) = self.stores.pop_front() {
                        self.store(store);
                    }
                    self.phase = Phase::Leaving;
                }
            }
            return "says goodbye".into();
        }
        let handles: Vec<BlockHandle> =
            self.pins.drain(..).map(|it| it.handle).chain(self.dropped.drain(..)).collect();
        let epoch = self.session.as_ref().map_or(0, |it| it.epoch);
        if !handles.is_empty() {
            self.send_release(epoch, handles, random);
        } else {
            let handles = self.reservations.drain(..).map(|it| it.granted.handle).collect();
            self.send_release(0, handles, random);
        }
        "gives back what it has".into()
    }

    fn send_release(&mut self, epoch: u64, handles: Vec<BlockHandle>, _random: &mut Random) {
        // Without space, the server is read first: the library waits, too.
        let call = Call::Release { epoch, handles: Cow::Owned(handles.clone()) };
        if !self.send(NO_ANSWER, &call) {
            self.dropped.extend(handles);
        }
    }

    /// Reads the bytes of some pins once more, and releases them.
    fn release(&mut self, random: &mut Random, outside: &mut Outside) -> Step {
        let some = 1 + random.below(self.pins.len() as u64) as usize;
        let session = self.session.as_ref().expect("it is open");
        let mut handles = Vec::new();
        for pin in self.pins.drain(..some) {
            let Granted { offset, len, .. } = pin.granted;
            let is = outside.contents.has(pin.value, offset, len as usize, true);
            if !is && session.view.has_pin_word(session.pin_word) {
                return Err(format!("{pin:?} has other bytes, and is valid"));
            }
            handles.push(pin.handle);
        }
        let (epoch, call) = (session.epoch, random.once_in(2));
        if call {
            self.send_release(epoch, handles, random);
            Ok("releases pins".into())
        } else {
            self.dropped.extend(handles);
            Ok("drops pins".into())
        }
    }

    /// Writes some bytes of a value, or asks to commit those that are written.
    fn write(&mut self, random: &mut Random, outside: &mut Outside) -> Step {
        let session = self.session.as_ref().expect("it is open");
        if !session.view.has_session() {
            self.reservations.clear();
            return Ok("has lost its reservations".into());
        }
        let unwritten = |it: &&mut Held| !it.sent && (it.written as u64) < it.granted.len;
        if let Some(held) = self.reservations.iter_mut().find(unwritten) {
            let left = held.granted.len as usize - held.written;
            let end = held.written + 1 + random.below(left as u64) as usize;
            before_writing();
            outside.contents.write(held.value, held.granted.offset, held.written..end);
            held.written = end;
            return Ok(format!("writes value {} up to byte {end}", held.value).into());
        }
        let ready: Vec<usize> =
            (0..self.reservations.len()).filter(|at| !self.reservations[*at].sent).collect();
        if random.once_in(12) {
            let mut handles = Vec::new();
            for at in ready.into_iter().rev() {
                handles.push(self.reservations.remove(at).granted.handle);
            }
            self.send_release(0, handles, random);
            return Ok("drops reservations".into());
        }
        let mut values: Vec<(BlockHandle, ValueId)> = Vec::new();
        for at in ready {
            let held = &mut self.reservations[at];
            let is_twice = values
                .iter()
                .any(|it| outside.contents.key(it.1) == outside.contents.key(held.value));
            if is_twice {
                continue;
            }
            held.sent = true;
            values.push((held.granted.handle, held.value));
            if random.once_in(3) {
                break;
            }
        }
        let (parents, priority) = (!random.once_in(3), random.below(3) as u8);
        let want = Want::Commit { values, parents, priority };
        Ok(self.call(MadeCall { want, at: outside.moment, at_ms: outside.now() }, outside))
    }

    fn choose(&mut self, random: &mut Random, outside: &mut Outside) -> Want {
        let keys = |random: &mut Random| {
            let first = random.below(outside.config.keys);
            let count = 1 + random.log_below(6);
            (first..first + count).map(|it| key(it % outside.config.keys)).collect::<Vec<_>>()
        };
        match random.below(41) {
            0..12 if !self.read_only => {
                let keys = keys(random);
                let len =
                    |_: &Vec<u8>| MIN_LEN + random.log_below(outside.config.max_len - MIN_LEN);
                let lens: Vec<u64> = keys.iter().map(len).collect();
                let wait = !random.once_in(3);
                Want::Reserve { values: keys.into_iter().zip(lens).collect(), wait }
            }
            0..28 => {
                let epoch = self.session.as_ref().map_or(0, |it| it.epoch);
                let release = (epoch, std::mem::take(&mut self.dropped));
                let (prefix_only, wait) = (random.once_in(2), !random.once_in(3));
                Want::Acquire { keys: keys(random), prefix_only, wait, release }
            }
            28..30 => Want::Lookup(keys(random)),
            30..32 if !self.read_only => Want::Remove(keys(random)),
            32 => Want::Touch(keys(random)),
            33 => Want::Locate(keys(random)),
            34 => Want::Events { from: random.below(100), wait_ms: random.log_below(5000) as u32 },
            35 if !self.read_only => Want::Evict(random.log_below(8192)),
            36 if !self.read_only && random.once_in(4) => Want::Clear,
            37 => Want::KeepAlive,
            38 => Want::KeepPins,
            39 if self.is_operator() && outside.config.elastic => {
                Want::Resize(outside.config.a_size(random))
            }
            _ => Want::Stats,
        }
    }

    /// Sends a call, if it has space.
    fn call(&mut self, sent: MadeCall, outside: &mut Outside) -> Cow<'static, str> {
        let link = self.link.as_mut().expect("it has one");
        link.next_id += 1;
        let id = link.next_id;
        let what = format!("calls {id}: {:?}", sent.want);
        let namespace = outside.namespace(self.namespace);
        let parts;
        let call = match &sent.want {
            Want::Lookup(keys) => Call::Lookup { keys: keys_of(keys) },
            Want::Acquire { keys, prefix_only, wait, release } => Call::Acquire {
                epoch: release.0,
                release: release.1.clone(),
                keys: keys_of(keys),
                prefix_only: *prefix_only,
                wait: *wait,
            },
            Want::Reserve { values, wait } => Call::Reserve {
                sizes: Cow::Owned(values.iter().map(|(_, len)| *len).collect()),
                wait: *wait,
            },
            Want::Commit { values, parents, priority } => {
                parts = values
                    .iter()
                    .map(|(handle, id)| {
                        outside.contents.commit_sent(*id, outside.moment);
                        let key = outside.contents.key(*id).to_vec();
                        let parent = parents.then(|| parent(&key)).flatten();
                        let checksum = (id % 2 == 0).then(|| crc::of(&outside.contents.bytes(*id)));
                        (*handle, key, parent, checksum, outside.contents.ttl(*id))
                    })
                    .collect::<Vec<_>>();
                let items = parts
                    .iter()
                    .map(|(handle, key, parent, checksum, ttl_ms)| Commit {
                        handle: *handle,
                        key: Key(key),
                        parent: parent.as_deref().map(Key),
                        checksum: *checksum,
                        priority: *priority,
                        data_type: 0,
                        ttl_ms: *ttl_ms,
                    })
                    .collect();
                Call::Commit { items }
            }
            Want::Remove(keys) => Call::Remove { keys: keys_of(keys) },
            Want::Touch(keys) => Call::Touch { keys: keys_of(keys) },
            Want::Locate(keys) => Call::Locate { keys: keys_of(keys) },
            Want::Events { from, wait_ms } => {
                Call::Events { from: *from, max: 16, wait_ms: *wait_ms }
            }
            Want::Evict(bytes) => Call::Evict { namespace: Some(namespace), bytes: *bytes },
            Want::Resize(size) => Call::Resize { size: *size },
            Want::Clear => Call::Clear { namespace: Some(namespace) },
            Want::KeepAlive => Call::KeepAlive,
            Want::KeepPins => Call::KeepPins,
            Want::Stats => Call::Stats,
        };
        if self.send(id, &call) {
            drop(call);
            self.link.as_mut().expect("it has one").waiting.insert(id, sent);
            what.into()
        } else {
            drop(call);
            self.calls.push_front(sent);
            "finds no space for its call".into()
        }
    }

    /// Takes the answer to a call.
    fn answered(
        &mut self,
        Response { id, result }: Response,
        random: &mut Random,
        outside: &mut Outside,
    ) -> Step {
        let link = self.link.as_mut().expect("it has one");
        let Some(sent) = link.waiting.remove(&id) else {
            return Err(format!("client {} did not call {id}: {result:?}", self.name));
        };
        let what = format!("has the answer to {id}: {result:?}");
        let MadeCall { want, at, at_ms } = sent;
        let of = self.namespace;
        match (want, result) {
            (Want::Acquire { keys, prefix_only, .. }, Ok(Answer::Pinned { epoch, blocks, .. })) => {
                let session = self.session.as_mut().expect("it is open");
                if epoch < session.epoch {
                    // They have ended since.
                    return Ok(what.into());
                }
                if epoch > session.epoch {
                    // All pins of before have ended, and the word says so.
                    session.pin_word += epoch - session.epoch;
                    session.epoch = epoch;
                    self.pins.clear();
                    self.dropped.clear();
                }
                let mut gap = false;
                for (key, block) in keys.iter().zip(blocks) {
                    let Some(granted) = block else {
                        gap = true;
                        continue;
                    };
                    if gap && prefix_only {
                        return Err(format!("{key:?} is pinned behind a gap"));
                    }
                    let place = (granted.offset, granted.len);
                    let value = match outside.contents.check_found((of, key), place, (at, at_ms)) {
                        Ok(value) => value,
                        // The pins were revoked since.
                        Err(_) if !session.view.has_pin_word(session.pin_word) => continue,
                        Err(error) => return Err(format!("client {}: {error}", self.name)),
                    };
                    self.pins.push(Pin { handle: granted.handle, granted, value });
                }
            }
            (Want::Reserve { values, .. }, Ok(Answer::Reserved(blocks))) => {
                if values.len() != blocks.len() {
                    return Err(format!("{} blocks for {} sizes", blocks.len(), values.len()));
                }
                for ((key, len), granted) in values.into_iter().zip(blocks) {
                    if granted.len != len {
                        return Err(format!("{granted:?} for {len} bytes"));
                    }
                    let ttl = if random.once_in(6) { 1 + random.log_below(60_000) } else { 0 };
                    let value = outside.contents.add(of, &key, len, ttl);
                    self.reservations.push(Held { granted, value, written: 0, sent: false });
                }
            }
            (Want::Commit { values, .. }, result) => {
                let is_of =
                    |it: &Held| values.iter().any(|(handle, _)| *handle == it.granted.handle);
                match result {
                    Ok(Answer::Done) => {
                        let now = outside.now();
                        for (_, id) in &values {
                            outside.contents.commit_answered(*id, outside.moment, now);
                        }
                        self.reservations.retain(|it| !is_of(it));
                    }
                    Err(CallError::Fenced | CallError::Stale { .. }) => {
                        let over: Vec<BlockHandle> = values.iter().map(|it| it.0).collect();
                        self.reservations.retain(|it| !is_of(it));
                        self.send_release(0, over, random);
                    }
                    result => return Err(format!("{result:?} to a commit")),
                }
            }
            (Want::Remove(keys), Ok(Answer::Count(_))) => {
                for key in keys {
                    outside.contents.removed(of, &key, at, outside.moment);
                }
            }
            (Want::Lookup(keys), Ok(Answer::Count(count))) => {
                let may = |key: &&Vec<u8>| outside.contents.may_have(of, key, at, at_ms);
                if let Some(key) = keys.iter().take(count as usize).find(|it| !may(it)) {
                    return Err(format!("a look-up finds {key:?}, which is over"));
                }
            }
            (Want::Locate(_), Ok(Answer::Located(_)))
            | (Want::Touch(_), Ok(Answer::Count(_)))
            | (Want::Events { .. }, Ok(Answer::Events(_)))
            | (Want::Evict(_) | Want::Clear, Ok(Answer::Count(_)))
            | (Want::Resize(_), Ok(Answer::Resized(_)))
            | (Want::KeepAlive | Want::KeepPins, Ok(Answer::Done))
            | (Want::Stats, Ok(Answer::Stats(_)))
            | (
                Want::Acquire { .. } | Want::Reserve { .. },
                Err(
                    CallError::Quota { .. }
                    | CallError::OutOfSpace { .. }
                    | CallError::BadLength { .. },
                ),
            )
            | (Want::Clear, Err(CallError::NamespaceInTier)) => {}
            (want, result) => return Err(format!("client {}: {result:?} to {want:?}", self.name)),
        }
        Ok(what.into())
    }
}

/// Returns the user of the server.
fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the key of a number below 64, of 1 to 64 bytes.
fn key(number: u64) -> Vec<u8> {
    let mut key = vec![b'.'; 1 + (number as usize * 13) % 64];
    key[0] = number as u8;
    key
}

/// Returns the key of the value before that of a key in its chain.
fn parent(key: &[u8]) -> Option<Vec<u8>> {
    u64::from(*key.first()?).checked_sub(1).map(self::key)
}

fn keys_of(keys: &[Vec<u8>]) -> Vec<Key<'_>> {
    keys.iter().map(|key| Key(key)).collect()
}

/// Returns how long a client waits before its next call, in milliseconds.
fn think(random: &mut Random) -> u64 {
    match random.below(16) {
        0..8 => random.below(20),
        8..14 => random.below(3000),
        14 => random.below(60_000),
        _ => random.log_below(3_600_000),
    }
}

fn write_word(address: usize, bytes: usize, value: u64) {
    let at = std::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY: the word is one of a mapping that this thread alone uses, and has this length.
    unsafe {
        match bytes {
            4 => at.cast::<u32>().write(value as u32),
            _ => at.cast::<u64>().write(value),
        }
    }
}

/// Takes back stores to words, the last one first.
pub(super) fn take_back(effects: &[Effect]) {
    for effect in effects.iter().rev() {
        match effect {
            Effect::Word { address, bytes, before, .. } => write_word(*address, *bytes, *before),
            Effect::Index { address, before, .. } => write_word(*address, 8, *before),
            Effect::Memory { address, before } => {
                let first = std::ptr::with_exposed_provenance_mut::<u8>(*address);
                // SAFETY: the bytes are those of a mapping that this thread alone uses.
                unsafe { first.copy_from_nonoverlapping(before.as_ptr(), before.len()) };
            }
            Effect::Packet { .. } => {}
        }
    }
}
