//! The initial contents of the space, and the step that a thread repeats.
//!
//! A step is at most one call, so all calls have equal weight. In scenarios with changing blocks,
//! each thread keeps a share of the space in use. It allocates while it has less. It frees one of
//! its blocks, each equally likely, when it has more or when a request failed.

use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use kvmem_testkit::workload::Rng;
use rand::{RngExt, SeedableRng};

use super::ConcurrencyScenario;
use super::ConcurrencyScenario::{
    CrossThread, Fragmented, HighWater, Impossible, Pair2M, Pair4K, PairOdd, TooFragmented,
};
use crate::bench::contender::{Contender, Space};
use crate::bench::lock::{lock, yield_now};
use crate::bench::suite::SMALLEST;

/// Bytes of the space.
pub(crate) const CAPACITY: u64 = if SMALLEST { 2 << 30 } else { 16 << 30 };
/// The largest number of live ranges.
const MAX_LIVE: usize = if SMALLEST { 1 << 14 } else { 1 << 17 };
/// A request size that exceeds the free bytes in every scenario that uses it.
const IMPOSSIBLE: u64 = CAPACITY / 2;
/// A request size that the free bytes of a fragmented space exceed, and no hole reaches.
const TOO_LONG: u64 = CAPACITY / 4;
/// Sizes of `high-water`, and of the pairs.
const SIZES: [u64; 3] = [4 << 10, 2 << 20, 3_274_752];
/// Sizes of `fragmented`.
const FRAGMENTED_MIN: u64 = 64 << 10;
const FRAGMENTED_MAX: u64 = 448 << 10;
/// Handles that are passed on together, and the batches in transit to one thread.
const BATCH: usize = 32;
const MAX_BATCHES: usize = 8;
const SEED: u64 = 123_456_789;

/// An unexpected result of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::bench) enum OddResult {
    #[error("a request for {0} bytes succeeded although fewer are free")]
    Served(u64),
    #[error("a request for {0} bytes failed in a nearly empty space")]
    Failed(u64),
}

/// The places for batches in transit to one thread. Sender and receiver go through them in turn and
/// exchange their own buffer for the one in the place, so no buffer is allocated while the clock
/// runs.
type Inbox<H> = [Place<H>; MAX_BATCHES];

/// A place for one batch, on cache lines of its own: sender and receiver fetch it once each.
#[repr(align(128))]
struct Place<H> {
    is_full: AtomicBool,
    batch: Mutex<Vec<H>>,
}

impl<H> Place<H> {
    fn new() -> Self {
        Self { is_full: AtomicBool::new(false), batch: Mutex::new(Vec::with_capacity(BATCH)) }
    }

    /// Exchanges `batch` for the one in the place, if the place is full or empty, as expected;
    /// returns whether it did.
    fn exchange(&self, batch: &mut Vec<H>, is_full: bool) -> bool {
        // Acquire pairs with the Release below: the other side has left the place.
        let ready = self.is_full.load(Ordering::Acquire) == is_full;
        if ready {
            let mut place = lock(&self.batch);
            std::mem::swap(&mut *place, batch);
            drop(place);
            // Release pairs with the Acquire above.
            self.is_full.store(!is_full, Ordering::Release);
        }
        ready
    }
}

/// The state that all threads share.
pub(in crate::bench) struct ScenarioState<C: Contender> {
    // Handles are dropped before their allocator.
    inboxes: Vec<Inbox<C::Handle>>,
    /// The initial blocks of each thread, until the thread takes them.
    shares: Vec<Mutex<Vec<LiveBlock<C::Handle>>>>,
    scenario: ConcurrencyScenario,
    space: C,
}

struct LiveBlock<H> {
    _range: H,
    size: u64,
}

impl<C: Contender> ScenarioState<C> {
    pub(in crate::bench) fn new(scenario: ConcurrencyScenario, threads: u32) -> Result<Self> {
        let space = C::create(Space { capacity: CAPACITY, max_live: MAX_LIVE })?;
        let mut scene = Self {
            inboxes: (0..threads).map(|_| std::array::from_fn(|_| Place::new())).collect(),
            shares: (0..threads).map(|_| Mutex::default()).collect(),
            scenario,
            space,
        };
        scene.fill();
        match hopeless(scenario) {
            Some(size) if scene.space.allocate(size).is_some() => {
                Err(OddResult::Served(size).into())
            }
            _ => Ok(scene),
        }
    }

