//! Slab layer: sequences of operations on blocks by several threads, compared with a record of the
//! live blocks.
#![cfg_attr(fuzzing, no_main)]

use anyhow::Result;
use kvmem_testkit::slabs::{self, codec};

/// Runs the test that the bytes encode. Too few bytes encode none.
fn target(bytes: &[u8]) -> Result<()> {
    if let Some((config, ops)) = codec::decode(bytes) {
        slabs::run(&config, &ops)?;
    }
    Ok(())
}

kvmem_fuzz::run!(target, kvmem_fuzz::no_seeds);
