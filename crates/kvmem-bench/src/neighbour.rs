//! *Neighbour*: a process on another processor that streams through memory while loops are timed.
//!
//! Processors share the last level of cache and the way to memory. A loop with its tables in the
//! cache is slower beside a process that streams, and not every allocator is slower by the same
//! factor. The neighbour adds one to each word of [`STREAMED`] bytes, again and again, which reads
//! and writes all of them.
//!
//! It is a process, because a thread would share the address space and with it the kernel's locks.
//! The last processor that this process may use is the neighbour's; this process keeps the others
//! until the neighbour has ended. The neighbour ends when its standard input does, so it never
//! outlives the benchmark, even a killed one.

use std::fmt::{self, Display, Formatter};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::team;

/// Bytes through which a neighbour streams.
pub const STREAMED: usize = 64 << 20;
/// The line that a neighbour prints before it streams.
const READY: &str = "streaming";

/// Returns the command of a process that calls [`stream`] on the given processor.
pub type NeighbourCommand = fn(usize) -> Command;

/// The neighbour of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Streamed {
    /// Its processor.
    pub processor: usize,
    /// Bytes per second that it has read and written, those read and those written together.
    pub bytes_per_second: f64,
}

impl Display for Streamed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Streamed { processor, bytes_per_second } = *self;
        let (mib, gigabytes) = (STREAMED >> 20, bytes_per_second / 1e9);
        write!(
            f,
            "beside a process that streams through {mib} MiB on processor {processor}, \
             {gigabytes:.1} GB/s"
        )
    }
}

/// The error of a neighbour.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NeighbourError {
    /// There is no other processor.
    #[error(
        "a neighbour needs a processor of its own, and this process may use {processors}; \
         allow it another one (taskset, cpuset of the control group), or measure without"
    )]
    NoProcessor {
        /// The processors that this process may use.
        processors: usize,
    },
    /// The process could not be started, or ended early.
    #[error("the neighbour on processor {processor} does not stream: {reason}")]
    Process {
        /// Its processor.
        processor: usize,
        /// The system's error, or what the process printed.
        reason: String,
    },
}

/// A process that streams through memory until [`Neighbour::end`], or until this is dropped.
#[derive(Debug)]
pub struct Neighbour {
    processor: usize,
    child: Child,
    output: BufReader<ChildStdout>,
    /// The processors of this thread before the neighbour took one.
    before: Option<CpuSet>,
}

impl Neighbour {
    /// Starts a neighbour, and waits until it streams. Binds this thread, and threads that it
    /// starts later, to the other processors.
    ///
    /// # Errors
    /// [`NeighbourError`] without a second processor, or when the process does not stream.
    pub fn start(command: NeighbourCommand) -> Result<Self, NeighbourError> {
        let processors = team::cores();
        let [others @ .., processor] = processors.as_slice() else {
            return Err(NeighbourError::NoProcessor { processors: 0 });
        };
        let processor = *processor;
        if others.is_empty() {
            return Err(NeighbourError::NoProcessor { processors: 1 });
        }
        let failed = |reason| NeighbourError::Process { processor, reason };
        let mut child = command(processor)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let output = child.stdout.take().expect("the output is piped");
        let output = BufReader::new(output);
        let mut neighbour = Self { processor, child, output, before: None };
        let first = neighbour.line().map_err(failed)?;
        if first != READY {
            return Err(failed(format!("it printed {first:?}")));
        }
        neighbour.before = sched_getaffinity(None).ok();
        let mut set = CpuSet::new();
        others.iter().for_each(|&core| set.set(core));
        // Without permission the system's scheduler keeps the two apart as well as it can.
        let _ = sched_setaffinity(None, &set);
        Ok(neighbour)
    }

