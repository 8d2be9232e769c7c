//! *Ownership*: two processes that write to one tier destroy it, so one of them is its owner.
//!
//! On one host, the kernel says who that is: the file is locked, and a block device is claimed
//! (`O_EXCL`), through whatever device node it is opened. Both end with the process, however it
//! ends. A kernel knows nothing of other hosts, which may have the same block device, or the same
//! file by a network. The superblock therefore names the [`Owner`] as long as the tier is open.
//!
//! # At opening
//!
//! If the superblock names an owner, that one may live, or it was killed. It has ended if
//!
//! - the device is a file on a local file system: its lock is the kernel's word;
//! - it ran under this kernel since the machine was started: the lock and the claim are;
//! - it ran on this machine before that was started again.
//!
//! Otherwise opening the tier is an [error](super::TierError::Owned), unless the
//! [options](super::DiskTierOptions::take_over) say that the owner has ended. No time is waited
//! for: an owner that stores nothing writes nothing for any time, and still has the tier.
//!
//! # While it is open
//!
//! The tier reads both superblocks before and after it writes the first ones, before each
//! checkpoint, and on a device that other hosts may have also before it writes values or to the
//! journal if a second has passed. If they are not those that it wrote, another process has taken
//! the tier over: this one [stores nothing](super::TierError::TakenOver) any more. Two processes
//! that open the tier at the same moment thus find each other, at the latest after a second; no
//! lock over a network is needed for that.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use super::error::TierError;
use super::found::read_superblocks;
use super::journal::Journal;
use super::tier::DiskTier;
use crate::device::Device;
use crate::format::{BLOCK, Owner, Superblock, SuperblockError};
use crate::index::seconds_now;
use crate::trace::event;

/// The most time between two looks at the superblocks while the journal is written.
const PERIOD: Duration = Duration::from_secs(1);

/// Returns this process as an owner.
pub(super) fn this_process() -> Owner {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let host = read("/proc/sys/kernel/hostname");
    let machine = read("/etc/machine-id");
    let machine = if machine.trim().is_empty() { &host } else { &machine };
    Owner {
        token: random(),
        machine: name(machine),
        boot: name(&read("/proc/sys/kernel/random/boot_id")),
        since: seconds_now().into(),
        process: std::process::id(),
        host: Owner::host_field(host.trim()),
    }
}

/// Returns 16 bytes for a name.
fn name(name: &str) -> [u8; 16] {
    use siphasher::sip128::{Hasher128, SipHasher24};
    let mut hasher = SipHasher24::new();
    std::hash::Hasher::write(&mut hasher, name.trim().as_bytes());
    hasher.finish128().as_bytes()
}

/// Fails if the owner that the superblock of a device names may live.
pub(super) fn check_before_opening(
    device: &impl Device,
    superblock: &Superblock,
    take_over: bool,
) -> Result<(), TierError> {
    let Some(owner) = superblock.owner else { return Ok(()) };
    let this = this_process();
    let is_of_this_host = owner.boot == this.boot || owner.machine == this.machine;
    if is_of_this_host || !device.may_be_shared() {
        return Ok(());
    }
    if take_over {
        event!(WARN, %owner, "the tier is taken over");
        return Ok(());
    }
    let Owner { process, since, .. } = owner;
    Err(TierError::Owned { host: owner.host(), process, since, owner: owner.to_string() })
}

impl<D: Device> DiskTier<D> {
    /// Fails if the superblocks of the device are not those that this process wrote or found last.
    /// A copy that cannot be read says nothing.
    pub(super) fn check_owner(&self, superblock: &Superblock) -> Result<(), TierError> {
        // The superblocks on a device of which a tier is being made say nothing.
        if superblock.generation == 0 {
            return Ok(());
        }
        let Ok(copies) = read_superblocks(&self.device) else { return Ok(()) };
        for copy in copies {
            let by = match copy {
                Ok(copy) if copy.file != superblock.file => copy.owner,
                Ok(copy) if copy.generation > superblock.generation => copy.owner,
                Ok(copy)
                    if copy.generation == superblock.generation
                        && copy.owner != superblock.owner =>
                {
                    copy.owner
                }
                Err(SuperblockError::Version { .. }) => None,
                _ => continue,
            };
            let by = by.map_or_else(
                || "a program that leaves no name".to_owned(),
                |owner| owner.to_string(),
            );
            return Err(TierError::TakenOver { by });
        }
        Ok(())
    }

    /// Checks the owner before values are written, as
    /// [`check_owner_at_times`](Self::check_owner_at_times) does. A thread that has the journal
    /// checks it itself.
    pub(super) fn check_before_storing(&self) {
        if self.device.may_be_shared()
            && let Ok(mut journal) = self.journal.try_lock()
        {
            // The values that follow find the tier unusable.
            let _ = self.held(self.check_owner_at_times(&mut journal));
        }
    }

    /// Checks the owner before the journal is written, if other hosts may have the device and a
    /// second has passed.
    pub(super) fn check_owner_at_times(&self, journal: &mut Journal) -> Result<(), TierError> {
        if !self.device.may_be_shared() || journal.checked_at.elapsed() < PERIOD {
            return Ok(());
        }
        self.check_owner(&journal.superblock)?;
        journal.checked_at = Instant::now();
        Ok(())
    }

    /// Writes superblocks without an owner, if the tier is still that of this process.
    pub(super) fn release(&self) -> Result<(), TierError> {
        let mut journal = self.journal();
        self.usable()?;
        if journal.superblock.owner.is_none() {
            return Ok(());
        }
        self.check_owner(&journal.superblock)?;
        let old = journal.superblock.clone();
        let superblock = Superblock {
            generation: old.generation + 1,
            // Those that are replaced now are counted as a part of it.
            lifetime_bytes: old.lifetime_bytes.saturating_add(2 * BLOCK as u64),
            owner: None,
            ..old
        };
        let _failed = self.write_superblocks(&superblock)?;
        journal.superblock = superblock;
        Ok(())
    }
}

/// Returns random bytes. They distinguish what two files wrote, and the digests of their keys; no
/// secret depends on them.
pub(super) fn random() -> [u8; 16] {
    let word = || RandomState::new().hash_one(std::process::id()).to_le_bytes();
    let (low, high) = (word(), word());
    std::array::from_fn(|i| if i < 8 { low[i] } else { high[i - 8] })
}
