//! *Registering*: a region in pieces, by threads that take one after the other, or by the library.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Result;
use kvmem::arena::Region;
use kvmem::register::cuda::Cuda;
use kvmem::register::{Registrar, RegistrationSet};

use super::Declined;
use super::driver::{Entered, Gpu, OwnContext};
use crate::bench::team::side_by_side;

/// Seconds until the memory can be copied by the GPU, and until it is ordinary memory again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RegisterTimes {
    pub(super) ready_s: f64,
    pub(super) back_s: f64,
}

/// Pieces of one size, and the threads that register them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedSetting {
    pub(super) piece_bytes: u64,
    pub(super) threads: u32,
    /// Whether each thread has a context of its own.
    pub(super) own_contexts: bool,
}

/// The contexts of the threads.
enum Contexts {
    Primary,
    Own(Vec<OwnContext>),
}

impl Contexts {
    fn enter<'a>(&'a self, gpu: &'a Gpu, thread: usize) -> Result<Entered<'a>> {
        match self {
            Contexts::Primary => gpu.enter(),
            Contexts::Own(all) => all[thread].enter(),
        }
    }
}

/// Registers the region in pieces, and unregisters it. A failure leaves nothing registered.
pub(super) fn fixed(
    gpu: &Arc<Gpu>,
    region: &Region,
    setting: FixedSetting,
) -> Result<RegisterTimes> {
    let FixedSetting { piece_bytes, threads, own_contexts } = setting;
    let contexts = if own_contexts {
        Contexts::Own((0..threads).map(|_| gpu.own_context()).collect::<Result<_>>()?)
    } else {
        Contexts::Primary
    };
    let pieces: Vec<(usize, usize)> = (0..region.len())
        .step_by(piece_bytes as usize)
        .map(|at| (at, (piece_bytes as usize).min(region.len() - at)))
        .collect();
    // Which thread has registered each piece: its context unregisters it.
    let registered: Vec<AtomicUsize> = pieces.iter().map(|_| AtomicUsize::new(NOBODY)).collect();
    let start = Instant::now();
    let next = AtomicUsize::new(0);
    let outcome = together(threads, &|thread| {
        let _current = contexts.enter(gpu, thread)?;
        loop {
            // Relaxed: the numbers only have to differ.
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(at, len)) = pieces.get(number) else { return Ok(()) };
            // SAFETY: the piece lies in the region, which stays mapped until all pieces have been
            // unregistered, below.
            unsafe { gpu.register(region.base().as_ptr().add(at), len) }?;
            // Relaxed: the threads that read it are started after this one has ended.
            registered[number].store(thread, Ordering::Relaxed);
        }
    });
    let between = Instant::now();
    let returned = together(threads, &|thread| {
        let _current = contexts.enter(gpu, thread)?;
        for (&(at, _), owner) in pieces.iter().zip(&registered) {
            // Relaxed: the thread that has stored it has ended.
            if owner.load(Ordering::Relaxed) == thread {
                // SAFETY: this context has registered the piece, and nothing copies.
                unsafe { gpu.unregister(region.base().as_ptr().add(at)) }?;
            }
        }
        Ok(())
    });
    let back_s = between.elapsed().as_secs_f64();
    outcome.and(returned)?;
    Ok(RegisterTimes { ready_s: (between - start).as_secs_f64(), back_s })
}

/// A piece that no thread has registered.
const NOBODY: usize = usize::MAX;

/// Runs the work on threads of their own, and returns the first error.
fn together(threads: u32, work: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
    side_by_side(threads as usize, work, |go| go())?.into_iter().collect()
}

/// Registers the region with the library, and unregisters it, in pieces as a pool has them.
/// Populating is part of the time.
pub(super) fn automatic(library: &OsStr, region: &Arc<Region>) -> Result<RegisterTimes> {
    // SAFETY: the caller of the suite promises that the library behaves like the driver.
    let cuda = unsafe { Cuda::load_from(library) }.map_err(Declined::by)?;
    let gpu = Arc::new(cuda.open(0).map_err(Declined::by)?);
    let piece = gpu.limits().preferred_chunk_bytes.unwrap_or(u64::MAX);
    let start = Instant::now();
    let builder = RegistrationSet::builder().registrars([gpu as _]).chunk_bytes(piece);
    let set = builder.register(Arc::clone(region));
    let mut set = set.map_err(Declined::by)?;
    let between = Instant::now();
    set.deregister().map_err(Declined::by)?;
    let back_s = between.elapsed().as_secs_f64();
    Ok(RegisterTimes { ready_s: (between - start).as_secs_f64(), back_s })
}

/// Allocates memory of the driver, and frees it.
pub(super) fn allocated<T>(
    gpu: &Arc<Gpu>,
    allocate: impl FnOnce() -> Result<T>,
) -> Result<RegisterTimes> {
    let _current = gpu.enter()?;
    let start = Instant::now();
    let bytes = allocate()?;
    let between = Instant::now();
    drop(bytes);
    let back_s = between.elapsed().as_secs_f64();
    Ok(RegisterTimes { ready_s: (between - start).as_secs_f64(), back_s })
}
