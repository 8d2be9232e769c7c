//! The two published strategies of registering, on the registrar trait.
//!
//! ```text
//!  sequential            parallel
//!  for each context:     for each context, on its own thread:
//!      register region       register region
//! ```
//!
//! A region that exceeds the size of a key takes several calls, as few as possible. Deregistration
//! goes the same way. Nothing is populated beforehand: an untouched page becomes resident in the
//! first call that pins it.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Error, Result};
use kvmem::arena::Region;
use kvmem::register::{Key, Platform, Registrar, RegistrarError};

use super::fixture::skip_limits;
use crate::bench::team::side_by_side;

/// Keys start at multiples of this: the largest page that benchmarks use.
const PAGE: usize = 2 << 20;

/// A region that is registered with several registrars.
pub(super) struct StrategyRun<'a> {
    registrars: &'a [Arc<dyn Registrar>],
    host: &'a dyn Platform,
    parallel: bool,
    /// The keys that each registrar returned.
    keys: Vec<Vec<Key>>,
    // Kept alive while there are keys.
    region: Arc<Region>,
}

impl<'a> StrategyRun<'a> {
    /// Registers the whole region with each registrar.
    pub(super) fn register(
        registrars: &'a [Arc<dyn Registrar>],
        host: &'a dyn Platform,
        region: &Arc<Region>,
        parallel: bool,
    ) -> Result<Self> {
        let found =
            each(host, registrars.len(), parallel, |number| whole(&*registrars[number], region))?;
        let mut run = StrategyRun {
            registrars,
            host,
            parallel,
            keys: Vec::new(),
            region: Arc::clone(region),
        };
        let mut error = None;
        for (keys, failure) in found {
            run.keys.push(keys);
            error = error.or(failure);
        }
        match error {
            None => Ok(run),
            Some(failure) => {
                run.give_back()?;
                Err(failed(failure))
            }
        }
    }

    /// Gives all keys back, with the strategy by which they were registered.
    pub(super) fn give_back(mut self) -> Result<()> {
        let keys = std::mem::take(&mut self.keys);
        let registrars = self.registrars;
        let one = |number: usize| {
            let results = keys[number].iter().map(|key| registrars[number].deregister(*key));
            results.filter_map(Result::err).next()
        };
        // If no thread can be started, the calling thread gives all keys back.
        let found = each(self.host, keys.len(), self.parallel, one)
            .unwrap_or_else(|_| (0..keys.len()).map(one).collect());
        match found.into_iter().flatten().next() {
            None => Ok(()),
            Some(failure) => {
                // A key still exists, so the bytes must stay mapped.
                std::mem::forget(Arc::clone(&self.region));
                Err(failed(failure))
            }
        }
    }
}

fn failed(failure: RegistrarError) -> Error {
    let exceeded = failure.exceeded.clone();
    skip_limits(failure, exceeded.as_ref())
}

/// Calls `work` for each number, one after another or each on its own thread.
fn each<T: Send>(
    host: &dyn Platform,
    count: usize,
    parallel: bool,
    work: impl Fn(usize) -> T + Sync,
) -> Result<Vec<T>> {
    if !parallel || count < 2 {
        return Ok((0..count).map(work).collect());
    }
    // The first of a gathering is the thread that calls it.
    let mut first = None;
    let enters = |number| {
        let _member = GatheredThread::enter(host, number);
        work(number)
    };
    let others = side_by_side(count - 1, &|other| enters(other + 1), |go| {
        host.gather(count);
        go();
        first = Some(enters(0));
    })?;
    Ok(first.into_iter().chain(others).collect())
}

/// A thread in a gathered group. Dropping it leaves the group, also in a panic: others may wait for
/// it.
struct GatheredThread<'a>(&'a dyn Platform);

impl<'a> GatheredThread<'a> {
    fn enter(host: &'a dyn Platform, number: usize) -> Self {
        host.enter(number);
        Self(host)
    }
}

impl Drop for GatheredThread<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Registers the whole region with one registrar, in the fewest chunks. Returns the keys, and the
/// error if one call failed.
fn whole(registrar: &dyn Registrar, region: &Region) -> (Vec<Key>, Option<RegistrarError>) {
    let mut keys = Vec::new();
    for chunk in chunks(region.len(), registrar.limits().max_bytes) {
        // SAFETY: the chunk lies within the region.
        let at = unsafe { region.base().add(chunk.start) };
        // SAFETY: the region is mapped for reading and writing. `StrategyRun` keeps it mapped until
        // the key is given back, and for ever if that fails. Nothing discards or moves its pages
        // meanwhile, and no device is given work.
        match unsafe { registrar.register(at, chunk.len()) } {
            Ok(key) => keys.push(key),
            Err(failure) => return (keys, Some(failure)),
        }
    }
    (keys, None)
}

/// Returns the fewest chunks of at most `max_bytes` that begin on page boundaries.
fn chunks(len: usize, max_bytes: u64) -> impl Iterator<Item = Range<usize>> {
    let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    let step = if max_bytes < PAGE { max_bytes.max(1) } else { max_bytes - max_bytes % PAGE };
    (0..len).step_by(step).map(move |start| start..len.min(start.saturating_add(step)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_as_few_as_possible() {
        let cut = |len, max| chunks(len, max).collect::<Vec<_>>();
        assert_eq!(cut(10 << 20, u64::MAX), vec![0..10 << 20]);
        assert_eq!(cut(10 << 20, 10 << 20), vec![0..10 << 20]);
        assert_eq!(cut(10 << 20, 5 << 20), vec![0..4 << 20, 4 << 20..8 << 20, 8 << 20..10 << 20]);
        assert_eq!(cut(8192, 4096), vec![0..4096, 4096..8192]);
        assert_eq!(cut(0, 4096), vec![]);
    }
}
