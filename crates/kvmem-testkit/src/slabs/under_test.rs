//! The allocator under test with the record of its blocks, and the comparison of the two.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use kvmem::slab::{ManualClock, SlabAllocator, SlabSettings};

use super::blocks::Blocks;
use super::op::SlabConfig;

/// The interval after which the depot returns unused magazines.
pub(super) const WORKING_SET: Duration = Duration::from_secs(15);
/// The largest number of freed blocks that debugging holds back.
const MAX_RESTING: usize = 1024;
/// The limit of resident bytes of released slabs: this, or an eighth of the bytes in use.
const MAX_UNUSED: usize = 1 << 20;

/// The allocator under test, and the record of its blocks.
pub(super) struct UnderTest {
    pub(super) config: SlabConfig,
    pub(super) allocator: SlabAllocator,
    pub(super) clock: Arc<ManualClock>,
    /// The misuse that the allocator reported.
    pub(super) faults: Arc<Mutex<Vec<String>>>,
    pub(super) blocks: Blocks,
}

impl UnderTest {
    pub(super) fn new(config: &SlabConfig) -> Result<UnderTest> {
        let clock = Arc::new(ManualClock::default());
        let faults = Arc::new(Mutex::new(Vec::new()));
        let reported = faults.clone();
        let mut builder = SlabAllocator::builder()
            .settings(SlabSettings {
                always_malloc: config.always_malloc,
                debug_blocks: config.debug_blocks,
            })
            .limit(config.limit.into())
            .working_set(WORKING_SET)
            .clock(clock.clone())
            .on_fault(move |fault| {
                reported.lock().unwrap_or_else(PoisonError::into_inner).push(fault.to_string());
            });
        if let Some(max) = config.max_cached_bytes {
            builder = builder.max_cached_bytes(max.into());
        }
        let allocator = builder.build()?;
        Ok(UnderTest { config: *config, allocator, clock, faults, blocks: Blocks::default() })
    }

    /// Returns the largest size that slabs serve.
    pub(super) fn limit(&self) -> usize {
        if self.config.always_malloc { 0 } else { self.config.limit.into() }
    }

    /// Returns the misuse that the allocator has reported since the last call.
    pub(super) fn faults(&self) -> Vec<String> {
        std::mem::take(&mut *self.faults.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Checks points 3 and 6.
    pub(super) fn compare(&self) -> Result<()> {
        let faults = self.faults();
        ensure!(faults.is_empty(), "misuse was reported that did not happen: {faults:?}");
        self.compare_in_use(if self.config.debug_blocks { MAX_RESTING } else { 0 })?;
        let stats = self.allocator.stats();
        if let Some(max) = self.config.max_cached_bytes {
            ensure!(
                stats.cached_bytes <= max.into(),
                "{} bytes are cached, more than {max}",
                stats.cached_bytes
            );
        }
        let (mut cached, mut slabs) = (0, 0);
        for class in &stats.classes {
            let objects = class.slabs * class.slab_objects;
            ensure!(class.in_use + class.cached <= objects, "more than its slabs have: {class:?}");
            cached += class.cached * class.object_bytes;
            slabs += class.slabs * class.slab_bytes;
        }
        ensure!(cached as u64 == stats.cached_bytes, "{cached} bytes are cached: {stats:?}");
        ensure!(slabs == stats.slab_bytes, "{slabs} bytes are in slabs: {stats:?}");
        ensure!(
            stats.slab_bytes + stats.unused_bytes <= stats.mapped_bytes,
            "more than is mapped: {stats:?}"
        );
        ensure!(
            stats.unused_bytes <= MAX_UNUSED.max(stats.slab_bytes / 8),
            "too much is kept: {stats:?}"
        );
        Ok(())
    }

    /// Checks the objects in use of each class and the system blocks: those of the record, and up
    /// to `resting` more.
    pub(super) fn compare_in_use(&self, resting: usize) -> Result<()> {
        let stats = self.allocator.stats();
        let limit = self.limit();
        let mut expected = vec![0; stats.classes.len()];
        let (mut blocks, mut bytes) = (0, 0);
        for size in self.blocks.sizes() {
            if size > limit {
                (blocks, bytes) = (blocks + 1, bytes + size);
                continue;
            }
            let class = stats.classes.partition_point(|class| class.object_bytes < size);
            let Some(expected) = expected.get_mut(class) else {
                bail!("no class for {size} bytes")
            };
            *expected += 1;
        }
        let mut more = 0;
        for (class, expected) in stats.classes.iter().zip(expected) {
            ensure!(class.in_use >= expected, "{expected} objects are in use: {class:?}");
            more += class.in_use - expected;
        }
        ensure!(stats.system_blocks >= blocks, "{blocks} blocks are the system's: {stats:?}");
        ensure!(stats.system_bytes >= bytes, "{bytes} bytes are the system's: {stats:?}");
        more += stats.system_blocks - blocks;
        ensure!(more <= resting, "{more} more blocks are in use than are live: {stats:?}");
        ensure!(
            more > 0 || stats.system_bytes == bytes,
            "{bytes} bytes are the system's: {stats:?}"
        );
        Ok(())
    }
}
