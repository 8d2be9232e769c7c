//! *Subscriber*: reads the events of a server, and finds the keys of the [writer](super::writer).

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::writer::{KEY, MARK, now_ns};

/// Bytes that are read at once.
const READ: usize = 1 << 18;
/// The result of a subscriber: the ages of commits when it had read of them.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Heard {
    pub(super) keys: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

/// A subscriber to all that a server publishes.
pub(super) struct Subscriber {
    stream: TcpStream,
    bytes: Vec<u8>,
    len: usize,
}

impl Subscriber {
    pub(super) fn connect(port: u16) -> Result<Subscriber> {
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
    pub(super) fn hear(&mut self, mut take: impl FnMut(u64, u64)) -> Result<bool> {
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
