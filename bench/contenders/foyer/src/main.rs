//! foyer's disk cache as a contender of `kvmem-lab bench tier`, which says how the two talk.
//!
//! The engine is the block engine over io_uring with direct I/O, the fastest that foyer has. Values
//! go to the disk alone (`storage_writer`), several flushers write them, and a pass of stores ends
//! when all of them are written. Its buffers have room for a whole pass, since it drops what they
//! cannot hold. A pass of fetches keeps as many loads in flight as the benchmark allows. Values
//! stay where foyer puts them: they are not copied into the memory of a pool.

use std::error::Error;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, DeviceBuilder, FileDeviceBuilder, HybridCache, HybridCacheBuilder,
    IoEngineConfig, Load, RecoverMode, UringIoEngineConfig,
};
use futures_util::stream::{self, StreamExt};
use serde::Deserialize;
use tokio::runtime::Runtime;

/// Threads that write, and room for what they have not yet written.
const FLUSHERS: usize = 4;
const BUFFERS: usize = 1 << 30;

#[derive(Deserialize)]
#[serde(tag = "call", rename_all = "lowercase")]
enum Call {
    Open { dir: String, bytes: usize, value_bytes: usize, depth: usize },
    Store { first: u64, count: u64 },
    Fetch { numbers: Vec<u64> },
}

/// A cache with values of one length.
struct Contender {
    cache: HybridCache<u64, Bytes>,
    /// Random bytes; the number of a value takes the place of the first eight.
    value: Vec<u8>,
    depth: usize,
}

type Failed = Box<dyn Error>;

fn main() -> Result<(), Failed> {
    let runtime = Runtime::new()?;
    let mut contender = None;
    for line in std::io::stdin().lock().lines() {
        let answer = match answer(&runtime, &mut contender, &line?) {
            Ok(answer) => answer,
            Err(error) => serde_json::json!({ "error": error.to_string() }),
        };
        writeln!(std::io::stdout(), "{answer}")?;
    }
    Ok(())
}

fn answer(
    runtime: &Runtime,
    contender: &mut Option<Contender>,
    line: &str,
) -> Result<serde_json::Value, Failed> {
    let call: Call = serde_json::from_str(line)?;
    if let Call::Open { dir, bytes, value_bytes, depth } = call {
        *contender = Some(runtime.block_on(open(&dir, bytes, value_bytes, depth))?);
        return Ok(serde_json::json!({}));
    }
    let contender = contender.as_ref().ok_or("`open` comes first")?;
    let values: Vec<Bytes> = match &call {
        // Made outside of the time, as the other contenders have theirs.
        Call::Store { first, count } => {
            (*first..first + count).map(|number| contender.value_of(number)).collect()
        }
        _ => Vec::new(),
    };
    let (start, cpu) = (Instant::now(), processor_time());
    match call {
        Call::Store { first, .. } => runtime.block_on(contender.store(first, values))?,
        Call::Fetch { numbers } => runtime.block_on(contender.fetch(&numbers))?,
        Call::Open { .. } => unreachable!("answered above"),
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = processor_time() - cpu;
    Ok(serde_json::json!({ "seconds": seconds, "cpu_seconds": cpu_seconds }))
}

async fn open(
    dir: &str,
    bytes: usize,
    value_bytes: usize,
    depth: usize,
) -> Result<Contender, Failed> {
    let path = std::path::Path::new(dir).join("foyer");
    let device = FileDeviceBuilder::new(path).with_capacity(bytes).with_direct(true).build()?;
    let engine = BlockEngineConfig::new(device)
        .with_flushers(FLUSHERS)
        .with_reclaimers(2)
        .with_buffer_pool_size(BUFFERS)
        .with_submit_queue_size_threshold(2 * BUFFERS);
    let rings: Box<dyn IoEngineConfig> = Box::new(UringIoEngineConfig::new().with_io_depth(depth));
    let cache = HybridCacheBuilder::new()
        .memory(1)
        .with_weighter(|_: &u64, value: &Bytes| value.len())
        .storage()
        .with_io_engine_config(rings)
        .with_engine_config(engine)
        .with_recover_mode(RecoverMode::None)
        .build()
        .await?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let random = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    Ok(Contender { cache, value: random.take(value_bytes).collect(), depth })
}

impl Contender {
    fn value_of(&self, number: u64) -> Bytes {
        let mut value = self.value.clone();
        value[..8].copy_from_slice(&number.to_le_bytes());
        value.into()
    }

    async fn store(&self, first: u64, values: Vec<Bytes>) -> Result<(), Failed> {
        for (number, value) in (first..).zip(values) {
            let writer = self.cache.storage_writer(number).force();
            writer.insert(value).ok_or_else(|| format!("value {number} was not admitted"))?;
        }
        self.cache.storage().wait().await;
        Ok(())
    }

    async fn fetch(&self, numbers: &[u64]) -> Result<(), Failed> {
        let storage = Arc::new(self.cache.storage().clone());
        let loads = numbers.iter().map(|&number| {
            let storage = Arc::clone(&storage);
            async move { (number, storage.load(&number).await) }
        });
        let mut loads = stream::iter(loads).buffer_unordered(self.depth);
        while let Some((number, loaded)) = loads.next().await {
            let Load::Entry { value, .. } = loaded? else {
                return Err(format!("value {number} is not on the disk").into());
            };
            if value.len() != self.value.len() || value[..8] != number.to_le_bytes() {
                return Err(format!("value {number} came back with other bytes").into());
            }
        }
        Ok(())
    }
}

/// Returns the processor time of this process in seconds.
fn processor_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
