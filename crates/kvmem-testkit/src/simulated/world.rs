//! *World*: the effects of calls on the machine: its memory, its driver's lock, its NICs.
//!
//! ```text
//!  start ──▶ work … lock … work … lock ──▶ end
//!    │                                      │
//!    limits, faults, untouched bytes,       the key is valid or removed, bytes are resident,
//!    others in flight: the cost             the call is in the log
//! ```
//!
//! The scheduler requests the next step of a call when its time has come, in the order of time (see
//! `scheduler.rs`).

use std::ops::Range;

use super::costs::{CallWork, Costs};
use super::memory::SimulatedMemory;
use super::nic_state::{DEREGISTER, NicState, REGISTER};
use super::{Action, CallCounts, LoggedCall};
use kvmem::arena::Errno;
use kvmem::register::{Key, Limits, Memlock, RegisterLimit, RegistrarError};

/// The state of the machine.
#[derive(Debug)]
pub(super) struct World {
    pub(super) costs: Costs,
    pub(super) memory: SimulatedMemory,
    pub(super) nics: Vec<NicState>,
    pub(super) log: Vec<LoggedCall>,
    /// When the driver's lock is free.
    lock_free_at: u64,
    /// Registering calls in flight that make pages resident: now, and at most so far.
    faulting: (usize, usize),
}

/// The arguments of a call.
#[derive(Clone, Debug)]
pub(super) enum CallRequest {
    Register { nic: usize, range: Range<usize> },
    Deregister { nic: usize, key: Key },
    Populate { range: Range<usize>, threads: usize },
}

/// A call, from its beginning to its result.
#[derive(Debug)]
pub(super) struct SimulatedCall {
    request: CallRequest,
    pub(super) thread: usize,
    phase: CallPhase,
    /// The reserved key of a registering call that has begun and will succeed.
    pub(super) key: Key,
    pub(super) cause: Option<RegistrarError>,
    range: Range<usize>,
    untouched: u64,
    start: u64,
    waited: u64,
}

/// The next step of a call.
#[derive(Clone, Copy, Debug)]
enum CallPhase {
    Start,
    /// The work before the lock is taken for this turn is done.
    Lock(CallWork, u64),
    End,
}

/// The result of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Another step, at this time.
    At(u64),
    /// The call is done.
    Done,
}

impl SimulatedCall {
    pub(super) fn new(request: CallRequest) -> SimulatedCall {
        let range = match &request {
            CallRequest::Register { range, .. } | CallRequest::Populate { range, .. } => {
                range.clone()
            }
            CallRequest::Deregister { .. } => 0..0,
        };
        SimulatedCall {
            request,
            thread: 0,
            phase: CallPhase::Start,
            key: Key { handle: 0, lkey: 0, rkey: None },
            cause: None,
            range,
            untouched: 0,
            start: 0,
            waited: 0,
        }
    }

    /// Returns the order of steps at the same time: lower ranks come first. Calls end before others
    /// start, and all that start at that time have arrived before the first one starts.
    pub(super) fn rank(&self) -> u8 {
        match self.phase {
            CallPhase::End => 0,
            CallPhase::Lock(..) => 1,
            CallPhase::Start => 2,
        }
    }

    /// Returns whether this call and the other slow each other down.
    pub(super) fn slows(&self, other: &SimulatedCall) -> bool {
        let populates = |call: &SimulatedCall| matches!(call.request, CallRequest::Populate { .. });
        populates(self) == populates(other)
    }
}

impl World {
    pub(super) fn new(costs: Costs, memory: SimulatedMemory, nics: Vec<NicState>) -> World {
        World { costs, memory, nics, log: Vec::new(), lock_free_at: 0, faulting: (0, 0) }
    }

    /// Does the next step of a call at time `now`. `others` is the number of calls in flight that
    /// slow it down.
    pub(super) fn step(&mut self, call: &mut SimulatedCall, now: u64, others: usize) -> NextStep {
        match call.phase {
            CallPhase::Start => self.start(call, now, others),
            CallPhase::Lock(work, turn) => {
                let begin = if work.needs_lock() { now.max(self.lock_free_at) } else { now };
                let end = begin.saturating_add(work.serial_at(turn));
                if work.needs_lock() {
                    self.lock_free_at = end;
                }
                call.waited += begin - now;
                if turn + 1 < work.turns() {
                    call.phase = CallPhase::Lock(work, turn + 1);
                    return NextStep::At(end.saturating_add(work.free_before(turn + 1)));
                }
                call.phase = CallPhase::End;
                NextStep::At(end)
            }
            CallPhase::End => {
                self.end(call, now);
                NextStep::Done
            }
        }
    }

