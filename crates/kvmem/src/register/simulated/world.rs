//! *World*: what calls do to the machine: its memory, its driver's lock, its NICs' books.
//!
//! ```text
//!  start ──▶ work … lock … work … lock ──▶ end
//!    │                                      │
//!    limits, faults, what is untouched,     key stands or is gone, bytes are resident, entry in the log
//!    others in flight: what it will cost
//! ```
//!
//! The stage asks for the next step of a call when its time has come, in the order of time (see
//! `stage.rs`).

use std::ops::Range;

use super::books::{Books, DEREGISTER, Flight, REGISTER};
use super::costs::{Costs, Work};
use super::memory::Memory;
use super::{Action, Counts, Entry};
use crate::arena::Errno;
use crate::register::{Key, Limits, Memlock, RegisterLimit, RegistrarError};

#[derive(Debug)]
pub(super) struct World {
    pub(super) costs: Costs,
    pub(super) memory: Memory,
    pub(super) nics: Vec<Books>,
    pub(super) log: Vec<Entry>,
    /// When the driver's lock will be free.
    lock_free_at: u64,
    flight: Flight,
    most_live_keys: u64,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Register { nic: usize, range: Range<usize> },
    Deregister { nic: usize, key: Key },
    Populate { range: Range<usize>, threads: usize },
}

/// A call, from its beginning to its answer.
#[derive(Debug)]
pub(super) struct Call {
    request: Request,
    pub(super) thread: usize,
    phase: Phase,
    /// Of a registering call that has begun and was not refused: the key that is going to stand.
    pub(super) key: Key,
    pub(super) refusal: Option<RegistrarError>,
    range: Range<usize>,
    untouched: u64,
    start: u64,
    waited: u64,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Start,
    /// The work before the lock's so-and-so-many-th turn is done.
    Lock(Work, u64),
    End,
}

/// What comes next for a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another step, at this time.
    At(u64),
    /// Nothing: it is done.
    Done,
}

impl Call {
    pub(super) fn new(request: Request) -> Call {
        let range = match &request {
            Request::Register { range, .. } | Request::Populate { range, .. } => range.clone(),
            Request::Deregister { .. } => 0..0,
        };
        Call {
            request,
            thread: 0,
            phase: Phase::Start,
            key: Key { handle: 0, lkey: 0, rkey: None },
            refusal: None,
            range,
            untouched: 0,
            start: 0,
            waited: 0,
        }
    }

    /// Of steps at the same time, those of lower rank come first: what ends is over when others
    /// start, and all that start have come before the first does.
    pub(super) fn rank(&self) -> u8 {
        match self.phase {
            Phase::End => 0,
            Phase::Lock(..) => 1,
            Phase::Start => 2,
        }
    }

    /// Whether calls like this one and like that one slow each other down.
    pub(super) fn minds(&self, other: &Call) -> bool {
        let populates = |call: &Call| matches!(call.request, Request::Populate { .. });
        populates(self) == populates(other)
    }
}

impl World {
    pub(super) fn new(costs: Costs, memory: Memory, nics: Vec<Books>) -> World {
        World {
            costs,
            memory,
            nics,
            log: Vec::new(),
            lock_free_at: 0,
            flight: Flight::default(),
            most_live_keys: 0,
        }
    }

    /// Does the next step of a call, whose time `now` is. `others` are the calls in flight that it
    /// minds.
    pub(super) fn step(&mut self, call: &mut Call, now: u64, others: usize) -> Next {
        match call.phase {
            Phase::Start => self.start(call, now, others),
            Phase::Lock(work, turn) => {
                let begin = if work.needs_lock() { now.max(self.lock_free_at) } else { now };
                let end = begin.saturating_add(work.serial_at(turn));
                if work.needs_lock() {
                    self.lock_free_at = end;
                }
                call.waited += begin - now;
                if turn + 1 < work.turns() {
                    call.phase = Phase::Lock(work, turn + 1);
                    return Next::At(end.saturating_add(work.free_before(turn + 1)));
                }
                call.phase = Phase::End;
                Next::At(end)
            }
            Phase::End => {
                self.end(call, now);
                Next::Done
            }
        }
    }

    fn start(&mut self, call: &mut Call, now: u64, others: usize) -> Next {
        call.start = now;
        if let Request::Populate { ref range, threads } = call.request {
            call.untouched = self.memory.untouched(range);
            call.phase = Phase::End;
            let takes = self.costs.populate.nanoseconds(call.untouched, threads, others);
            return Next::At(now.saturating_add(takes));
        }
        call.refusal = self.verdict(call).err();
        let untouched = call.untouched > 0;
        let costs = match call.request {
            Request::Deregister { .. } => &self.costs.deregister,
            _ => &self.costs.register,
        };
        let work = match call.refusal {
            None => costs.work(call.range.len() as u64, call.untouched, others),
            Some(_) => costs.refused(),
        };
        let makes_resident = untouched && matches!(call.request, Request::Register { .. });
        if let Some(nic) = self.nic_of(call) {
            nic.flight.take_off(makes_resident);
        }
        self.flight.take_off(makes_resident);
        call.phase = Phase::Lock(work, 0);
        Next::At(now.saturating_add(work.free_before(0)))
    }

