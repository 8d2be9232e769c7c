//! Few large payloads and many small metadata objects with short lives, as rollouts of reinforcement
//! learning pass them between producers and trainers.
//!
//! Producers take turns. A turn of one producer is a *step* of its own: what is due is removed, then three
//! payloads and 31 metadata objects are allocated. Each is removed one, two or three steps of the same producer
//! later, equally likely; the draw is made for each object, or once for the whole batch. Nothing is evicted.

use rand::RngExt;

use super::{Rng, stream};

/// Bytes of a payload: 10.5 to 12.4 MiB, every size equally likely.
pub const PAYLOAD_BYTES: std::ops::RangeInclusive<u64> = 11_010_048..=13_002_342;
/// Bytes of a metadata object, equally likely.
pub const METADATA_SIZES: [u64; 10] = [256, 512, 808, 1_232, 1_640, 2_472, 3_296, 4_944, 7_416, 9_896];
/// Payloads of a batch; they come first.
pub const PAYLOADS: usize = 3;
/// Objects of a batch.
pub const BATCH_OBJECTS: usize = PAYLOADS + 31;
/// The longest life in steps.
const LIFE_MAX: usize = 3;

/// Whether the objects of a batch live and die together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetimes {
    /// Each object has a life of its own.
    Object,
    /// One life for the whole batch.
    Batch,
}

/// An object of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Size in bytes.
    pub size: u32,
    /// Removed that many steps of its producer later: 1, 2 or 3.
    pub life: u8,
}

/// One producer's turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whose turn it is.
    pub producer: usize,
    /// What it allocates, payloads first.
    pub objects: [Object; BATCH_OBJECTS],
}

/// A run, laid down in advance.
#[derive(Clone, Debug)]
pub struct Bimodal {
    producers: usize,
    steps: Vec<Step>,
    peak_bytes: u64,
}

impl Bimodal {
    /// `turns` turns of `producers` producers, drawn from `seed`.
    pub fn new(seed: u64, producers: usize, lifetimes: Lifetimes, turns: usize) -> Self {
        let mut rng = stream(seed, 0);
        let steps: Vec<Step> = (0..turns)
            .map(|turn| Step { producer: turn % producers, objects: batch(&mut rng, lifetimes) })
            .collect();
        let peak_bytes = peak(&steps, producers);
        Self { producers, steps, peak_bytes }
    }

    /// How many producers take turns.
    pub fn producers(&self) -> usize {
        self.producers
    }

    /// The turns in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The most bytes that are alive at any time, if nothing fails.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }
}

fn batch(rng: &mut Rng, lifetimes: Lifetimes) -> [Object; BATCH_OBJECTS] {
    let life = |rng: &mut Rng| rng.random_range(1..=LIFE_MAX as u8);
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

fn peak(steps: &[Step], producers: usize) -> u64 {
    // Bytes of each producer that fall due at its step number modulo the longest life plus one.
    let mut due = vec![[0u64; LIFE_MAX + 1]; producers];
    let mut own_steps = vec![0usize; producers];
    let (mut live, mut peak) = (0, 0);
    for step in steps {
        let (due, now) = (&mut due[step.producer], &mut own_steps[step.producer]);
        live -= std::mem::take(&mut due[*now % (LIFE_MAX + 1)]);
        for object in &step.objects {
            due[(*now + usize::from(object.life)) % (LIFE_MAX + 1)] += u64::from(object.size);
            live += u64::from(object.size);
        }
        peak = peak.max(live);
        *now += 1;
    }
    peak
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_lives_and_turns_are_in_range_and_repeat() {
        let run = Bimodal::new(3, 8, Lifetimes::Object, 800);
        for (turn, step) in run.steps().iter().enumerate() {
            assert_eq!(step.producer, turn % 8);
            assert!(step.objects.iter().all(|o| (1..=3).contains(&o.life)));
            assert!(step.objects[..PAYLOADS].iter().all(|o| PAYLOAD_BYTES.contains(&u64::from(o.size))));
            assert!(step.objects[PAYLOADS..].iter().all(|o| METADATA_SIZES.contains(&u64::from(o.size))));
        }
        assert_eq!(run.steps(), Bimodal::new(3, 8, Lifetimes::Object, 800).steps());
        assert_ne!(run.steps(), Bimodal::new(4, 8, Lifetimes::Object, 800).steps());
    }

    #[test]
    fn a_batch_dies_together_when_asked_to() {
        let lives = |lifetimes| {
            let run = Bimodal::new(3, 1, lifetimes, 100);
            run.steps().iter().all(|s| s.objects.iter().all(|o| o.life == s.objects[0].life))
        };
        assert!(lives(Lifetimes::Batch));
        assert!(!lives(Lifetimes::Object));
    }

    #[test]
    fn peak_is_that_of_a_plain_replay() {
        let run = Bimodal::new(5, 2, Lifetimes::Object, 60);
        let mut live: Vec<(usize, u64)> = Vec::new(); // (turn at which it is due, bytes)
        let mut peak = 0;
        for (turn, step) in run.steps().iter().enumerate() {
            live.retain(|&(due, _)| due != turn);
            live.extend(step.objects.iter().map(|o| (turn + 2 * usize::from(o.life), u64::from(o.size))));
            peak = peak.max(live.iter().map(|&(_, bytes)| bytes).sum());
        }
        assert_eq!(run.peak_bytes(), peak);
    }
}
