//! *Measure*: one task, once, in this process or in one of its own.
//!
//! Resident memory is only one heap's own in a process that has met no other, so every measurement
//! of a full run takes place in a child: the caller of the suite says how it is started, the child
//! calls [`measure`], and prints what it has [`Seen`].

use std::fmt;
use std::process::Stdio;
use std::str::FromStr;
use std::time::Duration;

use super::heap::{self, Heap, Visitor};
use super::loops::{self, Done};
use super::ring::Ring;
use super::{Child, ContenderId, MeasureError, Pattern};
use crate::crew;
use crate::machine::resident_bytes;

/// Variables that change what the heaps do.
const SETTINGS: [&str; 5] =
    ["KVMEM_SLICE", "G_SLICE", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "_RJEM_MALLOC_CONF"];

/// One measurement. Its text form, `random 512 2 mimalloc 50`, leads back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// What the threads do.
    pub pattern: Pattern,
    /// Bytes of the largest block, or of all where they have one size.
    pub max_block_bytes: u32,
    /// How many threads.
    pub threads: u32,
    /// The allocator.
    pub contender: ContenderId,
    /// For how long, in milliseconds.
    pub milliseconds: u32,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pattern, max_block_bytes, threads, contender, milliseconds } = self;
        write!(f, "{pattern} {max_block_bytes} {threads} {contender} {milliseconds}")
    }
}

/// A text that names no measurement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no measurement; one is: random 512 2 mimalloc 50")]
pub struct UnknownTask(pub String);

impl FromStr for Task {
    type Err = UnknownTask;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = s.split_whitespace().collect();
        let parse = || {
            let [pattern, max, threads, contender, milliseconds] = words.as_slice() else {
                return None;
            };
            let number = |word: &str| word.parse::<u32>().ok();
            Some(Self {
                pattern: pattern.parse().ok()?,
                max_block_bytes: number(max).filter(|&max| max > 0)?,
                threads: number(threads).filter(|threads| (1..=1024).contains(threads))?,
                contender: contender.parse().ok()?,
                milliseconds: number(milliseconds)?,
            })
        };
        parse().ok_or_else(|| UnknownTask(s.to_owned()))
    }
}

/// What one measurement saw. Its text form leads back to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Nanoseconds of a processor that an allocation and a free took together, waiting included.
    pub ns_per_pair: f64,
    /// Bytes that became resident, where the system tells.
    pub rss_bytes: Option<u64>,
}

const MARK: &str = "slab-seen:";

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK} {} ", self.ns_per_pair)?;
        match self.rss_bytes {
            Some(bytes) => write!(f, "{bytes}"),
            None => f.write_str("-"),
        }
    }
}

impl Seen {
    /// The first such text in what a child wrote.
    fn find(text: &str) -> Option<Self> {
        let mut words = text.split_once(MARK)?.1.split_whitespace();
        let ns_per_pair = words.next()?.parse().ok()?;
        Some(Self { ns_per_pair, rss_bytes: words.next()?.parse().ok() })
    }
}

/// Runs `task` once, in this process.
///
/// The resident bytes are those of the whole process, so they are the allocator's only if nothing
/// else is going on here.
///
/// # Errors
/// [`MeasureError`] if the allocator is absent or has no memory.
pub fn measure(task: &Task) -> Result<Seen, MeasureError> {
    struct Run<'a>(&'a Task);
    impl Visitor for Run<'_> {
        type Output = Result<Seen, MeasureError>;
        fn visit<H: Heap>(self, heap: H) -> Self::Output {
            with(&heap, self.0)
        }
    }
    heap::visit(task.contender, Run(task)).map_err(MeasureError::Absent)?
}