    fn start(&mut self, call: &mut SimulatedCall, now: u64, others: usize) -> NextStep {
        call.start = now;
        if let CallRequest::Populate { ref range, threads } = call.request {
            call.untouched = self.memory.untouched(range);
            call.phase = CallPhase::End;
            let takes = self.costs.populate.nanoseconds(call.untouched, threads, others);
            return NextStep::At(now.saturating_add(takes));
        }
        call.cause = self.admit(call).err();
        let untouched = call.untouched > 0;
        let costs = match call.request {
            CallRequest::Deregister { .. } => &self.costs.deregister,
            _ => &self.costs.register,
        };
        let work = match call.cause {
            None => costs.work(call.range.len() as u64, call.untouched, others),
            Some(_) => costs.failed(),
        };
        let makes_resident = untouched && matches!(call.request, CallRequest::Register { .. });
        self.faulting.0 += usize::from(makes_resident);
        self.faulting.1 = self.faulting.1.max(self.faulting.0);
        call.phase = CallPhase::Lock(work, 0);
        NextStep::At(now.saturating_add(work.free_before(0)))
    }

    /// Decides whether a call succeeds, and reserves its key and bytes.
    fn admit(&mut self, call: &mut SimulatedCall) -> Result<(), RegistrarError> {
        let injected =
            |what, errno| Err(RegistrarError::new(what, errno, "").detail("an injected fault"));
        match call.request {
            CallRequest::Populate { .. } => Ok(()),
            CallRequest::Register { nic, ref range } => {
                let bytes = range.len() as u64;
                let untouched = self.memory.untouched(range);
                let memlock = self.memlock(nic);
                let state = &mut self.nics[nic];
                if let Some(errno) = state.count_call(true) {
                    return injected(REGISTER, errno);
                }
                state.allow(bytes)?;
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
                if untouched > self.memory.remaining_bytes() {
                    let remedy =
                        "the simulated machine has no memory left: give it more, or register less";
                    return Err(RegistrarError::new(REGISTER, Errno::ENOMEM, remedy));
                }
                call.untouched = untouched;
                call.key = state.reserve(nic, range.clone(), untouched);
                Ok(())
            }
            CallRequest::Deregister { nic, key } => {
                let state = &mut self.nics[nic];
                let Some(range) = state.valid_range(key.handle) else {
                    state.count_call(false);
                    let remedy = "deregister a key once, and with the NIC that issued it";
                    return Err(RegistrarError::new(DEREGISTER, Errno::EINVAL, remedy));
                };
                call.range = range;
                if let Some(errno) = state.count_call(false) {
                    return injected(DEREGISTER, errno);
                }
                call.untouched = state.make_invalid(key.handle);
                Ok(())
            }
        }
    }

    fn end(&mut self, call: &mut SimulatedCall, now: u64) {
        let registers = matches!(call.request, CallRequest::Register { .. });
        self.faulting.0 -= usize::from(registers && call.untouched > 0);
        match (&call.request, &call.cause) {
            (CallRequest::Register { nic, .. } | CallRequest::Deregister { nic, .. }, Some(_)) => {
                self.nics[*nic].count_failure();
            }
            (CallRequest::Register { nic, range }, None) => {
                self.memory.touch(range.clone());
                self.nics[*nic].make_valid(call.key.handle);
            }
            (CallRequest::Deregister { nic, key }, None) => self.nics[*nic].remove(key.handle),
            (CallRequest::Populate { range, .. }, _) => self.memory.touch(range.clone()),
        }
        let (action, nic) = match call.request {
            CallRequest::Register { nic, .. } => (Action::Register, Some(nic)),
            CallRequest::Deregister { nic, .. } => (Action::Deregister, Some(nic)),
            CallRequest::Populate { .. } => (Action::Populate, None),
        };
        self.log.push(LoggedCall {
            action,
            nic,
            thread: call.thread,
            address: call.range.start,
            bytes: call.range.len() as u64,
            untouched_bytes: call.untouched,
            start_ns: call.start,
            end_ns: now,
            waited_ns: call.waited,
            error: call.cause.as_ref().map(|cause| cause.errno),
        });
    }

    /// Returns the limit on pinned bytes for a NIC, with the bytes held by all NICs of its account.
    fn memlock(&self, nic: usize) -> Option<Memlock> {
        let memlock = self.nics[nic].limits.memlock?;
        let same = |state: &&NicState| {
            state.limits.memlock.is_some_and(|other| other.account == memlock.account)
        };
        let held = self.nics.iter().filter(same).map(NicState::held_bytes);
        Some(Memlock { used_bytes: held.fold(memlock.used_bytes, u64::saturating_add), ..memlock })
    }

    pub(super) fn limits(&self, nic: usize, name: &str) -> Limits {
        let state = &self.nics[nic];
        Limits {
            device: name.to_owned(),
            max_bytes: state.limits.max_bytes,
            max_keys: state.limits.max_keys.saturating_sub(state.held_keys()),
            preferred_chunk_bytes: state.limits.preferred_chunk_bytes,
            copies_by_address: false,
            memlock: self.memlock(nic),
        }
    }

    /// Returns the counts of all NICs together.
    pub(super) fn counts(&self) -> CallCounts {
        let mut all = CallCounts::default();
        for counts in self.nics.iter().map(NicState::counts) {
            all.registers += counts.registers;
            all.deregisters += counts.deregisters;
            all.failed += counts.failed;
            all.live_keys += counts.live_keys;
            all.unknown_keys += counts.unknown_keys;
        }
        CallCounts { max_untouched_in_flight: self.faulting.1, ..all }
    }
}
