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
//! A seat that no thread takes, a thread that ends without leaving, and one that waits for another
//! thread of the gathering block it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::gathering::ScheduleState;
use super::world::{SimulatedCall, World};

/// The scheduler of a machine's threads.
#[derive(Debug)]
pub(super) struct Scheduler {
    state: Mutex<ScheduleState>,
    /// Notified when a gathering has ended.
    over: Condvar,
}

impl Scheduler {
    pub(super) fn new(world: World) -> Scheduler {
        Scheduler { state: Mutex::new(ScheduleState::new(world)), over: Condvar::new() }
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
    pub(super) fn gather(&self, threads: usize) {
        self.leave();
        self.wait_until_free(self.lock()).open(threads, thread::current().id());
    }

    /// Takes a seat, and waits until all seats are taken. A thread without a seat stays outside of
    /// the gathering.
    pub(super) fn enter(&self, number: usize) {
        let mut state = self.lock();
        if !state.take(number, thread::current().id()) {
            return;
        }
        self.advance(&mut state);
        while !state.may_run(number) {
            let turn = state.turn(number);
            state = wait(state, &turn);
        }
    }

    /// Ends the work of the calling thread.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        if let Some(seat) = state.seat_of(thread::current().id()) {
            state.vacate(seat);
            self.advance(&mut state);
        }
    }

    /// Does a call, in its turn, and returns it finished.
    pub(super) fn call(&self, call: SimulatedCall) -> SimulatedCall {
        let me = thread::current().id();
        let mut state = self.lock();
        let seated = state.seat_of(me);
        let seat = match seated {
            Some(seat) => seat,
            None => {
                state = self.wait_until_free(state);
                state.open(1, me)
            }
        };
        state.submit(seat, call);
        self.advance(&mut state);
        let call = loop {
            if let Some(call) = state.take_result(seat) {
                break call;
            }
            let turn = state.turn(seat);
            state = wait(state, &turn);
        };
        if seated.is_none() {
            state.vacate(seat);
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
            state = wait(state, &self.over);
        }
        state
    }

    /// Does all steps that can be done before a thread has to run.
    fn advance(&self, state: &mut ScheduleState) {
        if state.advance() {
            self.over.notify_all();
        }
    }
}

fn wait<'a>(
    state: MutexGuard<'a, ScheduleState>,
    changed: &Condvar,
) -> MutexGuard<'a, ScheduleState> {
    changed.wait(state).unwrap_or_else(PoisonError::into_inner)
}
