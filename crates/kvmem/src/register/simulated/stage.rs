//! *Stage*: the virtual clock, and whose turn it is.
//!
//! Time passes only in calls. What a program does with its threads then depends on nothing but the
//! program, if only one of them acts at a time, in the order of time:
//!
//! ```text
//!  gather(3)          every thread has a seat with a clock of its own
//!  enter(0..3)        waits until all seats are taken
//!  a call             its steps wait until all seats wait; then the earliest step of all is done,
//!                     and when that was the last of its call, its thread goes on, alone
//!  leave              the seat counts no more; with the last one, the machine's time is the latest of the clocks
//! ```
//!
//! A call has several steps (see `world.rs`): it begins, asks for the driver's lock, ends. They are
//! done here, by whichever thread comes in last, so a call wakes no thread but its own. Steps at
//! the same time are done in the order of their rank, then of their threads' numbers.
//!
//! A thread that calls alone is a gathering of one. There is one gathering at a time: others wait
//! for its end. So independent users of one machine do not disturb each other, and do not overlap
//! either.
//!
//! ## What must not happen, and what is done about it
//!
//! - A seat that nobody takes: after [`patience`](super::Builder::patience), in real time, it
//!   counts as left.
//! - A thread that ends without having left, by a panic or otherwise: it has left when its
//!   thread-locals are dropped.
//! - A thread that does not come back to its next call, because it waits for another one of the
//!   gathering, or works for long: after the same patience the others go on without it, and it
//!   joins them again at the time they have reached then.
//!
//! Only the second keeps the result independent of the scheduler. The others are counted, see
//! [`Machine::impatient`](super::Machine::impatient).

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::gathering::{Place, State};
use super::world::{Call, World};

#[derive(Debug)]
pub(super) struct Stage {
    state: Mutex<State>,
    /// Told when a gathering is over.
    over: Condvar,
    patience: Duration,
}

/// A seat that a thread has taken. Dropping it leaves, at the latest when the thread ends.
struct Taken {
    stage: Weak<Stage>,
    gathering: u64,
    seat: usize,
}

thread_local! {
    static TAKEN: RefCell<Vec<Taken>> = const { RefCell::new(Vec::new()) };
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(stage) = self.stage.upgrade() {
            stage.give_up(self.gathering, self.seat);
        }
    }
}

impl Stage {
    pub(super) fn new(world: World, patience: Duration) -> Stage {
        Stage { state: Mutex::new(State::new(world)), over: Condvar::new(), patience }
    }

    /// The books, as they are now.
    pub(super) fn look<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time of the calling thread.
    pub(super) fn now(&self) -> u64 {
        self.lock().time_of(thread::current().id())
    }

    /// Begins a gathering, when the one before is over. The caller has the first seat, but has not
    /// entered yet.
    pub(super) fn gather(self: &Arc<Self>, threads: usize) {
        self.leave();
        let mut state = self.until_free(self.lock());
        let place = state.open(threads, thread::current().id());
        drop(state);
        self.remember(&place);
    }

    /// Takes a seat, and waits until all are taken. A thread for which there is none stays by
    /// itself.
    pub(super) fn enter(self: &Arc<Self>, number: usize) {
        let me = thread::current().id();
        let mut state = self.lock();
        let was_mine = state.place_of(me).is_some();
        let Some(place) = state.take(number, me) else { return };
        self.go_on(&mut state);
        while !state.may_act(&place) {
            state = self.wait(state, &place.turn);
        }
        drop(state);
        if !was_mine {
            // What it may have forgotten to leave before.
            self.leave();
            self.remember(&place);
        }
    }

    /// The calling thread has done its part.
    pub(super) fn leave(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        // Not within `with`: dropping it looks at the stage, and must not find the list borrowed.
        let mine: Result<Vec<Taken>, _> = TAKEN.try_with(|list| {
            list.borrow_mut().extract_if(.., |taken| taken.stage.ptr_eq(&this)).collect()
        });
        drop(mine);
    }

    /// Does a call, in its turn, and gives it back done.
    pub(super) fn call(&self, call: Call) -> Call {
        let me = thread::current().id();
        let mut state = self.lock();
        let seated = state.place_of(me);
        let alone = seated.is_none();
        let place = match seated {
            Some(place) => place,
            None => {
                state = self.until_free(state);
                state.open(1, me)
            }
        };
        state.ask(&place, call);
        self.go_on(&mut state);
        let call = loop {
            if let Some(call) = state.answer(&place) {
                break call;
            }
            state = self.wait(state, &place.turn);
        };
        if alone {
            state.vacate(place.gathering, place.seat);
            self.go_on(&mut state);
        }
        *call
    }

    /// Waits for the end of the gathering that is going on, if there is one.
    fn until_free<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while !state.is_free() {
            state = self.wait(state, &self.over);
        }
        state
    }

    /// Waits for a word; or, if nothing happens for too long, gives up on those that are waited
    /// for.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, word: &Condvar) -> MutexGuard<'a, State> {
        let rest = |state: &State| self.patience.saturating_sub(state.still_for());
        let at_most = rest(&state).max(Duration::from_millis(1));
        let (mut state, _) =
            word.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner);
        if rest(&state).is_zero() && state.lose_patience() {
            self.go_on(&mut state);
        }
        state
    }

    /// Does all that can be done before a thread has to act.
    fn go_on(&self, state: &mut State) {
        if state.go_on() {
            self.over.notify_all();
        }
    }

    fn remember(self: &Arc<Self>, place: &Place) {
        let taken =
            Taken { stage: Arc::downgrade(self), gathering: place.gathering, seat: place.seat };
        // A thread whose thread-locals are gone already cannot be watched: it has to leave by
        // itself, which it has done when `taken` is dropped here.
        let _ = TAKEN.try_with(|list| list.borrow_mut().push(taken));
    }

    fn give_up(&self, gathering: u64, seat: usize) {
        let mut state = self.lock();
        state.vacate(gathering, seat);
        self.go_on(&mut state);
    }
}