fn with<H: Heap>(heap: &H, task: &Task) -> Result<Seen, MeasureError> {
    let Task { pattern, max_block_bytes: max, threads, .. } = *task;
    let rings: Vec<Ring> = match pattern {
        Pattern::ProducerConsumer => (0..threads / 2).map(|_| Ring::new()).collect(),
        Pattern::Random | Pattern::Fixed => Vec::new(),
    };
    let work = |place: &crew::Place<'_>| match pattern {
        Pattern::ProducerConsumer => loops::across(heap, max, &rings, place),
        Pattern::Random | Pattern::Fixed => loops::halves(heap, pattern, max, place),
    };
    let time = Duration::from_millis(u64::from(task.milliseconds));
    let found = crew::run(threads, time, work, resident_bytes)?;
    if found.threads.iter().any(|done| done.refused) {
        return Err(MeasureError::Refused);
    }
    let processors = (threads as usize).min(crew::cores().len().max(1));
    let ns_per_pair = per_pair(&found.threads, processors).ok_or(MeasureError::Nothing)?;
    let grown = |(before, after): (u64, u64)| after.saturating_sub(before);
    Ok(Seen { ns_per_pair, rss_bytes: found.before.zip(found.after).map(grown) })
}

/// Nanoseconds of one of `processors` for each pair. `None` if there was no pair.
fn per_pair(threads: &[Done], processors: usize) -> Option<f64> {
    let at_work = threads.iter().filter(|done| done.pairs > 0 && done.nanoseconds > 0.0);
    let rate: f64 = at_work.map(|done| done.pairs as f64 / done.nanoseconds).sum();
    (rate > 0.0).then(|| processors as f64 / rate)
}

/// Runs `task` once, in the process that `child` starts.
pub(super) fn in_child(task: &Task, child: Child) -> Result<Seen, MeasureError> {
    let mut command = child(task);
    for name in SETTINGS {
        command.env_remove(name);
    }
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| MeasureError::Child(error.to_string()))?;
    Seen::find(&String::from_utf8_lossy(&output.stdout))
        .filter(|_| output.status.success())
        .ok_or_else(|| {
            let said = String::from_utf8_lossy(&output.stderr);
            MeasureError::Child(format!("{}: {}", output.status, said.trim()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_lead_back() {
        let task: Task = "producer-consumer 512 4 g-slice 25".parse().unwrap();
        assert_eq!(
            (task.pattern, task.contender),
            (Pattern::ProducerConsumer, ContenderId::GSlice)
        );
        assert_eq!((task.max_block_bytes, task.threads, task.milliseconds), (512, 4, 25));
        assert_eq!(task.to_string().parse(), Ok(task));
        for bad in [
            "",
            "random",
            "random 0 1 malloc 5",
            "random 8 0 malloc 5",
            "random 8 1 nobody 5",
            "r 8 1 malloc 5",
        ] {
            assert!(bad.parse::<Task>().unwrap_err().to_string().contains("mimalloc"), "{bad}");
        }
        for rss_bytes in [None, Some(4096)] {
            let seen = Seen { ns_per_pair: 12.25, rss_bytes };
            assert_eq!(Seen::find(&format!("test child ... {seen}\nok\n")), Some(seen));
        }
        assert_eq!(Seen::find("nothing"), None);
    }

    #[test]
    fn threads_that_share_a_processor_share_its_time() {
        let done = |pairs, nanoseconds| Done { pairs, nanoseconds, refused: false };
        assert_eq!(per_pair(&[done(100, 1000.0)], 1), Some(10.0));
        assert_eq!(per_pair(&[done(100, 1000.0), done(100, 1000.0)], 2), Some(10.0));
        // Each had half a processor.
        assert_eq!(per_pair(&[done(50, 1000.0); 4], 2), Some(10.0));
        // A producer's time is in its consumer's pairs.
        assert_eq!(per_pair(&[done(0, 1000.0), done(100, 1000.0)], 2), Some(20.0));
        assert_eq!(per_pair(&[done(0, 0.0)], 1), None);
    }

    #[test]
    fn every_pattern_is_measured() {
        for pattern in Pattern::ALL {
            let task = Task {
                pattern,
                max_block_bytes: 64,
                threads: 2,
                contender: ContenderId::Malloc,
                milliseconds: 2,
            };
            let seen = measure(&task).unwrap();
            assert!(seen.ns_per_pair > 0.0 && seen.ns_per_pair.is_finite(), "{pattern}: {seen:?}");
        }
    }
}
