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
    gathering: Option<Gathering>,
    /// The number of gatherings so far, which is the name of the last one.
    gatherings: u64,
}

/// The largest number of threads of a gathering.
const MAX_THREADS: usize = 1 << 16;

#[derive(Debug)]
struct Gathering {
    name: u64,
    seats: Vec<Seat>,
}

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

/// A reference to a thread's seat.
#[derive(Debug)]
pub(super) struct SeatRef {
    pub(super) gathering: u64,
    pub(super) seat: usize,
    pub(super) turn: Arc<Condvar>,
}

impl ScheduleState {
    pub(super) fn new(world: World) -> ScheduleState {
        ScheduleState { world, time: 0, gathering: None, gatherings: 0 }
    }

    /// Returns whether there is no gathering.
    pub(super) fn is_free(&self) -> bool {
        self.gathering.is_none()
    }

    /// Returns the clock of a thread, also of one that has left.
    pub(super) fn time_of(&self, thread: ThreadId) -> u64 {
        let seats = self.gathering.iter().flat_map(|gathering| &gathering.seats);
        seats
            .filter(|seat| seat.thread == Some(thread))
            .map(|seat| seat.time)
            .fold(self.time, u64::max)
    }

    /// Begins a gathering and gives its first seat to this thread. There must be no gathering.
    pub(super) fn open(&mut self, threads: usize, first: ThreadId) -> SeatRef {
        let time = self.time;
        let seat = |thread| Seat { thread, time, state: SeatState::Vacant, turn: Arc::default() };
        let mut seats = vec![seat(Some(first))];
        seats.extend((1..threads.min(MAX_THREADS)).map(|_| seat(None)));
        self.gatherings += 1;
        let seat_ref =
            SeatRef { gathering: self.gatherings, seat: 0, turn: Arc::clone(&seats[0].turn) };
        self.gathering = Some(Gathering { name: self.gatherings, seats });
        seat_ref
    }

    /// Returns the seat of a thread that has not left.
    pub(super) fn seat_of(&self, thread: ThreadId) -> Option<SeatRef> {
        let gathering = self.gathering.as_ref()?;
        let here =
            |seat: &Seat| seat.thread == Some(thread) && !matches!(seat.state, SeatState::Left);
        let seat = gathering.seats.iter().position(here)?;
        Some(SeatRef {
            gathering: gathering.name,
            seat,
            turn: Arc::clone(&gathering.seats[seat].turn),
        })
    }

    /// Gives a seat to a thread. `None` if there is no such seat, or it belongs to another thread.
    pub(super) fn take(&mut self, number: usize, thread: ThreadId) -> Option<SeatRef> {
        let gathering = self.gathering.as_mut()?;
        let seat = gathering.seats.get_mut(number)?;
        if !matches!(seat.state, SeatState::Vacant)
            || seat.thread.is_some_and(|other| other != thread)
        {
            return None;
        }
        seat.thread = Some(thread);
        seat.state = SeatState::Entered;
        Some(SeatRef { gathering: gathering.name, seat: number, turn: Arc::clone(&seat.turn) })
    }

    fn seat(&mut self, gathering: u64, number: usize) -> Option<&mut Seat> {
        self.gathering.as_mut().filter(|now| now.name == gathering)?.seats.get_mut(number)
    }

    /// Returns whether a thread need not wait to begin.
    pub(super) fn may_run(&mut self, seat_ref: &SeatRef) -> bool {
        self.seat(seat_ref.gathering, seat_ref.seat)
            .is_none_or(|seat| !matches!(seat.state, SeatState::Entered))
    }

    /// Submits a thread's call.
    pub(super) fn submit(&mut self, seat_ref: &SeatRef, mut call: SimulatedCall) {
        call.thread = seat_ref.seat;
        if let Some(seat) = self.seat(seat_ref.gathering, seat_ref.seat) {
            seat.state = SeatState::Waiting(Box::new(call));
        }
    }

    /// Returns the finished call, if there is one; the thread runs from now on.
    pub(super) fn take_result(&mut self, seat_ref: &SeatRef) -> Option<Box<SimulatedCall>> {
        let state = &mut self.seat(seat_ref.gathering, seat_ref.seat)?.state;
        match std::mem::replace(state, SeatState::Runs) {
            SeatState::Done(call) => Some(call),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Records that a thread has left, if its gathering still exists.
    pub(super) fn vacate(&mut self, gathering: u64, number: usize) {
        if let Some(seat) = self.seat(gathering, number) {
            seat.state = SeatState::Left;
        }
    }

    /// Does steps until a thread has to run; returns whether the gathering has ended.
    pub(super) fn advance(&mut self) -> bool {
        let Some(gathering) = &mut self.gathering else { return false };
        loop {
            let runs = |seat: &Seat| {
                matches!(seat.state, SeatState::Vacant | SeatState::Runs | SeatState::Done(_))
            };
            if gathering.seats.iter().any(runs) {
                return false;
            }
            let order = |(number, seat): (usize, &Seat)| match &seat.state {
                SeatState::Entered => Some((seat.time, 0, number)),
                SeatState::Waiting(call) => Some((seat.time, call.rank(), number)),
                _ => None,
            };
            let Some((now, _, number)) = gathering.seats.iter().enumerate().filter_map(order).min()
            else {
                let latest = gathering.seats.iter().map(|seat| seat.time).fold(self.time, u64::max);
                self.time = latest;
                self.gathering = None;
                return true;
            };
            match std::mem::replace(&mut gathering.seats[number].state, SeatState::Runs) {
                SeatState::Waiting(mut call) => {
                    // A call that waits for its beginning begins now: time passes only in calls.
                    let slowed = |seat: &&Seat| match &seat.state {
                        SeatState::Waiting(other) => call.slows(other),
                        _ => false,
                    };
                    let others = gathering.seats.iter().filter(slowed).count();
                    let seat = &mut gathering.seats[number];
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
                    gathering.seats[number].turn.notify_all();
                    return false;
                }
            }
        }
    }
}
