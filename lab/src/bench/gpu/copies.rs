//! *Copies* of blocks between memory of the host and the GPU.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use kvmem::arena::Region;
use kvmem_testkit::workload::stream;
use rand::seq::SliceRandom;

use super::driver::{DeviceBytes, Direction, DriverBytes, Gpu, NodeBytes};

/// Memory of the host, for copies.
pub(super) enum HostBytes {
    /// A region, registered or not.
    Region {
        region: Arc<Region>,
        _registered: Option<Registered>,
    },
    Driver(DriverBytes),
    Node(NodeBytes),
}

/// A region that is registered in one piece until this is dropped.
pub(super) struct Registered {
    gpu: Arc<Gpu>,
    region: Arc<Region>,
}

impl Registered {
    fn new(gpu: &Arc<Gpu>, region: &Arc<Region>) -> Result<Registered> {
        let _current = gpu.enter()?;
        // SAFETY: `self` keeps the region mapped, and unregisters it first.
        unsafe { gpu.register(region.base().as_ptr(), region.len()) }?;
        Ok(Registered { gpu: Arc::clone(gpu), region: Arc::clone(region) })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let back = self.gpu.enter().and_then(|_current| {
            // SAFETY: `new` has registered it, and no copy is in flight: `copy` waits for its own.
            unsafe { self.gpu.unregister(self.region.base().as_ptr()) }
        });
        if back.is_err() {
            // The GPU may still access it.
            std::mem::forget(Arc::clone(&self.region));
        }
    }
}

impl HostBytes {
    /// A region, which is registered first if `registered` is true.
    pub(super) fn region(
        gpu: &Arc<Gpu>,
        region: &Arc<Region>,
        registered: bool,
    ) -> Result<HostBytes> {
        let registered = registered.then(|| Registered::new(gpu, region)).transpose()?;
        Ok(HostBytes::Region { region: Arc::clone(region), _registered: registered })
    }

    fn base(&self) -> *mut u8 {
        match self {
            HostBytes::Region { region, .. } => region.base().as_ptr(),
            HostBytes::Driver(bytes) => bytes.base(),
            HostBytes::Node(bytes) => bytes.base(),
        }
    }
}

/// A setting of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopySetting {
    pub(super) block_bytes: u64,
    /// Whether the blocks are in random order.
    pub(super) scattered: bool,
    pub(super) direction: Direction,
}

/// Host memory of `len` bytes, and as many on the GPU.
pub(super) struct CopyFixture {
    gpu: Arc<Gpu>,
    // Dropped first: it knows the host's memory.
    device: DeviceBytes,
    host: HostBytes,
    len: usize,
}

impl CopyFixture {
    pub(super) fn new(gpu: &Arc<Gpu>, host: HostBytes, len: usize) -> Result<CopyFixture> {
        Ok(CopyFixture { gpu: Arc::clone(gpu), device: gpu.device_bytes(len)?, host, len })
    }

    /// Copies all blocks once. Returns the seconds and the bytes.
    pub(super) fn measure(&mut self, setting: CopySetting, rep: u32) -> Result<(f64, u64)> {
        let len = setting.block_bytes as usize;
        let mut blocks: Vec<usize> = (0..self.len / len).collect();
        if setting.scattered {
            blocks.shuffle(&mut stream(1, rep.into()));
        }
        let places: Vec<*mut u8> = blocks
            .iter()
            // SAFETY: the block lies in the memory.
            .map(|block| unsafe { self.host.base().add(block * len) })
            .collect();
        let _current = self.gpu.enter()?;
        for (&block, &place) in blocks.iter().zip(&places) {
            // SAFETY: the block is exclusively borrowed with `self`, and nothing copies.
            stamp(unsafe { std::slice::from_raw_parts_mut(place, len) }, block, rep);
        }
        let copy = |direction| {
            let start = Instant::now();
            // SAFETY: the places have `len` bytes each, of memory that `self` has for itself.
            unsafe { self.device.copy(direction, &places, len) }?;
            anyhow::Ok(start.elapsed().as_secs_f64())
        };
        let there = copy(Direction::ToDevice)?;
        for &place in &places {
            // SAFETY: as above: other bytes than those that are on the GPU.
            unsafe { std::slice::from_raw_parts_mut(place, len) }.fill(0xEE);
        }
        let back = copy(Direction::FromDevice)?;
        for (&block, &place) in blocks.iter().zip(&places) {
            // SAFETY: as above; the copies have ended.
            let bytes = unsafe { std::slice::from_raw_parts(place, len) };
            let is_whole = is_stamped(bytes, block, rep);
            ensure!(is_whole, "block {block} came back with other bytes than were copied");
        }
        let seconds = if setting.direction == Direction::ToDevice { there } else { back };
        Ok((seconds, (places.len() * len) as u64))
    }
}

/// The word that stands in each eight bytes of a block.
fn word(block: usize, rep: u32) -> [u8; 8] {
    ((block as u64) << 32 | u64::from(rep)).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()
}

fn stamp(bytes: &mut [u8], block: usize, rep: u32) {
    let word = word(block, rep);
    bytes.chunks_mut(8).for_each(|eight| eight.copy_from_slice(&word[..eight.len()]));
}

fn is_stamped(bytes: &[u8], block: usize, rep: u32) -> bool {
    let word = word(block, rep);
    bytes.chunks(8).all(|eight| *eight == word[..eight.len()])
}
