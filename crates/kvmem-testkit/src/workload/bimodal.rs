//! Few large payloads and many small metadata objects with short lives, as reinforcement learning
//! passes them between producers and trainers.
//!
//! Producers work in lockstep. Each step first removes the objects that are due, of all producers.
//! Then the producers allocate in turn, each three payloads and 31 metadata objects. Each object is
//! removed one, two or three steps later, equally likely; its lifetime is drawn per object, or once
//! for the whole batch of a producer. Nothing is evicted.

use rand::RngExt;

use super::{Rng, stream};

/// Bytes of a payload: 10.5 to 12.4 MiB, every size equally likely.
const PAYLOAD_BYTES: std::ops::RangeInclusive<u64> = 11_010_048..=13_002_342;
/// Bytes of a metadata object, each equally likely.
const METADATA_SIZES: [u64; 10] = [256, 512, 808, 1_232, 1_640, 2_472, 3_296, 4_944, 7_416, 9_896];
/// Payloads of a batch; they come first.
pub const PAYLOADS: usize = 3;
/// Objects of a batch.
const BATCH_OBJECTS: usize = PAYLOADS + 31;
/// The longest lifetime in steps.
const MAX_LIFE: u8 = 3;

/// Whether the objects of a batch have a common lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetimes {
    /// Each object has its own lifetime.
    Object,
    /// The whole batch has one lifetime.
    Batch,
}

/// An object of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Size in bytes.
    pub size: u32,
    /// The number of steps until it is removed: 1, 2 or 3.
    pub life: u8,
}

/// The allocations of one producer in one step, payloads first.
pub type Batch = [Object; BATCH_OBJECTS];

/// A run, generated in advance.
#[derive(Clone, Debug)]
pub struct Bimodal {
    producers: usize,
    batches: Vec<Batch>,
    peak_bytes: u64,
}

impl Bimodal {
    /// Generates `steps` steps of `producers` producers from `seed`.
    ///
    /// # Panics
    /// If `producers` is 0.
    #[must_use]
    pub fn new(seed: u64, producers: usize, lifetimes: Lifetimes, steps: usize) -> Self {
        let mut rng = stream(seed, 0);
        let batches: Vec<Batch> =
            (0..steps * producers).map(|_| batch(&mut rng, lifetimes)).collect();
        let mut run = Self { producers, batches, peak_bytes: 0 };
        run.peak_bytes = run.peak();
        run
    }

    /// Returns the steps in order: the batches of the producers, in turn.
    pub fn steps(&self) -> impl Iterator<Item = &[Batch]> {
        self.batches.chunks_exact(self.producers)
    }

    /// Returns the number of payloads in the whole run.
    #[must_use]
    pub fn payloads(&self) -> u64 {
        (self.batches.len() * PAYLOADS) as u64
    }

    /// Returns the largest number of objects alive at once.
    #[must_use]
    pub fn max_live(&self) -> usize {
        self.producers * BATCH_OBJECTS * usize::from(MAX_LIFE)
    }

    /// Returns the peak of live bytes if nothing fails.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    fn peak(&self) -> u64 {
        let mut due = Calendar::<u64>::default();
        let (mut live, mut peak) = (0, 0);
        for step in self.steps() {
            live -= std::mem::take(due.now());
            for object in step.iter().flatten() {
                *due.in_steps(object.life) += u64::from(object.size);
                live += u64::from(object.size);
            }
            peak = peak.max(live);
            due.next();
        }
        peak
    }
}

/// A list of events for each of the coming steps.
#[derive(Clone, Debug, Default)]
pub struct Calendar<T> {
    days: [T; MAX_LIFE as usize + 1],
    now: usize,
}

impl<T> Calendar<T> {
    /// Returns the events of the current step.
    pub fn now(&mut self) -> &mut T {
        &mut self.days[self.now]
    }

    /// Returns the events `life` steps later; a life is at most three steps.
    pub fn in_steps(&mut self, life: u8) -> &mut T {
        let day = (self.now + usize::from(life)) % self.days.len();
        &mut self.days[day]
    }

    /// Advances to the next step.
    pub fn next(&mut self) {
        self.now = (self.now + 1) % self.days.len();
    }
}

fn batch(rng: &mut Rng, lifetimes: Lifetimes) -> Batch {
    let life = |rng: &mut Rng| rng.random_range(1..=MAX_LIFE);
    let common = life(rng);
    std::array::from_fn(|i| {
        let size = if i < PAYLOADS {
            rng.random_range(PAYLOAD_BYTES)
        } else {
            METADATA_SIZES[rng.random_range(0..METADATA_SIZES.len())]
        };
        let life = match lifetimes {
            Lifetimes::Object => life(rng),
            Lifetimes::Batch => common,
        };
        Object { size: size as u32, life }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_equals_that_of_a_plain_replay() {
        let run = Bimodal::new(5, 2, Lifetimes::Object, 60);
        let mut live: Vec<(usize, u64)> = Vec::new(); // (step at which it is due, bytes)
        let mut peak = 0;
        for (now, step) in run.steps().enumerate() {
            live.retain(|&(due, _)| due != now);
            let objects = step.iter().flatten();
            live.extend(objects.map(|o| (now + usize::from(o.life), u64::from(o.size))));
            peak = peak.max(live.iter().map(|&(_, bytes)| bytes).sum());
        }
        assert_eq!(run.peak_bytes(), peak);
    }
}