    /// Ends the process, and returns its figures.
    ///
    /// # Errors
    /// [`NeighbourError`] if the process ended before: then it did not stream all the time.
    pub fn end(mut self) -> Result<Streamed, NeighbourError> {
        drop(self.child.stdin.take());
        let processor = self.processor;
        let failed = |reason| NeighbourError::Process { processor, reason };
        let rate = self.line().map_err(failed)?;
        let bytes_per_second =
            rate.parse().map_err(|_| failed(format!("it printed {rate:?} at its end")))?;
        Ok(Streamed { processor, bytes_per_second })
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) => Err("it ended".to_owned()),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        if let Some(before) = &self.before {
            let _ = sched_setaffinity(None, before);
        }
    }
}

/// Streams through memory on `processor` until the standard input ends. Prints a line before it
/// streams, and its bytes per second at the end.
///
/// # Errors
/// The error of starting a thread, or of writing to the standard output.
pub fn stream(processor: usize) -> io::Result<()> {
    let ended = AtomicBool::new(false);
    let mut words = vec![0_u64; STREAMED / size_of::<u64>()];
    thread::scope(|scope| {
        thread::Builder::new().name("kvmem-stdin".into()).spawn_scoped(scope, || {
            let _ = io::stdin().lock().read_to_end(&mut Vec::new());
            // Relaxed: nothing but the flag is handed over.
            ended.store(true, Ordering::Relaxed);
        })?;
        team::bind(Some(processor));
        // The first pass makes the pages resident.
        pass(&mut words);
        let mut output = io::stdout().lock();
        writeln!(output, "{READY}")?;
        output.flush()?;
        let (start, mut passes) = (Instant::now(), 0_u32);
        // At least once, so that a short run has a figure, too.
        loop {
            pass(&mut words);
            passes += 1;
            if ended.load(Ordering::Relaxed) {
                break;
            }
        }
        let bytes = 2.0 * STREAMED as f64 * f64::from(passes);
        writeln!(output, "{}", bytes / start.elapsed().as_secs_f64())
    })
}

/// Reads and writes each word once.
fn pass(words: &mut [u64]) {
    words.iter_mut().for_each(|word| *word = word.wrapping_add(1));
    std::hint::black_box(words);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    /// Starts a neighbour where there are two processors.
    fn started(command: NeighbourCommand) -> Option<Result<Neighbour, NeighbourError>> {
        (team::cores().len() > 1).then(|| Neighbour::start(command))
    }

    #[test]
    fn processors_are_shared_until_the_neighbour_ends() {
        let before = team::cores();
        let Some(neighbour) = started(|_| shell("echo streaming; cat >/dev/null; echo 2.5e9"))
        else {
            let alone = Neighbour::start(|_| shell("true")).map(drop);
            assert_eq!(alone, Err(NeighbourError::NoProcessor { processors: before.len() }));
            return;
        };
        let neighbour = neighbour.expect("the process streams");
        assert_eq!(team::cores(), before[..before.len() - 1]);
        let processor = before[before.len() - 1];
        let streamed = neighbour.end();
        assert_eq!(streamed, Ok(Streamed { processor, bytes_per_second: 2.5e9 }));
        assert_eq!(team::cores(), before);
    }

    #[test]
    fn a_process_that_does_not_stream_is_an_error() {
        let reason = |error| match error {
            NeighbourError::Process { reason, .. } => reason,
            NeighbourError::NoProcessor { .. } => panic!("{error}"),
        };
        let Some(silent) = started(|_| shell("true")) else { return };
        assert_eq!(silent.map(drop).map_err(reason), Err("it ended".to_owned()));
        let other = started(|_| shell("echo usage")).expect("there are two processors");
        let printed = "it printed \"usage\"".to_owned();
        assert_eq!(other.map(drop).map_err(reason), Err(printed));
        let early = started(|_| shell("echo streaming")).expect("there are two processors");
        let early = early.expect("it is ready").end();
        assert_eq!(early.map(drop).map_err(reason), Err("it ended".to_owned()));
    }
}
