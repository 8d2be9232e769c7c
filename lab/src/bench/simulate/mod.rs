//! The benchmark of loops of many threads on simulated cores, in virtual time.

#[cfg(kvmem_simulated)]
mod loops;
#[cfg(kvmem_simulated)]
mod suite;

use anyhow::Result;

use super::suite::Run;

/// Runs the benchmark; also shows up to `places` places of each loop at which cores waited.
#[cfg(kvmem_simulated)]
pub fn run(run: &mut Run, places: usize) -> Result<()> {
    suite::run(run, places)
}

/// Fails: the atomics of this build are the processor's.
///
/// # Errors
///
/// Always.
#[cfg(not(kvmem_simulated))]
pub fn run(_: &mut Run, _: usize) -> Result<()> {
    anyhow::bail!(
        "the threads of this program run on the cores of this machine: `cargo xtask bench \
         simulate` builds one whose threads run on simulated cores"
    )
}
