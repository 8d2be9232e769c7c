//! *Resizing*: a client stores and reads while the memory becomes half as large and large again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kvmem_node::{CallError, ClientError, NodeClient, NodePin};
use kvmem_testkit::random::Random;
use tempfile::TempDir;

use super::NodeChild;
use super::memory::NodeFiles;
use super::role::connect;
use crate::bench::pauses;

/// Values that stay pinned for a while.
const PINNED: usize = 20;

/// The lengths of the values, each of as many of them.
const LENGTHS: [usize; 3] = [16 << 10, 128 << 10, 1 << 20];

/// The figures of one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resized {
    /// Of the calls that met no [pause](pauses) of the machine.
    pub(super) longest_ms: f64,
    pub(super) p9999_ms: f64,
    /// Of all calls.
    pub(super) longest_with_pauses_ms: f64,
    pub(super) smaller_s: f64,
    pub(super) larger_s: f64,
    /// Values of which all bytes were compared.
    pub(super) compared: u64,
}

/// Lets a client use values while the memory of `bytes` changes its size `rounds` times.
pub(super) fn measure(dir: &TempDir, bytes: u64, rounds: u32, child: NodeChild) -> Result<Resized> {
    let socket = dir.path().join("socket");
    let values = bytes * LENGTHS.len() as u64 / LENGTHS.iter().sum::<usize>() as u64;
    let files = NodeFiles::new(bytes, 2 * values as u32, true)?;
    let mut server = files.serve(&socket, child)?;
    server.wait()?;
    let user = connect(&socket, true, true)?;
    let mut template = vec![0; LENGTHS[LENGTHS.len() - 1]];
    for key in 0..values {
        insert(&user, key, &mut template)?;
    }
    let client = connect(&socket, false, false)?;
    let operator = client.as_operator();
    let over = AtomicBool::new(false);
    let (mut smaller, mut larger) = (Duration::ZERO, Duration::ZERO);
    let change = || {
        thread::scope(|scope| -> Result<Used> {
            let using = scope.spawn(|| use_values(&user, values, &mut template, &over));
            let mut resize = || -> Result<()> {
                for _ in 0..rounds {
                    for (size, time) in [(bytes / 2, &mut smaller), (bytes, &mut larger)] {
                        let started = Instant::now();
                        // Pins in the way are released soon.
                        while operator.resize(size)?.size != size {
                            thread::sleep(Duration::from_millis(1));
                        }
                        *time += started.elapsed();
                        thread::sleep(Duration::from_millis(100));
                    }
                }
                Ok(())
            };
            let resized = resize();
            over.store(true, Ordering::Relaxed);
            let used = using.join().expect("the client returns errors")?;
            resized.map(|()| used)
        })
    };
    let (used, pauses) = pauses::during(change);
    let Used { calls, compared } = used?;
    let is_whole = |call: &&(Instant, Duration)| {
        pauses.iter().all(|pause| pause.end < call.0 || call.0 + call.1 < pause.start)
    };
    let longest_with_pauses = calls.iter().map(|call| call.1).max().unwrap_or_default();
    let mut times: Vec<Duration> = calls.iter().filter(is_whole).map(|call| call.1).collect();
    times.sort_unstable();
    let ms = |at: usize| times[at].as_secs_f64() * 1e3;
    Ok(Resized {
        longest_ms: ms(times.len() - 1),
        p9999_ms: ms((times.len() - 1) * 9999 / 10_000),
        longest_with_pauses_ms: longest_with_pauses.as_secs_f64() * 1e3,
        smaller_s: smaller.as_secs_f64() / f64::from(rounds),
        larger_s: larger.as_secs_f64() / f64::from(rounds),
        compared,
    })
}

/// Returns the value of a key, in `template`.
fn value_of(key: u64, template: &mut [u8]) -> &[u8] {
    let value = &mut template[..LENGTHS[(key % LENGTHS.len() as u64) as usize]];
    value.fill(key as u8);
    value[..8].copy_from_slice(&key.to_le_bytes());
    value
}

fn insert(client: &NodeClient, key: u64, template: &mut [u8]) -> Result<(Instant, Duration)> {
    let value = value_of(key, template);
    let began = Instant::now();
    match client.insert(key.to_le_bytes(), value) {
        // Pinned values fill the rest.
        Ok(_) | Err(ClientError::Call(CallError::OutOfSpace { .. })) => {
            Ok((began, began.elapsed()))
        }
        Err(error) => Err(error.into()),
    }
}

fn check(value: &NodePin, key: u64, template: &mut [u8]) -> Result<()> {
    let stored = value_of(key, template);
    ensure!(value.is_valid(), "the pin of value {key} is lost");
    ensure!(value.bytes()? == stored, "the bytes of value {key} are not those that were stored");
    Ok(())
}

/// The calls of a client, and the values that it compared.
#[derive(Default)]
struct Used {
    calls: Vec<(Instant, Duration)>,
    /// Values of which all bytes were compared.
    compared: u64,
}

/// Reads values, and stores those that are missing, until `over`.
fn use_values(
    client: &NodeClient,
    values: u64,
    template: &mut [u8],
    over: &AtomicBool,
) -> Result<Used> {
    let mut random = Random::new(1);
    let (mut used, mut pinned) = (Used::default(), Vec::new());
    while !over.load(Ordering::Relaxed) {
        let key = random.below(values);
        let began = Instant::now();
        let value = client.get(key.to_le_bytes())?;
        used.calls.push((began, began.elapsed()));
        match value {
            Some(value) => {
                check(&value, key, template)?;
                used.compared += 1;
                pinned.push((key, value));
            }
            None => used.calls.push(insert(client, key, template)?),
        }
        if pinned.len() > PINNED {
            let (key, value) = pinned.swap_remove(random.below(PINNED as u64) as usize);
            check(&value, key, template)?;
            used.compared += 1;
        }
    }
    Ok(used)
}
