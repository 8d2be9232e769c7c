//! Stores and fetches values of a disk tier on a device in memory, so that callgrind counts what
//! the tier itself costs:
//!
//! ```text
//! cargo build --release -p kvmem-tier --example tier_calls
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null tier_calls store 1 20000
//! ```
//!
//! The arguments are `store` or `fetch`, the values of a call, and the number of calls. The tier is
//! full, so each store evicts. The difference of two numbers of calls leaves out the start.

use std::env;

use kvmem::tier::TierRead;
use kvmem_tier::device::{AlignedBuffer, MemoryDevice};
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched};

const LEN: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [call, values, calls] = &args[..] else { return Err("store|fetch VALUES CALLS".into()) };
    let (values, calls): (usize, u64) = (values.parse()?, calls.parse()?);
    // A journal that is rarely full: a checkpoint costs more than a thousand stores.
    let options = DiskTierOptions {
        max_entries: Some(2048),
        journal_bytes: Some(1 << 20),
        ..DiskTierOptions::default()
    };
    let (tier, _) = DiskTier::on(MemoryDevice::new(6 << 20), &options)?;
    let mut memory = AlignedBuffer::new(values);
    let keys: Vec<[u8; 8]> = (0..1024_u64).map(u64::to_le_bytes).collect();
    let store = |memory: &[u8], first: usize| {
        let batch: Vec<(&[u8], &[u8])> = memory
            .chunks_exact(LEN)
            .enumerate()
            .map(|(index, value)| (&keys[(first + index) % keys.len()][..], value))
            .collect();
        tier.store(&batch).iter().filter(|stored| stored.is_ok()).count()
    };
    for first in 0..1024 / values {
        store(&memory, first * values);
    }
    let mut done = 0;
    for first in 0..calls as usize {
        let first = first * values;
        if call == "store" {
            done += store(&memory, first);
            continue;
        }
        // The values that were stored last.
        let mut requests: Vec<TierRead<'_>> = memory
            .chunks_exact_mut(LEN)
            .enumerate()
            .map(|(index, into)| TierRead { key: &keys[1023 - (first + index) % 512], into })
            .collect();
        let fetched = tier.fetch(&mut requests);
        done += fetched.iter().filter(|&&fetched| fetched == Fetched::Hit).count();
    }
    let stats = tier.stats();
    println!("{done} values, {} evictions, {} in the index", stats.evictions, stats.entries);
    Ok(())
}
