//! Offset layer: sequences of operations on offset spaces, compared with the interval oracle.
#![cfg_attr(fuzzing, no_main)]

use anyhow::Result;
use kvmem_testkit::{codec, driver};

/// Runs the test that the bytes encode. Too few bytes encode none.
fn target(bytes: &[u8]) -> Result<()> {
    if let Some((config, ops)) = codec::decode(bytes) {
        driver::run(&config, &ops)?;
    }
    Ok(())
}

kvmem_fuzz::run!(target, kvmem_fuzz::no_seeds);
