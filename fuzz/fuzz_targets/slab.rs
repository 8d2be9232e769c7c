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

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(failure) = target(bytes) {
        panic!("{failure:#}");
    }
});

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    kvmem_fuzz::main("slab", target, kvmem_testkit::corpus::slab)
}