    /// Whether a call goes well; if so its key and bytes are reserved.
    fn verdict(&mut self, call: &mut Call) -> Result<(), RegistrarError> {
        let injected = |what, errno| {
            Err(RegistrarError::new(what, errno, "").detail("a fault that was injected"))
        };
        match call.request {
            Request::Populate { .. } => Ok(()),
            Request::Register { nic, ref range } => {
                let bytes = range.len() as u64;
                let untouched = self.memory.untouched(range);
                let memlock = self.memlock(nic);
                let books = &mut self.nics[nic];
                if let Some(errno) = books.arrive(true) {
                    return injected(REGISTER, errno);
                }
                books.allow(bytes)?;
                if let Some(Memlock { account, limit_bytes, used_bytes }) = memlock
                    && bytes > limit_bytes.saturating_sub(used_bytes)
                {
                    let exceeded = RegisterLimit::Memlock {
                        account,
                        limit_bytes,
                        used_bytes,
                        need_bytes: bytes,
                    };
                    return Err(RegistrarError::new(REGISTER, Errno::ENOMEM, "").exceeded(exceeded));
                }
                if untouched > self.memory.left() {
                    let remedy =
                        "the simulated machine has no memory left: give it more, or ask for less";
                    return Err(RegistrarError::new(REGISTER, Errno::ENOMEM, remedy));
                }
                call.untouched = untouched;
                call.key = books.reserve(nic, range.clone(), untouched);
                Ok(())
            }
            Request::Deregister { nic, key } => {
                let books = &mut self.nics[nic];
                let Some(range) = books.standing(key.handle) else {
                    books.arrive(false);
                    let remedy = "give back a key once, and to the NIC that gave it";
                    return Err(RegistrarError::new(DEREGISTER, Errno::EINVAL, remedy));
                };
                call.range = range;
                if let Some(errno) = books.arrive(false) {
                    return injected(DEREGISTER, errno);
                }
                call.untouched = books.unsettle(key.handle);
                Ok(())
            }
        }
    }

    fn end(&mut self, call: &mut Call, now: u64) {
        if !matches!(call.request, Request::Populate { .. }) {
            let makes_resident =
                call.untouched > 0 && matches!(call.request, Request::Register { .. });
            self.flight.land(makes_resident);
            if let Some(nic) = self.nic_of(call) {
                nic.flight.land(makes_resident);
            }
        }
        match (&call.request, &call.refusal) {
            (Request::Register { nic, .. } | Request::Deregister { nic, .. }, Some(_)) => {
                self.nics[*nic].count_refused();
            }
            (Request::Register { nic, range }, None) => {
                self.memory.touch(range.clone());
                self.nics[*nic].settle(call.key.handle);
                let live = self.live_keys();
                self.most_live_keys = self.most_live_keys.max(live);
            }
            (Request::Deregister { nic, key }, None) => self.nics[*nic].remove(key.handle),
            (Request::Populate { range, .. }, _) => self.memory.touch(range.clone()),
        }
        let (action, nic) = match call.request {
            Request::Register { nic, .. } => (Action::Register, Some(nic)),
            Request::Deregister { nic, .. } => (Action::Deregister, Some(nic)),
            Request::Populate { .. } => (Action::Populate, None),
        };
        self.log.push(Entry {
            action,
            nic,
            thread: call.thread,
            address: call.range.start,
            bytes: call.range.len() as u64,
            untouched_bytes: call.untouched,
            start_ns: call.start,
            end_ns: now,
            waited_ns: call.waited,
            refused: call.refusal.as_ref().map(|refusal| refusal.errno),
        });
    }

    fn nic_of(&mut self, call: &Call) -> Option<&mut Books> {
        match call.request {
            Request::Register { nic, .. } | Request::Deregister { nic, .. } => {
                self.nics.get_mut(nic)
            }
            Request::Populate { .. } => None,
        }
    }

    fn live_keys(&self) -> u64 {
        self.nics.iter().map(|nic| nic.counts().live_keys).sum()
    }

    /// The limit on pinned bytes for a NIC, with what all NICs of the same account hold.
    fn memlock(&self, nic: usize) -> Option<Memlock> {
        let memlock = self.nics[nic].limits.memlock?;
        let same = |books: &&Books| {
            books.limits.memlock.is_some_and(|other| other.account == memlock.account)
        };
        let held = self.nics.iter().filter(same).map(Books::held_bytes);
        Some(Memlock { used_bytes: held.fold(memlock.used_bytes, u64::saturating_add), ..memlock })
    }

    pub(super) fn limits(&self, nic: usize, name: &str) -> Limits {
        let books = &self.nics[nic];
        Limits {
            device: name.to_owned(),
            max_bytes: books.limits.max_bytes,
            max_keys: books.limits.max_keys.saturating_sub(books.held_keys()),
            preferred_chunk_bytes: books.limits.preferred_chunk_bytes,
            memlock: self.memlock(nic),
        }
    }

    /// All NICs together.
    pub(super) fn counts(&self) -> Counts {
        let mut all = Counts::default();
        for counts in self.nics.iter().map(Books::counts) {
            all.registers += counts.registers;
            all.deregisters += counts.deregisters;
            all.refused += counts.refused;
            all.live_keys += counts.live_keys;
            all.live_bytes += counts.live_bytes;
            all.strange_keys += counts.strange_keys;
        }
        Counts {
            most_live_keys: self.most_live_keys,
            most_in_flight: self.flight.most,
            most_untouched_in_flight: self.flight.most_untouched,
            ..all
        }
    }
}
