//! L4: any sequence of operations on blocks by several threads, against books of what is in use.
#![cfg_attr(fuzzing, no_main)]

use anyhow::Result;
use kvmem_testkit::slices::{self, codec};

/// Runs what the bytes say. Bytes too short to name an allocator say nothing.
fn target(bytes: &[u8]) -> Result<()> {
    if let Some((config, ops)) = codec::decode(bytes) {
        slices::run(&config, &ops)?;
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
