//! Slab layer: sequences of operations on cached offset spaces, compared with the interval oracle.
#![cfg_attr(fuzzing, no_main)]

use anyhow::Result;
use kvmem_testkit::{codec, driver};

/// Runs the test that the bytes encode. Too few bytes encode none.
fn target(bytes: &[u8]) -> Result<()> {
    if let Some((config, ops)) = codec::decode_cached(bytes) {
        driver::run(&config, &ops)?;
    }
    Ok(())
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(failure) = target(bytes) {
        panic!("{failure}");
    }
});

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    kvmem_fuzz::main("extents", target, kvmem_testkit::corpus::extents)
}
