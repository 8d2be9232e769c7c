//! *Lanes*: who does what next.
//!
//! Each registrar is a lane: its chunks are done in order, one at a time. Threads take turns: a
//! thread that is free takes the next chunk of the lane that is furthest behind, of those that
//! nobody is in. So all lanes come forward together, chunk by chunk, and what has been done of a
//! lane is always a prefix.
//!
//! A thread that finds no lane to enter is done: every lane with work left has a thread in it,
//! which will look again when it comes out.

// The model check sees what is public here.
#![cfg_attr(not(loom), allow(unreachable_pub))]

use crate::sync::Mutex;

/// The lanes of one piece of work; `T` is what doing a chunk leaves behind.
#[derive(Debug)]
pub struct Lanes<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    lanes: Vec<Lane<T>>,
    /// Whether a chunk has failed: then no more are handed out.
    stopped: bool,
}

#[derive(Debug)]
struct Lane<T> {
    /// How many chunks may be done for now.
    open: usize,
    /// Whether a thread is in it.
    busy: bool,
    done: Vec<T>,
}

/// A chunk that the calling thread is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Which lane.
    pub lane: usize,
    /// Which of its chunks.
    pub index: usize,
}

impl<T> Lanes<T> {
    /// So many lanes, all closed.
    pub fn new(lanes: usize) -> Lanes<T> {
        let lanes = (0..lanes).map(|_| Lane { open: 0, busy: false, done: Vec::new() }).collect();
        Lanes { state: Mutex::new(State { lanes, stopped: false }) }
    }

    /// Opens each lane up to so many chunks in all. A lane that is open further stays so.
    pub fn open(&self, upto: impl IntoIterator<Item = usize>) {
        for (lane, upto) in self.state.lock().lanes.iter_mut().zip(upto) {
            lane.open = lane.open.max(upto);
        }
    }

    /// The next chunk, or `None` if this thread is not needed any more. A chunk that was taken is
    /// to be [finished](Lanes::finish).
    pub fn take(&self) -> Option<Turn> {
        let mut state = self.state.lock();
        if state.stopped {
            return None;
        }
        let free = |(_, lane): &(usize, &mut Lane<T>)| !lane.busy && lane.done.len() < lane.open;
        let (number, lane) = state
            .lanes
            .iter_mut()
            .enumerate()
            .filter(free)
            .min_by_key(|(_, lane)| lane.done.len())?;
        lane.busy = true;
        Some(Turn { lane: number, index: lane.done.len() })
    }

    /// The chunk of this turn is done, or has failed, which stops all others.
    pub fn finish(&self, turn: Turn, done: Option<T>) {
        let mut state = self.state.lock();
        let lane = &mut state.lanes[turn.lane];
        debug_assert!(lane.busy && lane.done.len() == turn.index, "a turn is finished once");
        lane.busy = false;
        match done {
            Some(done) => lane.done.push(done),
            None => state.stopped = true,
        }
    }

    /// Stops: no more chunks are handed out.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
    }

    /// How many chunks have been done in a lane.
    pub fn count(&self, lane: usize) -> usize {
        self.state.lock().lanes[lane].done.len()
    }

    /// What the chunk left behind, if it has been done.
    pub fn get(&self, lane: usize, index: usize) -> Option<T>
    where
        T: Copy,
    {
        self.state.lock().lanes[lane].done.get(index).copied()
    }

    /// All that was done, lane by lane.
    pub fn all(&self) -> Vec<Vec<T>>
    where
        T: Clone,
    {
        self.state.lock().lanes.iter().map(|lane| lane.done.clone()).collect()
    }

    /// Stops, and takes out all that was done, lane by lane. Nobody is in a lane.
    pub fn drain(&self) -> Vec<Vec<T>> {
        let mut state = self.state.lock();
        state.stopped = true;
        state.lanes.iter_mut().map(|lane| std::mem::take(&mut lane.done)).collect()
    }
}
