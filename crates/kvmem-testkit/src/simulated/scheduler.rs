//! *Scheduler*: the virtual clock, and which thread runs next.
//!
//! Time passes only in calls. If only one thread runs at a time, in the order of virtual time, then
//! the behaviour of a program depends only on the program:
//!
//! ```text
//!  gather(3)      every thread has a seat with its own clock
//!  enter(0..3)    waits until all seats are taken
//!  a call         its steps wait until all seats wait; then the earliest step of all is done; if
//!                 it was the last of its call, the thread of that call continues, alone
//!  leave          the seat does not count any more; with the last one, the machine's time becomes
//!                 the latest of the clocks
//! ```
//!
//! A call has several steps (see `world.rs`): it begins, takes the driver's lock, ends. The thread
//! that arrives last does them all here, so a call wakes only its own thread. Steps at the same
//! time are done in the order of their rank, then of their threads' numbers.
//!
//! A thread that calls alone is a gathering of one. There is one gathering at a time; others wait
//! for its end. Independent users of one machine therefore neither disturb each other nor overlap.
//!
//! ## Faulty threads
//!
//! - A seat that no thread takes: after [`stall_timeout`](super::MachineBuilder::stall_timeout), in
//!   real time, it counts as left.
//! - A thread that ends without leaving, by a panic or otherwise: it leaves when its thread-locals
//!   are dropped.
//! - A thread that does not reach its next call, because it waits for another one of the gathering,
//!   or works for long: after the same time the others continue without it, and it joins them again
//!   at the virtual time that they have reached then.
//!
//! Only the second case keeps the result independent of the system's scheduler. The others are
//! counted by [`SimulatedMachine::stalls`](super::SimulatedMachine::stalls).

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::gathering::{ScheduleState, SeatRef};
use super::world::{SimulatedCall, World};

/// The scheduler of a machine's threads.
#[derive(Debug)]
pub(super) struct Scheduler {
    state: Mutex<ScheduleState>,
    /// Notified when a gathering has ended.
    over: Condvar,
    stall_timeout: Duration,
}

/// A seat taken by a thread. Dropping it leaves the seat, at the latest when the thread ends.
struct SeatGuard {
    scheduler: Weak<Scheduler>,
    gathering: u64,
    seat: usize,
}

thread_local! {
    static SEATS: RefCell<Vec<SeatGuard>> = const { RefCell::new(Vec::new()) };
}

impl Drop for SeatGuard {
    fn drop(&mut self) {
        if let Some(scheduler) = self.scheduler.upgrade() {
            scheduler.vacate(self.gathering, self.seat);
        }
    }
}

impl Scheduler {
    pub(super) fn new(world: World, stall_timeout: Duration) -> Scheduler {
        Scheduler {
            state: Mutex::new(ScheduleState::new(world)),
            over: Condvar::new(),
            stall_timeout,
        }
    }

    /// Calls `work` with the current state.
    pub(super) fn with_state<T>(&self, work: impl FnOnce(&mut ScheduleState) -> T) -> T {
        work(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, ScheduleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the virtual time of the calling thread.
    pub(super) fn now(&self) -> u64 {
        self.lock().time_of(thread::current().id())
    }

    /// Begins a gathering, after the previous one has ended. The caller has the first seat, but has
    /// not entered yet.
    pub(super) fn gather(self: &Arc<Self>, threads: usize) {
        self.leave();
        let mut state = self.wait_until_free(self.lock());
        let seat_ref = state.open(threads, thread::current().id());
        drop(state);
        self.store_seat(&seat_ref);
    }

    /// Takes a seat, and waits until all seats are taken. A thread without a seat stays outside of
    /// the gathering.
    pub(super) fn enter(self: &Arc<Self>, number: usize) {
        let me = thread::current().id();
        let mut state = self.lock();
        let had_seat = state.seat_of(me).is_some();
        let Some(seat_ref) = state.take(number, me) else { return };
        self.advance(&mut state);
        while !state.may_run(&seat_ref) {
            state = self.wait(state, &seat_ref.turn);
        }
        drop(state);
        if !had_seat {
            // Leaves a gathering that the thread may have forgotten to leave.
            self.leave();
            self.store_seat(&seat_ref);
        }
    }

    /// Ends the work of the calling thread.
    pub(super) fn leave(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        // The seats are dropped outside of `with`: their drop locks the state, and must not find
        // the list borrowed.
        let seats: Result<Vec<SeatGuard>, _> = SEATS.try_with(|list| {
            list.borrow_mut().extract_if(.., |seat| seat.scheduler.ptr_eq(&this)).collect()
        });
        drop(seats);
    }

    /// Does a call, in its turn, and returns it finished.
    pub(super) fn call(&self, call: SimulatedCall) -> SimulatedCall {
        let me = thread::current().id();
        let mut state = self.lock();
        let seated = state.seat_of(me);
        let alone = seated.is_none();
        let seat_ref = match seated {
            Some(seat_ref) => seat_ref,
            None => {
                state = self.wait_until_free(state);
                state.open(1, me)
            }
        };
        state.submit(&seat_ref, call);
        self.advance(&mut state);
        let call = loop {
            if let Some(call) = state.take_result(&seat_ref) {
                break call;
            }
            state = self.wait(state, &seat_ref.turn);
        };
        if alone {
            state.vacate(seat_ref.gathering, seat_ref.seat);
            self.advance(&mut state);
        }
        *call
    }

    /// Waits for the end of the current gathering, if there is one.
    fn wait_until_free<'a>(
        &'a self,
        mut state: MutexGuard<'a, ScheduleState>,
    ) -> MutexGuard<'a, ScheduleState> {
        while !state.is_free() {
            state = self.wait(state, &self.over);
        }
        state
    }

    /// Waits for a notification; if no step is done for too long, stops waiting for missing
    /// threads.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, ScheduleState>,
        changed: &Condvar,
    ) -> MutexGuard<'a, ScheduleState> {
        let remaining =
            |state: &ScheduleState| self.stall_timeout.saturating_sub(state.idle_time());
        let timeout = remaining(&state).max(Duration::from_millis(1));
        let (mut state, _) =
            changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner);
        if remaining(&state).is_zero() && state.skip_missing() {
            self.advance(&mut state);
        }
        state
    }

    /// Does all steps that can be done before a thread has to run.
    fn advance(&self, state: &mut ScheduleState) {
        if state.advance() {
            self.over.notify_all();
        }
    }

    fn store_seat(self: &Arc<Self>, seat_ref: &SeatRef) {
        let seat = SeatGuard {
            scheduler: Arc::downgrade(self),
            gathering: seat_ref.gathering,
            seat: seat_ref.seat,
        };
        // A thread whose thread-locals are already dropped has no list. It leaves when `seat` is
        // dropped here.
        let _ = SEATS.try_with(|list| list.borrow_mut().push(seat));
    }

    fn vacate(&self, gathering: u64, seat: usize) {
        let mut state = self.lock();
        state.vacate(gathering, seat);
        self.advance(&mut state);
    }
}
