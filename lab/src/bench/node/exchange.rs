//! *Exchanges*: a client pins a batch of values, and releases the one before.

use std::time::{Duration, Instant};

use anyhow::Result;
use kvmem_node::NodeClient;
use serde::{Deserialize, Serialize};

use super::unless_all;

/// Keys of a call.
pub(super) const KEYS: usize = 64;
/// Values that the calls pin.
pub(super) const VALUES: usize = 4096;
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
pub(super) fn exchange(client: &NodeClient, first: usize, time: Duration) -> Result<CallTimes> {
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
        unless_all(pins.hits(), KEYS)?;
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