    /// Returns the bytes that stay in use.
    fn target(&self) -> u64 {
        match self.scenario {
            HighWater | Impossible => CAPACITY / 10 * 9,
            Fragmented | TooFragmented => CAPACITY / 2,
            Pair4K | Pair2M | PairOdd | CrossThread => 0,
        }
    }

    /// Fills the space to its target and distributes the blocks. A fragmented space is filled
    /// completely, and then every second block is freed.
    fn fill(&mut self) {
        let mut random = Rng::seed_from_u64(SEED);
        let thin = is_fragmented(self.scenario);
        let target = if thin { CAPACITY } else { self.target() };
        let mut used = 0;
        let mut blocks = Vec::new();
        while used < target {
            let size = draw(self.scenario, &mut random);
            let Some(range) = self.space.allocate(size) else { break };
            used += size;
            blocks.push(LiveBlock { _range: range, size });
        }
        let threads = self.shares.len();
        let step = if thin { 2 } else { 1 };
        for (i, block) in blocks.into_iter().step_by(step).enumerate() {
            if let Ok(share) = self.shares[i % threads].get_mut() {
                share.push(block);
            }
        }
    }

    /// Creates the state of thread `index`.
    pub(in crate::bench) fn worker(&self, index: usize) -> ScenarioWorker<'_, C> {
        let mut own = Vec::with_capacity(MAX_LIVE / self.shares.len());
        own.append(&mut lock(&self.shares[index]));
        ScenarioWorker {
            used: own.iter().map(|block| block.size).sum(),
            target: self.target() / self.shares.len() as u64,
            own,
            held: None,
            outgoing: Vec::with_capacity(BATCH),
            incoming: Vec::with_capacity(BATCH),
            sent: 0,
            received: 0,
            index,
            random: Rng::seed_from_u64(SEED + 1 + index as u64),
            error: None,
            scene: self,
        }
    }
}

/// Returns whether the space of `scenario` is half free, in holes of many sizes.
fn is_fragmented(scenario: ConcurrencyScenario) -> bool {
    matches!(scenario, Fragmented | TooFragmented)
}

/// Returns the size of the requests of `scenario` that must fail, if it makes any.
fn hopeless(scenario: ConcurrencyScenario) -> Option<u64> {
    match scenario {
        HighWater | Impossible => Some(IMPOSSIBLE),
        TooFragmented => Some(TOO_LONG),
        _ => None,
    }
}

/// Draws a size of `scenario`.
fn draw(scenario: ConcurrencyScenario, random: &mut Rng) -> u64 {
    if is_fragmented(scenario) {
        random.random_range(FRAGMENTED_MIN..=FRAGMENTED_MAX)
    } else {
        SIZES[random.random_range(0..SIZES.len())]
    }
}

/// The state of one thread.
pub(in crate::bench) struct ScenarioWorker<'a, C: Contender> {
    own: Vec<LiveBlock<C::Handle>>,
    /// Bytes of `own`.
    used: u64,
    target: u64,
    held: Option<C::Handle>,
    outgoing: Vec<C::Handle>,
    incoming: Vec<C::Handle>,
    /// Batches so far.
    sent: usize,
    received: usize,
    index: usize,
    random: Rng,
    /// An unexpected result of a call.
    pub(in crate::bench) error: Option<OddResult>,
    scene: &'a ScenarioState<C>,
}

