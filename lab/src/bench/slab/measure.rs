//! One task, measured once, in this process or in its own.
//!
//! Resident memory belongs to one heap only in a process that has used no other. Every measurement
//! of a run therefore takes place in a child process. The caller of the suite provides the command
//! that starts it; the child calls [`measure`] and prints the [`SlabSample`].

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::heap::{Heap, with_heap};
use super::loops::{self, ThreadWork};
use super::{Pattern, SlabContenderId};
use crate::bench::beside::BesideProgram;
use crate::bench::machine::resident_bytes;
use crate::bench::team;

/// Environment variables that change the behaviour of the heaps.
const SETTINGS: [&str; 5] =
    ["KVMEM_SLAB", "G_SLICE", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "_RJEM_MALLOC_CONF"];

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// The result of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlabSample {
    /// Nanoseconds of a processor per allocation and free together, waiting included.
    pub ns_per_pair: f64,
    /// Bytes that became resident, if the system reports them.
    pub rss_bytes: Option<u64>,
}

/// Measures `task` once, in this process.
///
/// The resident bytes are those of the whole process. They belong to the allocator only if nothing
/// else runs in the process.
pub fn measure(task: &SlabTask) -> Result<SlabSample> {
    with_heap!(task.contender, heap => with(&heap, task))?
}

fn with<H: Heap>(heap: &H, task: &SlabTask) -> Result<SlabSample> {
    let SlabTask { pattern, max_block_bytes: max, threads, .. } = *task;
    let queues = loops::queues(if pattern == Pattern::ProducerConsumer { threads / 2 } else { 0 });
    let work = |member: &team::Member<'_>| match pattern {
        Pattern::ProducerConsumer => loops::across(heap, max, &queues, member),
        Pattern::Random | Pattern::Fixed => loops::halves(heap, pattern, max, member),
    };
    let time = Duration::from_millis(u64::from(task.milliseconds));
    let result = team::run(threads, time, work, resident_bytes)?;
    let failed = result.threads.iter().any(|done| done.failed);
    ensure!(!failed, "the allocator ran out of memory: free memory");
    let processors = (threads as usize).min(team::cores().len().max(1));
    let ns_per_pair = per_pair(&result.threads, processors)
        .context("no block was allocated and freed in the given time: increase it")?;
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
pub fn in_child(mut command: Command) -> Result<SlabSample> {
    for name in SETTINGS {
        command.env_remove(name);
    }
    BesideProgram::run("the measuring process", &mut command)?.answer()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_share_a_processor_share_its_time() {
        let done = |pairs, nanoseconds| ThreadWork { pairs, nanoseconds, failed: false };
        assert_eq!(per_pair(&[done(100, 1000.0), done(100, 1000.0)], 2), Some(10.0));
        // Each had half a processor.
        assert_eq!(per_pair(&[done(50, 1000.0); 4], 2), Some(10.0));
        // The producer's time counts for its consumer's pairs.
        assert_eq!(per_pair(&[done(0, 1000.0), done(100, 1000.0)], 2), Some(20.0));
        assert_eq!(per_pair(&[done(0, 0.0)], 1), None);
    }
}
