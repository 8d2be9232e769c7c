//! *KV events*: commits while a subscriber reads, the time until it knows of them, and the
//! announcement of everything after a restart.
//!
//! A key holds the time of its commit, and the number of the value, behind a mark that no event has
//! otherwise. So a subscriber finds keys and their times in the bytes that it receives without
//! decoding them. A number that is not larger than all before is that of a value that goes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kvmem_node::{ClientError, MAX_BATCH, NewValue, NodeClient, PendingCall};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::memory::NodeFiles;
use super::role::{ServerProcess, connect};
use super::{NodeChild, NodeRole};
use crate::bench::beside::BesideProgram;

/// Begins a key. MessagePack has no byte 0xC1.
const MARK: [u8; 8] = *b"\xC1kvmem\xC1\xC1";
/// Bytes of a key: the mark, the time, a number.
const KEY: usize = 24;
/// Bytes that are read at once.
const READ: usize = 1 << 18;
/// The time of a turn of a writer at one server.
const WINDOW: Duration = Duration::from_millis(250);
/// Values that memory has room for.
const ROOM: u64 = 8192;

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
    commits_per_s: [f64; 2],
}

/// The result of a subscriber: the ages of commits when it had read of them.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Heard {
    keys: u64,
    p50_ms: f64,
    p99_ms: f64,
}

/// The figures of one repetition.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommitRates {
    pub(super) silent_per_s: f64,
    pub(super) heard_per_s: f64,
    /// Stored keys and removed ones.
    pub(super) published_per_s: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

/// Returns nanoseconds that all processes count alike.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn key(at: u64, number: u64) -> [u8; KEY] {
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

/// A subscriber to all that a server publishes.
struct Subscriber {
    stream: TcpStream,
    bytes: Vec<u8>,
    len: usize,
}

impl Subscriber {
    fn connect(port: u16) -> Result<Subscriber> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        let mut says = vec![0; 64];
        (says[0], says[9], says[10]) = (0xFF, 0x7F, 3);
        says[12..16].copy_from_slice(b"NULL");
        let ready = b"\x05READY\x0BSocket-Type\0\0\0\x03SUB";
        says.extend([4, ready.len() as u8]);
        says.extend(ready);
        // A message of one frame: the subscription to all topics.
        says.extend([0, 1, 1]);
        stream.write_all(&says)?;
        Ok(Subscriber { stream, bytes: vec![0; READ + KEY], len: 0 })
    }

    /// Reads once, and passes the times and the numbers of the keys on. Returns false at the end.
    fn hear(&mut self, mut take: impl FnMut(u64, u64)) -> Result<bool> {
        let len = match self.stream.read(&mut self.bytes[self.len..self.len + READ]) {
            Ok(0) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            len => self.len + len?,
        };
        let mut at = 0;
        while let Some(found) = self.bytes[at..len].iter().position(|byte| *byte == MARK[0]) {
            at += found;
            let Some(key) = self.bytes[at..len].first_chunk::<KEY>() else { break };
            if key.starts_with(&MARK) {
                let [time, number] = [8, 16].map(|at| {
                    u64::from_be_bytes(*key[at..].first_chunk().expect("a key has 24 bytes"))
                });
                take(time, number);
                at += KEY;
            } else {
                at += 1;
            }
        }
        // A key that is cut has its end in the next bytes.
        let rest = at.max(len.saturating_sub(KEY - 1))..len;
        let rest = if self.bytes[rest.clone()].contains(&MARK[0]) { rest } else { len..len };
        self.len = rest.len();
        self.bytes.copy_within(rest, 0);
        Ok(true)
    }
}

/// Reads until the server ends.
pub(super) fn subscribe(port: u16) -> Result<Heard> {
    let mut subscriber = Subscriber::connect(port)?;
    let (mut ages, mut keys, mut last) = (Vec::new(), 0, 0);
    let mut times = Vec::new();
    while subscriber.hear(|at, number| {
        keys += 1;
        if number > last {
            last = number;
            times.push(at);
        }
    })? {
        let now = now_ns();
        ages.extend(times.drain(..).map(|at| now.saturating_sub(at)));
    }
    ensure!(!ages.is_empty(), "no key was published");
    ages.sort_unstable();
    let ms = |percent: usize| ages[ages.len() * percent / 100] as f64 / 1e6;
    Ok(Heard { keys, p50_ms: ms(50), p99_ms: ms(99) })
}

/// Stores at a server that publishes nothing, and at one with a subscriber.
pub(super) fn measure(
    dir: &TempDir,
    (rings, stores): (bool, Stores),
    time: Duration,
    child: NodeChild,
) -> Result<CommitRates> {
    let room = ROOM.min((1 << 30) / stores.value_bytes);
    let start = |name: &str, publishes| -> Result<(PathBuf, ServerProcess, Option<u16>)> {
        let socket = dir.path().join(name);
        let files = NodeFiles::new(room * stores.value_bytes, 2 * room as u32, true)?;
        let mut server = files.serve_and_publish(&socket, publishes, child)?;
        let port = server.wait()?;
        Ok((socket, server, port))
    };
    let [silent, heard] = [start("silent", false)?, start("heard", true)?];
    let port = heard.2.context("it publishes")?;
    let mut subscriber =
        BesideProgram::run("a subscriber", &mut child(&NodeRole::Subscriber { port }))?;
    let (sockets, milliseconds) = ([silent.0, heard.0], time.as_millis() as u64);
    let pid = heard.1.0.pid();
    let role = NodeRole::Writer { sockets, pid, rings, stores, milliseconds };
    let mut writer = BesideProgram::run("a writer", &mut child(&role))?;
    let Written { commits_per_s: [silent_per_s, heard_per_s] } = writer.answer()?;
    // The last events are on their way.
    std::thread::sleep(Duration::from_millis(100));
    heard.1.kill()?;
    let Heard { keys, p50_ms, p99_ms } = subscriber.answer()?;
    let published_per_s = keys as f64 / time.as_secs_f64();
    Ok(CommitRates { silent_per_s, heard_per_s, published_per_s, p50_ms, p99_ms })
}

/// Commits blocks, kills the server, and starts it again. Returns the seconds from there until a
/// subscriber has read of all of them.
pub(super) fn announce(dir: &TempDir, blocks: u32, child: NodeChild) -> Result<f64> {
    const BYTES: u64 = 4096;
    let socket = dir.path().join("socket");
    let files = NodeFiles::new(u64::from(blocks) * BYTES, blocks, false)?;
    let mut server = files.serve_and_publish(&socket, true, child)?;
    server.wait()?;
    let client = connect(&socket, false, false)?;
    let numbers: Vec<u32> = (0..blocks).collect();
    for numbers in numbers.chunks(MAX_BATCH) {
        let reserved = client.reserve(&vec![BYTES; numbers.len()])?;
        let keys = numbers.iter().map(|number| key(0, u64::from(*number)));
        let values = keys.zip(reserved).map(|(key, block)| NewValue::new(key, block));
        client.commit(values.collect()).map_err(ClientError::from)?;
    }
    server.kill()?;
    let start = Instant::now();
    let mut server = files.serve_and_publish(&socket, true, child)?;
    let port = server.wait()?.context("it publishes")?;
    let mut subscriber = Subscriber::connect(port)?;
    let mut known = 0;
    while known < blocks {
        ensure!(subscriber.hear(|_, _| known += 1)?, "the server ended after {known} blocks");
    }
    Ok(start.elapsed().as_secs_f64())
}
