//! *Calls*: values are pinned and released, by clients that are processes of their own.

use std::time::{Duration, Instant};

use kvmem_node::NodeClient;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::memory::NodeFiles;
use super::role::{ServerProcess, connect};
use super::{NodeChild, NodeMeasureError, NodeRole};
use crate::bench::beside::BesideProgram;

/// Keys of a call.
pub(super) const KEYS: usize = 64;
/// Values that the calls pin.
const VALUES: usize = 4096;
/// Bytes of such a value.
const VALUE_BYTES: usize = 256;
/// The part of the time that does not count, because other clients may still be starting.
const WARM: u32 = 5;

/// The result of one repetition.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CallTimes {
    pub(super) keys_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// Returns the key of a number: 32 bytes, as the hash of a block has them.
pub(super) fn key(number: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (part, eight) in key.chunks_exact_mut(8).enumerate() {
        let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(part as u32 * 13);
        eight.copy_from_slice(&mixed.to_le_bytes());
    }
    key
}

/// Calls for some time, from the batch number `first` on.
pub(super) fn exchange(
    client: &NodeClient,
    first: usize,
    time: Duration,
) -> Result<CallTimes, NodeMeasureError> {
    let numbers: Vec<u64> = (0..VALUES as u64).collect();
    let batches: Vec<Vec<[u8; 32]>> =
        numbers.chunks(KEYS).map(|batch| batch.iter().copied().map(key).collect()).collect();
    let mut pins = client.acquire(&batches[first % batches.len()])?;
    let mut times = Vec::new();
    let (mut started, mut warm) = (Instant::now(), false);
    for batch in batches.iter().cycle().skip(first + 1) {
        let before = Instant::now();
        let elapsed = before.duration_since(started);
        if !warm && elapsed >= time / WARM {
            (started, warm) = (before, true);
            times.clear();
        } else if elapsed >= time && !times.is_empty() {
            break;
        }
        pins = client.exchange(pins, batch)?;
        times.push(before.elapsed());
        NodeMeasureError::unless_all(pins.hits(), KEYS)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    times.sort_unstable();
    let microseconds = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e6;
    Ok(CallTimes {
        keys_per_s: (times.len() * KEYS) as f64 / seconds,
        p50_us: microseconds(50),
        p99_us: microseconds(99),
    })
}

/// A server with the values that the clients pin.
#[derive(Debug)]
pub(super) struct CallsFixture {
    _server: ServerProcess,
    // The socket is in it, so it is dropped last.
    dir: TempDir,
}

impl CallsFixture {
    pub(super) fn new(dir: TempDir, child: NodeChild) -> Result<CallsFixture, NodeMeasureError> {
        let files = NodeFiles::new(64 << 20, 2 * VALUES as u32, true)?;
        let mut server = files.serve(&dir.path().join("socket"), child)?;
        server.wait()?;
        let writer = connect(&dir.path().join("socket"), false, true)?;
        for number in 0..VALUES as u64 {
            writer.insert(key(number), &[number as u8; VALUE_BYTES])?;
        }
        Ok(CallsFixture { _server: server, dir })
    }

    /// Lets clients call at the same time. Adds up their rates, and returns the times of the
    /// slowest.
    pub(super) fn measure(
        &self,
        rings: bool,
        clients: u32,
        time: Duration,
        child: NodeChild,
    ) -> Result<CallTimes, NodeMeasureError> {
        let start = |number: u32| {
            let role = NodeRole::Client {
                socket: self.dir.path().join("socket"),
                rings,
                first: number as usize * (VALUES / KEYS) / clients as usize,
                milliseconds: time.as_millis() as u64,
            };
            BesideProgram::run("a client", &mut child(&role))
        };
        let running: Vec<BesideProgram> = (0..clients).map(start).collect::<Result<_, _>>()?;
        let mut all = CallTimes { keys_per_s: 0.0, p50_us: 0.0, p99_us: 0.0 };
        for mut client in running {
            let one: CallTimes = client.answer()?;
            all.keys_per_s += one.keys_per_s;
            all.p50_us = all.p50_us.max(one.p50_us);
            all.p99_us = all.p99_us.max(one.p99_us);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ() {
        let keys: std::collections::HashSet<_> = (0..10_000).map(key).collect();
        assert_eq!(keys.len(), 10_000);
    }
}
