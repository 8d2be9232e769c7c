//! A server with a tier of its own: other memory, which is slow or full.
//!
//! ```text
//! cargo run -p kvmem-node --example own_tier -- BYTES SOCKET READ_MS MAX_BYTES
//! ```
//!
//! Each fetch of the tier takes `READ_MS` milliseconds, as that of a slow disk does. The tier
//! stores nothing beyond `MAX_BYTES`, as a full one. The server ends when its standard input is
//! closed.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvmem::arena::{Backing, PageSize, Region};
use kvmem::tier::{BoxError, Lookup, StoreOutcome, Tier, TierHit, TierRead, TierState, TierValue};
use kvmem_node::{Node, NodeOptions, NodeServer, ServerOptions};

/// The values, and their bytes.
#[derive(Default)]
struct Stored {
    values: HashMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
}

impl Stored {
    fn remove(&mut self, key: &[u8]) {
        if let Some(value) = self.values.remove(key) {
            self.bytes -= value.len();
        }
    }
}

struct OwnTier {
    stored: Mutex<Stored>,
    read: Duration,
    max_bytes: usize,
}

impl OwnTier {
    fn lock(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tier for OwnTier {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let mut stored = self.lock();
        let store = |&TierValue { key, bytes, .. }: &TierValue<'_>| {
            // A value that is not stored leaves no older one behind.
            stored.remove(key);
            if stored.bytes + bytes.len() > self.max_bytes {
                return Ok(StoreOutcome::NotStored);
            }
            stored.bytes += bytes.len();
            stored.values.insert(key.to_vec(), bytes.to_vec());
            Ok(StoreOutcome::Stored)
        };
        values.iter().map(store).collect()
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        keys.iter().map(|key| self.len_of(key)).collect()
    }

    fn len_of(&self, key: &[u8]) -> Lookup {
        let len = |value: &Vec<u8>| Lookup::Found(value.len() as u64);
        self.lock().values.get(key).map_or(Lookup::Missing, len)
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        std::thread::sleep(self.read);
        let stored = self.lock();
        let fetch = |read: &mut TierRead<'_>| match stored.values.get(read.key) {
            Some(value) if value.len() == read.into.len() => {
                read.into.copy_from_slice(value);
                Some(TierHit::default())
            }
            _ => None,
        };
        reads.iter_mut().map(fetch).collect()
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        let mut stored = self.lock();
        keys.iter().for_each(|key| stored.remove(key));
        Ok(())
    }

    fn clear(&self) -> Result<(), BoxError> {
        *self.lock() = Stored::default();
        Ok(())
    }

    fn state(&self) -> TierState {
        match self.lock().bytes < self.max_bytes {
            true => TierState::Working,
            false => TierState::ReadOnly,
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [bytes, socket, read_ms, max_bytes] = &arguments[..] else {
        return Err("give BYTES, SOCKET, READ_MS and MAX_BYTES".into());
    };
    let memory = Region::builder(bytes.parse()?).backing(Backing::Shared).ladder(PageSize::Base);
    // Of small values, too, the memory has room for more than the tier.
    let options = NodeOptions { max_blocks: Some(1 << 16), ..NodeOptions::default() };
    let node = Node::create(memory.map()?, options)?;
    let mut server = NodeServer::bind(node, socket.as_ref(), ServerOptions::default())?;
    let tier = OwnTier {
        stored: Mutex::default(),
        read: Duration::from_millis(read_ms.parse()?),
        max_bytes: max_bytes.parse()?,
    };
    server.attach_tier(Arc::new(tier))?;
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    println!("serving");
    server.run()?;
    Ok(())
}
