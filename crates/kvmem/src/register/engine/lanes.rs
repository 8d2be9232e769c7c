//! *Lanes*: the schedule of threads and chunks.
//!
//! Each registrar has a *lane*: its chunks are done in order, one at a time. An idle thread takes
//! the next chunk of the lane that has done the fewest chunks, among the lanes that no thread is
//! working in. All lanes therefore advance together, chunk by chunk, and the chunks done in a lane
//! are always a prefix.
//!
//! A thread that finds no free lane is done: every lane with remaining work has a thread in it,
//! and that thread looks again when it finishes its chunk.

use crate::sync::Mutex;

/// The lanes of one run; `T` is the result of one chunk.
#[derive(Debug)]
pub(crate) struct Lanes<T> {
    state: Mutex<LanesState<T>>,
}

#[derive(Debug)]
struct LanesState<T> {
    lanes: Vec<LaneState<T>>,
    /// Whether a chunk has failed; no more chunks are handed out then.
    stopped: bool,
}

#[derive(Debug)]
struct LaneState<T> {
    /// The number of chunks that may be done for now.
    open: usize,
    /// Whether a thread is working in this lane.
    busy: bool,
    done: Vec<T>,
}

/// A chunk assigned to the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkTurn {
    /// The index of the lane.
    pub(crate) lane: usize,
    /// The index of the chunk in its lane.
    pub(crate) index: usize,
}

impl<T> Lanes<T> {
    /// Returns `lanes` lanes, all closed.
    #[must_use]
    pub(crate) fn new(lanes: usize) -> Lanes<T> {
        let lanes =
            (0..lanes).map(|_| LaneState { open: 0, busy: false, done: Vec::new() }).collect();
        Lanes { state: Mutex::new(LanesState { lanes, stopped: false }) }
    }

    /// Opens each lane up to this number of chunks in total. A lane never becomes less open.
    pub(crate) fn open(&self, limits: impl IntoIterator<Item = usize>) {
        for (lane, limits) in self.state.lock().lanes.iter_mut().zip(limits) {
            lane.open = lane.open.max(limits);
        }
    }

    /// Returns the next chunk, or `None` if this thread has no more work. The caller
    /// [finishes](Lanes::finish) every chunk that it takes.
    #[must_use = "a chunk that is taken must be finished"]
    pub(crate) fn take(&self) -> Option<ChunkTurn> {
        let mut state = self.state.lock();
        if state.stopped {
            return None;
        }
        let free =
            |(_, lane): &(usize, &mut LaneState<T>)| !lane.busy && lane.done.len() < lane.open;
        let (number, lane) = state
            .lanes
            .iter_mut()
            .enumerate()
            .filter(free)
            .min_by_key(|(_, lane)| lane.done.len())?;
        lane.busy = true;
        Some(ChunkTurn { lane: number, index: lane.done.len() })
    }

    /// Finishes this turn with the chunk's result; `None` means that it failed, which stops all
    /// lanes.
    pub(crate) fn finish(&self, turn: ChunkTurn, done: Option<T>) {
        let mut state = self.state.lock();
        let lane = &mut state.lanes[turn.lane];
        debug_assert!(lane.busy && lane.done.len() == turn.index, "a turn is finished once");
        lane.busy = false;
        match done {
            Some(done) => lane.done.push(done),
            None => state.stopped = true,
        }
    }

    /// Stops the lanes: no more chunks are handed out.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
    }

    /// Returns the number of chunks done in a lane.
    #[must_use]
    pub(crate) fn count(&self, lane: usize) -> usize {
        self.state.lock().lanes[lane].done.len()
    }

    /// Returns the result of a chunk, if it is done.
    #[must_use]
    pub(crate) fn get(&self, lane: usize, index: usize) -> Option<T>
    where
        T: Copy,
    {
        self.state.lock().lanes[lane].done.get(index).copied()
    }

    /// Returns all results, lane by lane.
    #[must_use]
    pub(crate) fn all(&self) -> Vec<Vec<T>>
    where
        T: Clone,
    {
        self.state.lock().lanes.iter().map(|lane| lane.done.clone()).collect()
    }

    /// Stops the lanes and takes all results, lane by lane. No thread may be in a lane.
    #[must_use]
    pub(crate) fn drain(&self) -> Vec<Vec<T>> {
        let mut state = self.state.lock();
        state.stopped = true;
        state.lanes.iter_mut().map(|lane| std::mem::take(&mut lane.done)).collect()
    }
}
