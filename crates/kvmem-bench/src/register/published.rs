//! *Published*: the two ways of registering that the published figures are of, against the trait of
//! the registrars.
//!
//! ```text
//!  sequential            parallel
//!  for each context:     for each context, on a thread of its own:
//!      register region       register region
//! ```
//!
//! A region that is larger than a key can cover takes several calls, as few as it can be. Giving
//! back goes the same way. Nobody populates: untouched pages become resident in the first call that
//! meets them.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use kvmem::arena::Region;
use kvmem::register::{Key, Platform, RegisterLimit, Registrar, RegistrarError};

use super::MeasureError;
use crate::NoThread;
use crate::crew::start;

/// Keys start on multiples of this: the largest page that benchmarks use.
const PAGE: usize = 2 << 20;

/// A region that is registered with several registrars.
pub(super) struct Published<'a> {
    registrars: &'a [Arc<dyn Registrar>],
    host: &'a dyn Platform,
    side_by_side: bool,
    /// Of each registrar, those it gave.
    keys: Vec<Vec<Key>>,
    // Held as long as there are keys.
    region: Arc<Region>,
}

impl<'a> Published<'a> {
    /// Registers the whole region with each.
    ///
    /// # Errors
    /// The first refusal. What was registered has been given back then.
    pub(super) fn register(
        registrars: &'a [Arc<dyn Registrar>],
        host: &'a dyn Platform,
        region: &Arc<Region>,
        side_by_side: bool,
    ) -> Result<Self, MeasureError> {
        let found = each(host, registrars.len(), side_by_side, |number| {
            whole(&*registrars[number], region)
        })?;
        let mut published = Published {
            registrars,
            host,
            side_by_side,
            keys: Vec::new(),
            region: Arc::clone(region),
        };
        let mut error = None;
        for (keys, refusal) in found {
            published.keys.push(keys);
            error = error.or(refusal);
        }
        match error {
            None => Ok(published),
            Some(refusal) => {
                published.give_back()?;
                Err(refused(&refusal))
            }
        }
    }

    /// Gives all keys back, in the way in which they were asked for.
    pub(super) fn give_back(mut self) -> Result<(), MeasureError> {
        let keys = std::mem::take(&mut self.keys);
        let registrars = self.registrars;
        let one = |number: usize| {
            let results = keys[number].iter().map(|key| registrars[number].deregister(*key));
            results.filter_map(Result::err).next()
        };
        // Without threads the keys are given back all the same.
        let found = each(self.host, keys.len(), self.side_by_side, one)
            .unwrap_or_else(|_| (0..keys.len()).map(one).collect());
        match found.into_iter().flatten().next() {
            None => Ok(()),
            Some(refusal) => {
                // A key stands, so the bytes must stay mapped.
                std::mem::forget(Arc::clone(&self.region));
                Err(refused(&refusal))
            }
        }
    }
}

fn refused(refusal: &RegistrarError) -> MeasureError {
    match refusal.exceeded {
        Some(RegisterLimit::Memlock { .. } | RegisterLimit::Descriptors) => {
            MeasureError::Limited(refusal.to_string())
        }
        _ => MeasureError::Refused(refusal.to_string()),
    }
}

/// Does something for each number, one after another or each on a thread; the calling thread takes
/// the first.
///
/// # Errors
/// A thread cannot be started; nothing is done then.
fn each<T: Send>(
    host: &dyn Platform,
    count: usize,
    side_by_side: bool,
    work: impl Fn(usize) -> T + Sync,
) -> Result<Vec<T>, NoThread> {
    if !side_by_side || count < 2 {
        return Ok((0..count).map(work).collect());
    }
    let one = |number| {
        let _present = Present::enter(host, number);
        work(number)
    };
    thread::scope(|scope| {
        let one = &one;
        let others = start(scope, (1..count).map(|number| move || one(number)))?;
        host.gather(count);
        let others = others.go();
        let first = one(0);
        let others = others.into_iter().filter_map(|other| match other.join() {
            Ok(found) => found,
            Err(panic) => resume_unwind(panic),
        });
        Ok([first].into_iter().chain(others).collect())
    })
}

/// A thread that works together with others. It leaves when this is dropped, in a panic as well:
/// others may wait for it.
struct Present<'a>(&'a dyn Platform);

impl<'a> Present<'a> {
    fn enter(host: &'a dyn Platform, number: usize) -> Self {
        host.enter(number);
        Self(host)
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Registers the whole region with one, in the fewest chunks; the keys so far, and why there are no
/// more.
fn whole(registrar: &dyn Registrar, region: &Region) -> (Vec<Key>, Option<RegistrarError>) {
    let mut keys = Vec::new();
    for chunk in chunks(region.len(), registrar.limits().max_bytes) {
        // SAFETY: the chunk lies within the region.
        let at = unsafe { region.base().add(chunk.start) };
        // SAFETY: the region is mapped for reading and writing. `Published` holds it until the key
        // has been given back, and for ever if that fails; nothing discards or moves its
        // pages meanwhile, and no device is given work.
        match unsafe { registrar.register(at, chunk.len()) } {
            Ok(key) => keys.push(key),
            Err(refusal) => return (keys, Some(refusal)),
        }
    }
    (keys, None)
}

/// The fewest chunks of at most `most` bytes that begin on page boundaries.
fn chunks(len: usize, most: u64) -> impl Iterator<Item = Range<usize>> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let step = if most < PAGE { most.max(1) } else { most - most % PAGE };
    (0..len).step_by(step).map(move |start| start..len.min(start.saturating_add(step)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_as_few_as_they_can_be() {
        let cut = |len, most| chunks(len, most).collect::<Vec<_>>();
        assert_eq!(cut(10 << 20, u64::MAX), vec![0..10 << 20]);
        assert_eq!(cut(10 << 20, 10 << 20), vec![0..10 << 20]);
        assert_eq!(cut(10 << 20, 5 << 20), vec![0..4 << 20, 4 << 20..8 << 20, 8 << 20..10 << 20]);
        assert_eq!(cut(8192, 4096), vec![0..4096, 4096..8192]);
        assert_eq!(cut(0, 4096), vec![]);
    }
}
