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

/// Values that stay pinned for a while.
const PINNED: usize = 20;

/// The figures of one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resized {
    pub(super) longest_ms: f64,
    pub(super) p9999_ms: f64,
    pub(super) smaller_s: f64,
    pub(super) larger_s: f64,
}

/// Lets a client use values of `value_bytes` while the memory of `bytes` changes its size `rounds`
/// times.
pub(super) fn measure(
    dir: &TempDir,
    bytes: u64,
    value_bytes: u64,
    rounds: u32,
    child: NodeChild,
) -> Result<Resized> {
    let socket = dir.path().join("socket");
    let values = bytes / value_bytes;
    let files = NodeFiles::new(bytes, 2 * values as u32, true)?;
    let mut server = files.serve(&socket, child)?;
    server.wait()?;
    let user = connect(&socket, true, true)?;
    let mut template = vec![0; value_bytes as usize];
    for key in 0..values {
        insert(&user, key, &mut template)?;
    }
    let client = connect(&socket, false, false)?;
    let operator = client.as_operator();
    let over = AtomicBool::new(false);
    let (mut smaller, mut larger) = (Duration::ZERO, Duration::ZERO);
    let mut times = thread::scope(|scope| -> Result<Vec<Duration>> {
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
        let times = using.join().expect("the client returns errors")?;
        resized.map(|()| times)
    })?;
    times.sort_unstable();
    let ms = |at: usize| times[at].as_secs_f64() * 1e3;
    Ok(Resized {
        longest_ms: ms(times.len() - 1),
        p9999_ms: ms((times.len() - 1) * 9999 / 10_000),
        smaller_s: smaller.as_secs_f64() / f64::from(rounds),
        larger_s: larger.as_secs_f64() / f64::from(rounds),
    })
}

fn fill(key: u64, template: &mut [u8]) {
    template.fill(key as u8);
    template[..8].copy_from_slice(&key.to_le_bytes());
}

fn insert(client: &NodeClient, key: u64, template: &mut [u8]) -> Result<Duration> {
    fill(key, template);
    let began = Instant::now();
    match client.insert(key.to_le_bytes(), template) {
        // Pinned values fill the rest.
        Ok(_) | Err(ClientError::Call(CallError::OutOfSpace { .. })) => Ok(began.elapsed()),
        Err(error) => Err(error.into()),
    }
}

fn check(value: &NodePin, key: u64, template: &mut [u8]) -> Result<()> {
    fill(key, template);
    ensure!(value.is_valid(), "the pin of value {key} is lost");
    ensure!(value.bytes()? == template, "the bytes of value {key} are not those that were stored");
    Ok(())
}

/// Reads values, and stores those that are missing, until `over`. Returns the times of the calls.
fn use_values(
    client: &NodeClient,
    values: u64,
    template: &mut [u8],
    over: &AtomicBool,
) -> Result<Vec<Duration>> {
    let mut random = Random::new(1);
    let (mut times, mut pinned) = (Vec::new(), Vec::new());
    while !over.load(Ordering::Relaxed) {
        let key = random.below(values);
        let began = Instant::now();
        let value = client.get(key.to_le_bytes())?;
        times.push(began.elapsed());
        match value {
            Some(value) => {
                check(&value, key, template)?;
                pinned.push((key, value));
            }
            None => times.push(insert(client, key, template)?),
        }
        if pinned.len() > PINNED {
            let (key, value) = pinned.swap_remove(random.below(PINNED as u64) as usize);
            check(&value, key, template)?;
        }
    }
    Ok(times)
}