impl<C: Contender> ScenarioWorker<'_, C> {
    /// Makes at most one call, inside `timed`; returns the number of calls.
    #[inline(always)]
    pub(in crate::bench) fn step(&mut self, timed: &mut impl Timed) -> u64 {
        match self.scene.scenario {
            Pair4K => self.pair(SIZES[0], timed),
            Pair2M => self.pair(SIZES[1], timed),
            PairOdd => self.pair(SIZES[2], timed),
            HighWater if self.random.random_range(0..20) == 0 => {
                self.request_hopeless(IMPOSSIBLE, timed)
            }
            HighWater | Fragmented => self.churn(timed),
            Impossible => self.request_hopeless(IMPOSSIBLE, timed),
            TooFragmented => self.request_hopeless(TOO_LONG, timed),
            CrossThread => self.pass(timed),
        }
    }

    #[inline(always)]
    fn pair(&mut self, size: u64, timed: &mut impl Timed) -> u64 {
        match self.held.take() {
            Some(range) => timed.call(|| drop(range)),
            None => {
                let allocate = || self.scene.space.allocate(size);
                self.held = timed.call(allocate);
                if self.held.is_none() {
                    self.error = Some(OddResult::Failed(size));
                }
            }
        }
        1
    }

    #[inline(always)]
    fn request_hopeless(&mut self, size: u64, timed: &mut impl Timed) -> u64 {
        let allocate = || self.scene.space.allocate(size);
        if timed.call(allocate).is_some() {
            self.error = Some(OddResult::Served(size));
        }
        1
    }

    #[inline(always)]
    fn churn(&mut self, timed: &mut impl Timed) -> u64 {
        if self.used < self.target && self.own.len() < self.own.capacity() {
            let size = draw(self.scene.scenario, &mut self.random);
            let allocate = || self.scene.space.allocate(size);
            match timed.call(allocate) {
                Some(range) => {
                    self.used += size;
                    self.own.push(LiveBlock { _range: range, size });
                }
                // Full or fragmented: the next free makes space.
                None => self.target = self.used.min(self.target),
            }
        } else if !self.own.is_empty() {
            let victim = self.random.random_range(0..self.own.len());
            let block = self.own.swap_remove(victim);
            self.used -= block.size;
            timed.call(|| drop(block));
            self.target = self.scene.target() / self.scene.shares.len() as u64;
        }
        1
    }

    /// Alternates between freeing a received range and allocating one to send.
    #[inline(always)]
    fn pass(&mut self, timed: &mut impl Timed) -> u64 {
        if self.incoming.is_empty() {
            self.receive();
        }
        if self.outgoing.len() == BATCH {
            self.send();
        }
        // Sends as many as it receives, at most one batch ahead.
        if self.outgoing.len() < BATCH && self.outgoing.len() + self.incoming.len() <= BATCH {
            let allocate = || self.scene.space.allocate(SIZES[0]);
            match timed.call(allocate) {
                Some(range) => self.outgoing.push(range),
                None => self.error = Some(OddResult::Failed(SIZES[0])),
            }
            return 1;
        }
        match self.incoming.pop() {
            Some(range) => {
                timed.call(|| drop(range));
                1
            }
            None => {
                yield_now();
                0
            }
        }
    }

    fn receive(&mut self) {
        let place = &self.scene.inboxes[self.index][self.received % MAX_BATCHES];
        self.received += usize::from(place.exchange(&mut self.incoming, true));
    }

    /// Sends the outgoing batch to the next thread, unless that thread has enough batches.
    fn send(&mut self) {
        let next = (self.index + 1) % self.scene.inboxes.len();
        let place = &self.scene.inboxes[next][self.sent % MAX_BATCHES];
        if place.exchange(&mut self.outgoing, false) {
            self.sent += 1;
            // Fetches the lines of the other thread's buffer at once. One by one, as handles are
            // stored, each line would take as long as several calls.
            for place in self.outgoing.spare_capacity_mut() {
                *place = MaybeUninit::zeroed();
            }
        }
    }
}

/// A wrapper around each call.
pub(in crate::bench) trait Timed {
    fn call<R>(&mut self, call: impl FnOnce() -> R) -> R;
}

/// No wrapper, for measuring the rate.
impl Timed for () {
    #[inline(always)]
    fn call<R>(&mut self, call: impl FnOnce() -> R) -> R {
        call()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::contender::binned::Binned;
    use kvmem::slab::ExtentCache;

    fn steps<C: Contender>() {
        for scenario in ConcurrencyScenario::ALL {
            let scene = ScenarioState::<C>::new(scenario, 2).unwrap();
            let mut workers = [scene.worker(0), scene.worker(1)];
            let target = scene.target() as f64;
            let mut calls = 0;
            for _ in 0..20_000 {
                for worker in &mut workers {
                    calls += worker.step(&mut ());
                    assert_eq!(worker.error, None, "{scenario}");
                }
            }
            assert!(calls >= 20_000, "{scenario}: {calls}");
            let used: u64 = workers.iter().map(|worker| worker.used).sum();
            assert!(
                used as f64 >= 0.85 * target && used as f64 <= 1.02 * target,
                "{scenario}: {used} of {target}"
            );
        }
    }

    #[test]
    fn scenarios_stay_as_they_were_prepared() {
        steps::<ExtentCache>();
        steps::<Binned>();
    }
}
