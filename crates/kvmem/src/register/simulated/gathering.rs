//! *Gathering*: the threads that work together, where each of them is in time, and who comes next.
//!
//! No thread waits here: see `stage.rs` for that.

use std::sync::{Arc, Condvar};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::world::{Call, Next, World};

#[derive(Debug)]
pub(super) struct State {
    pub(super) world: World,
    /// The time when nobody is gathered.
    time: u64,
    gathering: Option<Gathering>,
    /// Gatherings so far, which are their names.
    gatherings: u64,
    pub(super) impatient: u64,
}

/// The most threads of a gathering.
const MOST_THREADS: usize = 1 << 16;

#[derive(Debug)]
struct Gathering {
    name: u64,
    seats: Vec<Seat>,
    /// The time of the last step.
    time: u64,
    /// When, in real time, something last happened.
    alive: Instant,
}

#[derive(Debug)]
struct Seat {
    thread: Option<ThreadId>,
    /// Its clock; while it waits, the time of its next step.
    time: u64,
    part: Part,
    /// Told when it may go on.
    turn: Arc<Condvar>,
}

#[derive(Debug)]
enum Part {
    /// Nobody has come yet.
    Empty,
    /// Waits to begin.
    Entered,
    /// Waits for its call.
    Calls(Box<Call>),
    /// Its call is done; it has not noticed yet.
    Answered(Box<Call>),
    /// Acts. The others wait for it.
    Acts,
    /// Acts, but the others have lost patience.
    Late,
    Left,
}

/// Where a thread sits.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) gathering: u64,
    pub(super) seat: usize,
    pub(super) turn: Arc<Condvar>,
}

impl State {
    pub(super) fn new(world: World) -> State {
        State { world, time: 0, gathering: None, gatherings: 0, impatient: 0 }
    }

    /// Whether nobody is gathered.
    pub(super) fn is_free(&self) -> bool {
        self.gathering.is_none()
    }

    /// How long, in real time, nothing has happened.
    pub(super) fn still_for(&self) -> Duration {
        self.gathering.as_ref().map_or(Duration::ZERO, |gathering| gathering.alive.elapsed())
    }

    /// The clock of a thread. One that has left still knows when.
    pub(super) fn time_of(&self, thread: ThreadId) -> u64 {
        let seats = self.gathering.iter().flat_map(|gathering| &gathering.seats);
        seats
            .filter(|seat| seat.thread == Some(thread))
            .map(|seat| seat.time)
            .fold(self.time, u64::max)
    }

    /// Begins a gathering, of which this thread has the first seat. Nobody is gathered yet.
    pub(super) fn open(&mut self, threads: usize, first: ThreadId) -> Place {
        let time = self.time;
        let seat = |thread| Seat { thread, time, part: Part::Empty, turn: Arc::default() };
        let mut seats = vec![seat(Some(first))];
        seats.extend((1..threads.min(MOST_THREADS)).map(|_| seat(None)));
        self.gatherings += 1;
        let place = Place { gathering: self.gatherings, seat: 0, turn: Arc::clone(&seats[0].turn) };
        self.gathering =
            Some(Gathering { name: self.gatherings, seats, time, alive: Instant::now() });
        place
    }

    /// Where a thread sits, if it has not left.
    pub(super) fn place_of(&self, thread: ThreadId) -> Option<Place> {
        let gathering = self.gathering.as_ref()?;
        let here = |seat: &Seat| seat.thread == Some(thread) && !matches!(seat.part, Part::Left);
        let seat = gathering.seats.iter().position(here)?;
        Some(Place {
            gathering: gathering.name,
            seat,
            turn: Arc::clone(&gathering.seats[seat].turn),
        })
    }

    /// A thread takes its seat. `None` if there is no such seat, or not for it.
    pub(super) fn take(&mut self, number: usize, thread: ThreadId) -> Option<Place> {
        let gathering = self.gathering.as_mut()?;
        let seat = gathering.seats.get_mut(number)?;
        if !matches!(seat.part, Part::Empty) || seat.thread.is_some_and(|other| other != thread) {
            return None;
        }
        seat.thread = Some(thread);
        seat.part = Part::Entered;
        Some(Place { gathering: gathering.name, seat: number, turn: Arc::clone(&seat.turn) })
    }

