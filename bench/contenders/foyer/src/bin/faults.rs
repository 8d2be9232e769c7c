//! foyer's disk cache in experiments with faults. `faults/experiment.py` has the calls and answers.
//!
//! The options are the defaults, but for a capacity, and blocks of 4 MiB so that a small cache has
//! several of them. Stores are asynchronous and report nothing: one counts if, after `Store::wait`,
//! the storage has the key within a second.

use std::error::Error;
use std::io::{BufRead, IoSlice, Write};
use std::mem::ManuallyDrop;
use std::time::Duration;

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder, Load,
};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

const VALUE_WORDS: u64 = (1 << 20) / 8;

#[derive(Deserialize)]
#[serde(tag = "call", rename_all = "lowercase")]
enum Question {
    Open { dir: String, bytes: usize },
    Set { keys: Vec<u64>, version: u64 },
    Get { keys: Vec<u64> },
    Exists { keys: Vec<u64> },
    Settle,
}

/// What became of the values of one call.
#[derive(Default, Serialize)]
struct Answer {
    done: Vec<u64>,
    misses: Vec<u64>,
    other: Vec<u64>,
    errors: Vec<u64>,
    versions: Vec<u64>,
    said: String,
}

type Cache = HybridCache<u64, Bytes>;
type AnyError = Box<dyn Error>;

fn main() -> Result<(), AnyError> {
    // As in programs in Python: a write beyond the limit of the size of files is an error.
    // SAFETY: no handler of signals is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let runtime = Runtime::new()?;
    let mut cache = None;
    for line in std::io::stdin().lock().lines() {
        let answer = match runtime.block_on(answer(&mut cache, &line?)) {
            Ok(answer) => serde_json::to_string(&answer)?,
            Err(error) => serde_json::json!({ "error": error.to_string() }).to_string(),
        };
        say(&(answer + "\n"))?;
    }
    if let Some(cache) = cache {
        runtime.block_on(cache.close())?;
    }
    Ok(())
}

/// Writes an answer by `writev`: an experiment lets `write` and `pwrite` fail.
fn say(answer: &str) -> std::io::Result<()> {
    use std::os::fd::{AsRawFd, FromRawFd};
    // SAFETY: the descriptor stays open: the file is never dropped.
    let file = unsafe { std::fs::File::from_raw_fd(std::io::stdout().as_raw_fd()) };
    let written = ManuallyDrop::new(file).write_vectored(&[IoSlice::new(answer.as_bytes())])?;
    assert_eq!(written, answer.len(), "answers fit in the pipe");
    Ok(())
}

async fn answer(cache: &mut Option<Cache>, line: &str) -> Result<Answer, AnyError> {
    let call: Question = serde_json::from_str(line)?;
    let mut answer = Answer::default();
    if let Question::Open { dir, bytes } = call {
        *cache = Some(open(&dir, bytes).await?);
        return Ok(answer);
    }
    let cache = cache.as_ref().ok_or("`open` comes first")?;
    match call {
        Question::Set { keys, version } => {
            for key in keys {
                // An entry is written when it is dropped.
                let writer = cache.storage_writer(key).force();
                let admitted = writer.insert(value_of(key, version)).is_some();
                cache.storage().wait().await;
                match admitted && appears(cache, key).await {
                    true => answer.done.push(key),
                    false => answer.misses.push(key),
                }
            }
        }
        Question::Get { keys } => {
            for key in keys {
                match cache.storage().load(&key).await {
                    Ok(Load::Entry { value, .. }) => match version_of(key, &value) {
                        Some(version) => {
                            answer.done.push(key);
                            answer.versions.push(version);
                        }
                        None => answer.other.push(key),
                    },
                    Ok(_) => answer.misses.push(key),
                    Err(error) => {
                        answer.errors.push(key);
                        answer.said = error.to_string();
                    }
                }
            }
        }
        Question::Exists { keys } => {
            answer.done = keys;
            answer.done.retain(|key| cache.storage().may_contains(key));
        }
        Question::Settle => cache.storage().wait().await,
        Question::Open { .. } => unreachable!("answered above"),
    }
    Ok(answer)
}

/// Returns whether the storage has a key within a second: `Store::wait` may return before.
async fn appears(cache: &Cache, key: u64) -> bool {
    for _ in 0..1000 {
        if cache.storage().may_contains(&key) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

async fn open(dir: &str, bytes: usize) -> Result<Cache, AnyError> {
    let device = FsDeviceBuilder::new(dir).with_capacity(bytes).build()?;
    let engine = BlockEngineConfig::new(device).with_block_size(4 << 20);
    let cache = HybridCacheBuilder::new().memory(1).storage().with_engine_config(engine);
    Ok(cache.build().await?)
}

/// Returns a value of which each word names key, version and position.
fn value_of(key: u64, version: u64) -> Bytes {
    let words = (0..VALUE_WORDS).map(|word| word + (key << 40 | version << 32));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Returns the version of the whole value of a key, if no other bytes are in it.
fn version_of(key: u64, value: &Bytes) -> Option<u64> {
    let version = u64::from(*value.get(4)?);
    (*value == value_of(key, version)).then_some(version)
}
