//! *Gathering*: the threads that work together, the virtual time of each, and which runs next.
//!
//! No thread blocks in this module; `scheduler.rs` blocks them.

use std::sync::{Arc, Condvar};
use std::thread::ThreadId;

use super::world::{NextStep, SimulatedCall, World};

/// The state of the scheduler.
#[derive(Debug)]
pub(super) struct ScheduleState {
    pub(super) world: World,
    /// The time while there is no gathering.
    time: u64,
    /// The seats of the gathering; empty while there is none.
    seats: Vec<Seat>,
}

/// The largest number of threads of a gathering.
const MAX_THREADS: usize = 1 << 16;

#[derive(Debug)]
struct Seat {
    thread: Option<ThreadId>,
    /// The thread's clock; while it waits, the time of its next step.
    time: u64,
    state: SeatState,
    /// Notified when the thread may continue.
    turn: Arc<Condvar>,
}

#[derive(Debug)]
enum SeatState {
    /// No thread has taken the seat yet.
    Vacant,
    /// Waits to begin.
    Entered,
    /// Waits for its call.
    Waiting(Box<SimulatedCall>),
    /// Its call is done; the thread has not noticed yet.
    Done(Box<SimulatedCall>),
    /// Runs. The others wait for it.
    Runs,
    /// Has left.
    Left,
}

impl ScheduleState {
    pub(super) fn new(world: World) -> ScheduleState {
        ScheduleState { world, time: 0, seats: Vec::new() }
    }

    /// Returns whether there is no gathering.
    pub(super) fn is_free(&self) -> bool {
        self.seats.is_empty()
    }

    /// Returns the clock of a thread, also of one that has left.
    pub(super) fn time_of(&self, thread: ThreadId) -> u64 {
        let own = self.seats.iter().filter(|seat| seat.thread == Some(thread));
        own.map(|seat| seat.time).fold(self.time, u64::max)
    }

    /// Begins a gathering and gives its first seat, 0, to this thread. There must be no gathering.
    pub(super) fn open(&mut self, threads: usize, first: ThreadId) -> usize {
        let time = self.time;
        let seat = |thread| Seat { thread, time, state: SeatState::Vacant, turn: Arc::default() };
        self.seats.push(seat(Some(first)));
        self.seats.extend((1..threads.min(MAX_THREADS)).map(|_| seat(None)));
        0
    }

    /// Returns the seat of a thread that has not left.
    pub(super) fn seat_of(&self, thread: ThreadId) -> Option<usize> {
        self.seats
            .iter()
            .position(|seat| seat.thread == Some(thread) && !matches!(seat.state, SeatState::Left))
    }

    /// Gives a seat to a thread; false if there is no such seat, or it belongs to another thread.
    pub(super) fn take(&mut self, number: usize, thread: ThreadId) -> bool {
        let Some(seat) = self.seats.get_mut(number) else { return false };
        let is_mine = seat.thread.is_none_or(|other| other == thread);
        if !is_mine || !matches!(seat.state, SeatState::Vacant) {
            return false;
        }
        (seat.thread, seat.state) = (Some(thread), SeatState::Entered);
        true
    }

    /// Returns what is notified when the thread of a seat may continue.
    pub(super) fn turn(&self, seat: usize) -> Arc<Condvar> {
        Arc::clone(&self.seats[seat].turn)
    }

    /// Returns whether a thread need not wait to begin.
    pub(super) fn may_run(&self, seat: usize) -> bool {
        !matches!(self.seats[seat].state, SeatState::Entered)
    }

    /// Submits a thread's call.
    pub(super) fn submit(&mut self, seat: usize, mut call: SimulatedCall) {
        call.thread = seat;
        self.seats[seat].state = SeatState::Waiting(Box::new(call));
    }

    /// Returns the finished call, if there is one; the thread runs from now on.
    pub(super) fn take_result(&mut self, seat: usize) -> Option<Box<SimulatedCall>> {
        let state = &mut self.seats[seat].state;
        match std::mem::replace(state, SeatState::Runs) {
            SeatState::Done(call) => Some(call),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Records that a thread has left.
    pub(super) fn vacate(&mut self, seat: usize) {
        self.seats[seat].state = SeatState::Left;
    }

    /// Does steps until a thread has to run; returns whether the gathering has ended.
    pub(super) fn advance(&mut self) -> bool {
        if self.is_free() {
            return false;
        }
        loop {
            let runs = |seat: &Seat| {
                matches!(seat.state, SeatState::Vacant | SeatState::Runs | SeatState::Done(_))
            };
            if self.seats.iter().any(runs) {
                return false;
            }
            let order = |(number, seat): (usize, &Seat)| match &seat.state {
                SeatState::Entered => Some((seat.time, 0, number)),
                SeatState::Waiting(call) => Some((seat.time, call.rank(), number)),
                _ => None,
            };
            let Some((now, _, number)) = self.seats.iter().enumerate().filter_map(order).min()
            else {
                self.time = self.seats.drain(..).map(|seat| seat.time).fold(self.time, u64::max);
                return true;
            };
            match std::mem::replace(&mut self.seats[number].state, SeatState::Runs) {
                SeatState::Waiting(mut call) => {
                    // A call that waits for its beginning begins now: time passes only in calls.
                    let slowed = |seat: &&Seat| match &seat.state {
                        SeatState::Waiting(other) => call.slows(other),
                        _ => false,
                    };
                    let others = self.seats.iter().filter(slowed).count();
                    let seat = &mut self.seats[number];
                    match self.world.step(&mut call, now, others) {
                        NextStep::At(time) => {
                            seat.time = time;
                            seat.state = SeatState::Waiting(call);
                        }
                        NextStep::Done => {
                            seat.state = SeatState::Done(call);
                            seat.turn.notify_all();
                            return false;
                        }
                    }
                }
                // The thread has entered and may run.
                _ => {
                    self.seats[number].turn.notify_all();
                    return false;
                }
            }
        }
    }
}