    fn seat(&mut self, gathering: u64, number: usize) -> Option<&mut Seat> {
        self.gathering.as_mut().filter(|now| now.name == gathering)?.seats.get_mut(number)
    }

    /// Whether a thread need not wait to begin.
    pub(super) fn may_act(&mut self, place: &Place) -> bool {
        self.seat(place.gathering, place.seat)
            .is_none_or(|seat| !matches!(seat.part, Part::Entered))
    }

    /// A thread makes a call.
    pub(super) fn ask(&mut self, place: &Place, mut call: Call) {
        call.thread = place.seat;
        let now = self.gathering.as_ref().map_or(0, |gathering| gathering.time);
        if let Some(seat) = self.seat(place.gathering, place.seat) {
            if matches!(seat.part, Part::Late) {
                seat.time = seat.time.max(now);
            }
            seat.part = Part::Calls(Box::new(call));
        }
    }

    /// Takes the answer, if it is there: the thread acts from now on.
    pub(super) fn answer(&mut self, place: &Place) -> Option<Box<Call>> {
        let part = &mut self.seat(place.gathering, place.seat)?.part;
        match std::mem::replace(part, Part::Acts) {
            Part::Answered(call) => Some(call),
            other => {
                *part = other;
                None
            }
        }
    }

    /// A thread has left, if that gathering is still going on.
    pub(super) fn vacate(&mut self, gathering: u64, number: usize) {
        if let Some(seat) = self.seat(gathering, number) {
            seat.part = Part::Left;
        }
    }

    /// Does steps until a thread has to act; says whether the gathering is over.
    pub(super) fn go_on(&mut self) -> bool {
        let Some(gathering) = &mut self.gathering else { return false };
        gathering.alive = Instant::now();
        loop {
            let acts =
                |seat: &Seat| matches!(seat.part, Part::Empty | Part::Acts | Part::Answered(_));
            if gathering.seats.iter().any(acts) {
                return false;
            }
            let order = |(number, seat): (usize, &Seat)| match &seat.part {
                Part::Entered => Some((seat.time, 0, number)),
                Part::Calls(call) => Some((seat.time, call.rank(), number)),
                _ => None,
            };
            let Some((now, _, number)) = gathering.seats.iter().enumerate().filter_map(order).min()
            else {
                if gathering.seats.iter().any(|seat| matches!(seat.part, Part::Late)) {
                    return false;
                }
                let latest = gathering.seats.iter().map(|seat| seat.time).fold(self.time, u64::max);
                self.time = latest;
                self.gathering = None;
                return true;
            };
            gathering.time = now;
            match std::mem::replace(&mut gathering.seats[number].part, Part::Acts) {
                Part::Calls(mut call) => {
                    // A call that waits for its beginning begins now: time passes only in calls.
                    let minded = |seat: &&Seat| matches!(&seat.part, Part::Calls(other) if call.minds(other));
                    let others = gathering.seats.iter().filter(minded).count();
                    let seat = &mut gathering.seats[number];
                    match self.world.step(&mut call, now, others) {
                        Next::At(time) => {
                            seat.time = time;
                            seat.part = Part::Calls(call);
                        }
                        Next::Done => {
                            seat.part = Part::Answered(call);
                            seat.turn.notify_all();
                            return false;
                        }
                    }
                }
                // It has entered, and is told to act.
                _ => {
                    gathering.seats[number].turn.notify_all();
                    return false;
                }
            }
        }
    }

    /// Gives up on those that are waited for. Says whether there were any.
    pub(super) fn lose_patience(&mut self) -> bool {
        let Some(gathering) = &mut self.gathering else { return false };
        let mut any = false;
        for seat in &mut gathering.seats {
            match seat.part {
                Part::Empty => seat.part = Part::Left,
                Part::Acts => seat.part = Part::Late,
                _ => continue,
            }
            any = true;
        }
        self.impatient += u64::from(any);
        any
    }
}
