//! *Writer*: a process that stores values for the tables of events.
//!
//! A key holds the time of its commit, and the number of the value, behind a mark that no event has
//! otherwise. So a subscriber finds keys and their times in the bytes that it receives without
//! decoding them. A number that is not larger than all before is that of a value that goes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kvmem_node::{NewValue, NodeClient, PendingCall};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Begins a key. MessagePack has no byte 0xC1.
pub(super) const MARK: [u8; 8] = *b"\xC1kvmem\xC1\xC1";
/// Bytes of a key: the mark, the time, a number.
pub(super) const KEY: usize = 24;
/// The time of a turn of a writer at one server.
const WINDOW: Duration = Duration::from_millis(250);
/// The values of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stores {
    /// Values of a call.
    pub(super) batch: usize,
    pub(super) value_bytes: u64,
    /// Whether the bytes are written.
    pub(super) writes: bool,
    /// Values of a second; 0: as many as possible.
    pub(super) per_s: u32,
}

/// The result of a writer: values a second at a server that publishes nothing, and at one with a
/// subscriber.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) commits_per_s: [f64; 2],
}

/// Returns nanoseconds that all processes count alike.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub(super) fn key(at: u64, number: u64) -> [u8; KEY] {
    let mut key = [0; KEY];
    key[..8].copy_from_slice(&MARK);
    key[8..16].copy_from_slice(&at.to_be_bytes());
    key[16..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Stores values under new keys, so that others are evicted, for some time at each of two servers,
/// in turns. Unless the values come at a set rate, the second server, the process `pid`, is stopped
/// during the turns of the first: events that it has still to publish cost the second alone.
pub(super) fn write(
    clients: &[NodeClient; 2],
    pid: u32,
    stores: Stores,
    time: Duration,
) -> Result<Written> {
    let server = Pid::from_raw(pid as i32).context("a process")?;
    let (mut number, mut counts, mut times) = (0, [0; 2], [Duration::ZERO; 2]);
    while times[1] < time {
        for (at, client) in clients.iter().enumerate() {
            if stores.per_s == 0 {
                kill_process(server, if at == 0 { Signal::STOP } else { Signal::CONT })?;
            }
            let (first, started) = (number, Instant::now());
            window(client, stores, &mut number)?;
            times[at] += started.elapsed();
            counts[at] += number - first;
        }
    }
    let per_s = |at: usize| counts[at] as f64 / times[at].as_secs_f64();
    Ok(Written { commits_per_s: [per_s(0), per_s(1)] })
}

/// Stores at one server for the time of one turn.
fn window(client: &NodeClient, stores: Stores, number: &mut u64) -> Result<()> {
    let sizes = vec![stores.value_bytes; stores.batch];
    let bytes = vec![0x5A; stores.value_bytes as usize];
    let (first, started) = (*number, Instant::now());
    let mut next = client.begin_reserve(&sizes);
    let mut committing: Option<PendingCall<'_, ()>> = None;
    while started.elapsed() < WINDOW {
        let mut reserved = next.wait()?;
        next = client.begin_reserve(&sizes);
        if stores.writes {
            for block in &mut reserved {
                block.write(0, &bytes)?;
            }
        }
        if stores.per_s > 0 {
            let due = Duration::from_secs(*number - first) / stores.per_s;
            std::thread::sleep(due.saturating_sub(started.elapsed()));
        }
        let at = now_ns();
        let values = reserved.into_iter().map(|block| {
            *number += 1;
            NewValue::new(key(at, *number), block)
        });
        let earlier = committing.replace(client.begin_commit(values.collect()));
        earlier.map_or(Ok(()), PendingCall::wait)?;
    }
    Ok(committing.map_or(Ok(()), PendingCall::wait)?)
}
