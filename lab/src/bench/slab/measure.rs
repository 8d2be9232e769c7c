//! One task, measured once, in this process or in its own.
//!
//! Resident memory belongs to one heap only in a process that has used no other. Every measurement
//! of a full run therefore takes place in a child process. The caller of the suite provides the
//! command that starts it; the child calls [`measure`] and prints the [`SlabSample`].

use std::fmt;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use super::heap::{self, Heap, HeapVisitor};
use super::loops::{self, ThreadWork};
use super::ring::Ring;
use super::{Pattern, SlabContenderId, SlabMeasureError};
use crate::bench::machine::resident_bytes;
use crate::bench::team;

/// Environment variables that change the behaviour of the heaps.
const SETTINGS: [&str; 5] =
    ["KVMEM_SLAB", "G_SLICE", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "_RJEM_MALLOC_CONF"];

/// One measurement. Its text form, `random 512 2 mimalloc 50`, parses back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabTask {
    /// The pattern of the threads.
    pub pattern: Pattern,
    /// Bytes of the largest block; of all blocks in `fixed`.
    pub max_block_bytes: u32,
    /// Number of threads.
    pub threads: u32,
    /// The allocator.
    pub contender: SlabContenderId,
    /// Duration in milliseconds.
    pub milliseconds: u32,
}

impl fmt::Display for SlabTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pattern, max_block_bytes, threads, contender, milliseconds } = self;
        write!(f, "{pattern} {max_block_bytes} {threads} {contender} {milliseconds}")
    }
}

impl FromStr for SlabTask {
    type Err = String;

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
        parse().ok_or_else(|| {
            format!("{s:?} is not a measurement: write it as `random 512 2 mimalloc 50`")
        })
    }
}

/// The result of one measurement. Its text form parses back to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlabSample {
    /// Nanoseconds of a processor per allocation and free together, waiting included.
    pub ns_per_pair: f64,
    /// Bytes that became resident, if the system reports them.
    pub rss_bytes: Option<u64>,
}

const MARK: &str = "slab-sample:";

impl fmt::Display for SlabSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK} {} ", self.ns_per_pair)?;
        match self.rss_bytes {
            Some(bytes) => write!(f, "{bytes}"),
            None => f.write_str("-"),
        }
    }
}

impl SlabSample {
    /// Parses the first sample in a child's output.
    fn find(text: &str) -> Option<Self> {
        let mut words = text.split_once(MARK)?.1.split_whitespace();
        let ns_per_pair = words.next()?.parse().ok()?;
        Some(Self { ns_per_pair, rss_bytes: words.next()?.parse().ok() })
    }
}

/// Measures `task` once, in this process.
///
/// The resident bytes are those of the whole process. They belong to the allocator only if nothing
/// else runs in the process.
///
/// # Errors
/// [`SlabMeasureError`] if the allocator is absent or runs out of memory.
pub fn measure(task: &SlabTask) -> Result<SlabSample, SlabMeasureError> {
    struct HeapRun<'a>(&'a SlabTask);
    impl HeapVisitor for HeapRun<'_> {
        type Output = Result<SlabSample, SlabMeasureError>;
        fn visit<H: Heap>(self, heap: H) -> Self::Output {
            with(&heap, self.0)
        }
    }
    heap::visit(task.contender, HeapRun(task)).map_err(SlabMeasureError::Absent)?
}

fn with<H: Heap>(heap: &H, task: &SlabTask) -> Result<SlabSample, SlabMeasureError> {
    let SlabTask { pattern, max_block_bytes: max, threads, .. } = *task;
    let rings: Vec<Ring> = match pattern {
        Pattern::ProducerConsumer => (0..threads / 2).map(|_| Ring::new()).collect(),
        Pattern::Random | Pattern::Fixed => Vec::new(),
    };
    let work = |member: &team::Member<'_>| match pattern {
        Pattern::ProducerConsumer => loops::across(heap, max, &rings, member),
        Pattern::Random | Pattern::Fixed => loops::halves(heap, pattern, max, member),
    };
    let time = Duration::from_millis(u64::from(task.milliseconds));
    let result = team::run(threads, time, work, resident_bytes)?;
    if result.threads.iter().any(|done| done.failed) {
        return Err(SlabMeasureError::OutOfMemory);
    }
    let processors = (threads as usize).min(team::cores().len().max(1));
    let ns_per_pair = per_pair(&result.threads, processors).ok_or(SlabMeasureError::NothingDone)?;
    let grown = |(before, after): (u64, u64)| after.saturating_sub(before);
    Ok(SlabSample { ns_per_pair, rss_bytes: result.before.zip(result.after).map(grown) })
}

/// Returns the nanoseconds of one of `processors` per pair; `None` if there was no pair.
fn per_pair(threads: &[ThreadWork], processors: usize) -> Option<f64> {
    let at_work = threads.iter().filter(|done| done.pairs > 0 && done.nanoseconds > 0.0);
    let rate: f64 = at_work.map(|done| done.pairs as f64 / done.nanoseconds).sum();
    (rate > 0.0).then(|| processors as f64 / rate)
}

/// Measures a task once, in the process that `command` starts.
pub fn in_child(mut command: Command) -> Result<SlabSample, SlabMeasureError> {
    for name in SETTINGS {
        command.env_remove(name);
    }
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| SlabMeasureError::Child(error.to_string()))?;
    SlabSample::find(&String::from_utf8_lossy(&output.stdout))
        .filter(|_| output.status.success())
        .ok_or_else(|| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            SlabMeasureError::Child(format!("{}: {}", output.status, stderr.trim()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_parse_back() {
        let task: SlabTask = "producer-consumer 512 4 g-slice 25".parse().unwrap();
        assert_eq!(
            (task.pattern, task.contender),
            (Pattern::ProducerConsumer, SlabContenderId::GSlice)
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
            assert!(bad.parse::<SlabTask>().unwrap_err().contains("mimalloc"), "{bad}");
        }
        for rss_bytes in [None, Some(4096)] {
            let sample = SlabSample { ns_per_pair: 12.25, rss_bytes };
            assert_eq!(SlabSample::find(&format!("test child ... {sample}\nok\n")), Some(sample));
        }
        assert_eq!(SlabSample::find("nothing"), None);
    }

    #[test]
    fn threads_that_share_a_processor_share_its_time() {
        let done = |pairs, nanoseconds| ThreadWork { pairs, nanoseconds, failed: false };
        assert_eq!(per_pair(&[done(100, 1000.0)], 1), Some(10.0));
        assert_eq!(per_pair(&[done(100, 1000.0), done(100, 1000.0)], 2), Some(10.0));
        // Each had half a processor.
        assert_eq!(per_pair(&[done(50, 1000.0); 4], 2), Some(10.0));
        // The producer's time counts for its consumer's pairs.
        assert_eq!(per_pair(&[done(0, 1000.0), done(100, 1000.0)], 2), Some(20.0));
        assert_eq!(per_pair(&[done(0, 0.0)], 1), None);
    }

    #[test]
    fn every_pattern_is_measured() {
        for pattern in Pattern::ALL {
            let task = SlabTask {
                pattern,
                max_block_bytes: 64,
                threads: 2,
                contender: SlabContenderId::Malloc,
                milliseconds: 2,
            };
            let one = measure(&task).unwrap();
            assert!(one.ns_per_pair > 0.0 && one.ns_per_pair.is_finite(), "{pattern}: {one:?}");
        }
    }
}
