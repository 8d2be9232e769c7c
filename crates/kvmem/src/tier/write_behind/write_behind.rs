//! [`WriteBehind`]: a lower tier whose values are written by other threads.

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::queue::{Change, Found, Made, Queue, QueuedValue, Taken};
use super::queue::{OnDrop, QueueOptions};
use super::stats::WriteBehindStats;
use crate::sys::{self, Process};
use crate::tier::{
    BoxError, Lookup, PinnedValue, StoreOutcome, Tier, TierHints, TierHit, TierOrigin, TierRead,
    TierState, TierValue,
};

/// A value in the queue, with what the tier is to know about it.
#[derive(Clone)]
struct Queued {
    pinned: Arc<dyn PinnedValue>,
    origin: Option<TierOrigin>,
    hints: TierHints,
    /// `None` if it has no name.
    namespace: Option<Arc<[u8]>>,
    since: Instant,
}

impl Queued {
    fn of(value: &TierValue<'_>) -> Queued {
        let TierValue { origin, hints, namespace, .. } = *value;
        let namespace = (!namespace.is_empty()).then(|| namespace.into());
        Queued { pinned: value.pin(), origin, hints, namespace, since: Instant::now() }
    }

    /// Returns the hints; the time to live is what is left of it.
    fn hints(&self) -> TierHints {
        let left = |ttl: Duration| ttl.saturating_sub(self.since.elapsed());
        TierHints { ttl: self.hints.ttl.map(left), ..self.hints }
    }

    fn namespace(&self) -> &[u8] {
        self.namespace.as_deref().unwrap_or_default()
    }

    fn for_tier<'a>(&'a self, key: &'a [u8]) -> TierValue<'a> {
        let value = TierValue::pinned(key, &*self.pinned).with_hints(self.hints());
        value.with_origin(self.origin).with_namespace(self.namespace())
    }
}

impl QueuedValue for Queued {
    fn bytes(&self) -> u64 {
        self.pinned.memory_bytes()
    }

    fn is_superseded(&self) -> bool {
        self.pinned.is_superseded()
    }
}

/// What the threads share.
struct WriterState {
    queue: Queue<Queued>,
    tier: Arc<dyn Tier>,
    /// The message of the latest failure in a writer.
    last_error: Mutex<Option<String>>,
}

/// A lower tier whose values are written *behind* the cache: an insertion that evicts leaves the
/// value, pinned, in a queue, and a thread of the queue writes it to the tier, together with others
/// in the order in which they were evicted. It works with any tier.
///
/// - **Fetches** find what is in the queue, and never an older value.
/// - **Bound.** Values in the queue are in use in the pool. When they have as many bytes as the
///   queue [may have](super::WriteBehindBuilder::max_bytes), the thread that evicts waits, or the
///   value is dropped: see [`WhenFull`](super::WhenFull). An insertion that finds nothing to evict
///   waits for the queue before it fails.
/// - **Failures.** When the tier does not take a value, the value is dropped, and an older one of
///   its key is removed. If that fails too, the key is not fetched until it is written, invalidated
///   or cleared, or until a [sync](Tier::sync) has removed it. A panic of the tier in a writer is
///   such a failure. [`stats`](Self::stats) counts all of them, and
///   [`last_error`](Self::last_error) has the message.
/// - **Removals** ([`remove`](Tier::remove), [`clear`](Tier::clear)) take values
///   out of the queue, wait for those being written, and are made to the tier at once.
/// - **The end of the process** without a drop loses what is in the queue. The tier may then have
///   an older value of a key. [`flush`](Self::flush) waits until everything is written.
/// - **Fork.** A forked child has no writers: there the queue takes nothing and finds nothing.
///
/// The tier must not call the cache above it from its own methods: the writer would wait for
/// itself.
///
/// ```
/// use std::sync::Arc;
///
/// use kvmem::arena::PageSize;
/// use kvmem::cache::KvCache;
/// use kvmem::pool::Pool;
/// use kvmem::tier::WriteBehind;
///
/// # use kvmem::tier::{BoxError, Lookup, StoreOutcome, Tier, TierHit, TierRead, TierValue};
/// # #[derive(Default)]
/// # struct Slow(std::sync::Mutex<std::collections::HashMap<Vec<u8>, Vec<u8>>>);
/// # impl Tier for Slow {
/// #     fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
/// #         let mut held = self.0.lock().unwrap();
/// #         values.iter().for_each(|it| drop(held.insert(it.key.into(), it.bytes.into())));
/// #         values.iter().map(|_| Ok(StoreOutcome::Stored)).collect()
/// #     }
/// #     fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
/// #         let held = self.0.lock().unwrap();
/// #         let len = |it: &Vec<u8>| Lookup::Found(it.len() as u64);
/// #         keys.iter().map(|key| held.get(*key).map_or(Lookup::Missing, len)).collect()
/// #     }
/// #     fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
/// #         let held = self.0.lock().unwrap();
/// #         let fetch = |read: &mut TierRead<'_>| {
/// #             read.into.copy_from_slice(held.get(read.key)?);
/// #             Some(TierHit::default())
/// #         };
/// #         reads.iter_mut().map(fetch).collect()
/// #     }
/// #     fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
/// #         keys.iter().for_each(|key| drop(self.0.lock().unwrap().remove(*key)));
/// #         Ok(())
/// #     }
/// #     fn clear(&self) -> Result<(), BoxError> {
/// #         Ok(self.0.lock().unwrap().clear())
/// #     }
/// # }
/// let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
/// // `Slow` is a tier in other memory: see `Tier`.
/// let slow = Arc::new(Slow::default());
/// let behind = Arc::new(WriteBehind::builder(&pool, slow).build()?);
/// let cache: KvCache<u64> =
///     KvCache::builder(&pool).max_blocks(10).lower_tier(behind.clone()).build()?;
/// for key in 0..100 {
///     cache.insert(key, &[key as u8; 1000])?;
/// }
/// // It is in the queue, or written by now.
/// assert_eq!(cache.get(&3).expect("it is below").bytes(), [3; 1000]);
/// behind.flush();
/// assert!(behind.stats().written >= 90 && behind.stats().values == 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WriteBehind {
    /// `None` only during the drop.
    shared: Option<Arc<WriterState>>,
    writers: Vec<JoinHandle<()>>,
    process: Process,
    on_drop: OnDrop,
}

/// The queue belongs to the parent of this process.
#[derive(Debug, thiserror::Error)]
#[error(
    "the queue of evicted values was made before this process was forked: it has no writers here"
)]
struct Forked;

impl WriteBehind {
    pub(super) fn start(tier: Arc<dyn Tier>, options: &QueueOptions) -> io::Result<Self> {
        let queue = Queue::new(options.max_bytes, options.when_full);
        let shared = Arc::new(WriterState { queue, tier, last_error: Mutex::new(None) });
        let mut behind = WriteBehind {
            shared: Some(Arc::clone(&shared)),
            writers: Vec::with_capacity(options.writers),
            process: Process::this(),
            on_drop: options.on_drop,
        };
        for _ in 0..options.writers {
            let shared = Arc::clone(&shared);
            let writer = sys::spawn("kvmem-writer", move || shared.write());
            // The drop of `behind` ends the writers that there are.
            behind.writers.push(writer.map_err(|errno| io::Error::other(errno.to_string()))?);
        }
        Ok(behind)
    }

    fn shared(&self) -> &WriterState {
        self.shared.as_ref().expect("only the drop takes it")
    }

    /// Returns what the threads share; an error in a forked child, where a thread that does not
    /// exist may hold the lock.
    fn queue(&self) -> Result<&Queue<Queued>, Forked> {
        if self.process.is_forked() { Err(Forked) } else { Ok(&self.shared().queue) }
    }

    /// Returns the tier below.
    #[must_use]
    pub fn tier(&self) -> &Arc<dyn Tier> {
        &self.shared().tier
    }

    /// Waits until every value that was evicted before has been passed to the tier, and its memory
    /// released. Values evicted meanwhile do not prolong it. In a forked child it returns at once.
    pub fn flush(&self) {
        if let Ok(queue) = self.queue() {
            queue.flush();
        }
    }

    /// Waits as [`flush`](Self::flush) does, until `deadline` at most. Returns whether everything
    /// has been passed to the tier; false in a forked child.
    #[must_use]
    pub fn flush_until(&self, deadline: Instant) -> bool {
        self.queue().is_ok_and(|queue| queue.flush_until(deadline))
    }

    /// Returns the statistics; zeros in a forked child.
    #[must_use]
    pub fn stats(&self) -> WriteBehindStats {
        self.queue().map(Queue::stats).unwrap_or_default()
    }

    /// Returns the message of the latest failure of the tier in a writer, if there was one.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.queue().ok()?;
        self.shared().last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl WriterState {
    /// Makes the changes of the queue to the tier, until it is closed and empty.
    fn write(&self) {
        while let Some(batch) = self.queue.take() {
            let made = self.make(&batch);
            // The drop of a key of the cache may panic, which the panic hook has reported.
            let _ = catch_unwind(AssertUnwindSafe(|| self.queue.done(batch, &made)));
        }
    }

    fn make(&self, batch: &[Taken<Queued>]) -> Vec<Made> {
        let values: Vec<TierValue<'_>> = batch
            .iter()
            .filter_map(|Taken { key, change, .. }| match change {
                Change::Store(value) => Some(value.for_tier(key)),
                Change::Remove => None,
            })
            .collect();
        let stored = match values.is_empty() {
            true => None,
            false => self.call(|tier| Ok(tier.store(&values))),
        };
        let mut stored = stored.unwrap_or_default().into_iter();
        let make = |taken: &Taken<Queued>| {
            if let Change::Store(_) = taken.change {
                // A tier that panicked, or returned too few outcomes, has not stored the rest.
                match stored.next() {
                    Some(Ok(_)) => return Made::Yes,
                    Some(Err(error)) => self.keep(error.to_string()),
                    None => {}
                }
            }
            match self.call(|tier| tier.remove(&[&taken.key])) {
                Some(()) if matches!(taken.change, Change::Remove) => Made::Yes,
                Some(()) => Made::Removed,
                None => Made::Unknown,
            }
        };
        batch.iter().map(make).collect()
    }

    /// Calls the tier; keeps the message of an error or a panic.
    fn call<R>(&self, call: impl FnOnce(&dyn Tier) -> Result<R, BoxError>) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(|| call(&*self.tier))) {
            Ok(Ok(result)) => return Some(result),
            Ok(Err(error)) => self.keep(error.to_string()),
            Err(panic) => {
                self.queue.count_panic();
                self.keep(format!("the tier panicked: {}", message(&*panic)));
                // The payload of a panic may panic when it is dropped, unless it is a text.
                if !panic.is::<&str>() && !panic.is::<String>() {
                    std::mem::forget(panic);
                }
            }
        }
        None
    }

    fn keep(&self, error: String) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

impl WriteBehind {
    /// Returns what is found in the queue of each key by `of_queued`, or what `of_tier` finds of
    /// those that the tier has.
    fn find<R>(
        &self,
        keys: &[&[u8]],
        nothing: impl Fn() -> R,
        of_queued: impl Fn(&Queued) -> R,
        of_tier: impl FnOnce(&[&[u8]]) -> Vec<R>,
    ) -> Vec<R> {
        let Ok(queue) = self.queue() else { return keys.iter().map(|_| nothing()).collect() };
        let (mut places, mut wanted) = (Vec::new(), Vec::new());
        let mut all: Vec<R> = Vec::with_capacity(keys.len());
        for (place, found) in queue.find(keys.iter().copied()).into_iter().enumerate() {
            all.push(match found {
                Found::Value(value) => of_queued(&value),
                Found::Nothing => nothing(),
                Found::InTier => {
                    places.push(place);
                    wanted.push(keys[place]);
                    nothing()
                }
            });
        }
        if !wanted.is_empty() {
            places.into_iter().zip(of_tier(&wanted)).for_each(|(place, found)| all[place] = found);
        }
        all
    }
}

impl Tier for WriteBehind {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let put = |value: &TierValue<'_>| {
            self.queue()?.put(value.key, Queued::of(value))?;
            Ok(StoreOutcome::Stored)
        };
        values.iter().map(put).collect()
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        let len = |value: &Queued| Lookup::Found(value.pinned.bytes().len() as u64);
        self.find(keys, || Lookup::Missing, len, |keys| self.tier().look_up(keys))
    }

    fn may_have(&self, key: &[u8]) -> bool {
        let Ok(queue) = self.queue() else { return true };
        let queued = matches!(queue.find([key].into_iter())[..], [Found::Value(_)]);
        queued || self.tier().may_have(key)
    }

    fn ask(&self, keys: &[&[u8]]) -> Vec<Option<u64>> {
        let len = |value: &Queued| Some(value.pinned.bytes().len() as u64);
        self.find(keys, || None, len, |keys| self.tier().ask(keys))
    }

    fn knows_all(&self) -> bool {
        self.tier().knows_all()
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        let mut fetched = vec![None; reads.len()];
        let Ok(queue) = self.queue() else { return fetched };
        let found = queue.find(reads.iter().map(|read| read.key));
        let (mut in_tier, mut wanted, mut hits) = (Vec::new(), Vec::new(), 0);
        for (index, (found, read)) in found.into_iter().zip(reads.iter_mut()).enumerate() {
            match found {
                Found::Value(value) if value.pinned.bytes().len() == read.into.len() => {
                    read.into.copy_from_slice(value.pinned.bytes());
                    let (origin, hints) = (value.origin, value.hints());
                    fetched[index] = Some(TierHit { checksum: None, origin, hints });
                    hits += 1;
                }
                Found::Value(_) | Found::Nothing => {}
                Found::InTier => {
                    in_tier.push(index);
                    wanted.push(TierRead { key: read.key, into: &mut *read.into });
                }
            }
        }
        if hits > 0 {
            queue.count_hits(hits);
        }
        if !wanted.is_empty() {
            let of_tier = self.tier().fetch(&mut wanted);
            in_tier.into_iter().zip(of_tier).for_each(|(index, hit)| fetched[index] = hit);
        }
        fetched
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        let queue = self.queue()?;
        let removed = keys.iter().map(|key| queue.invalidate(key, || self.tier().remove(&[key])));
        // All of them, and then the first error.
        removed.collect::<Vec<_>>().into_iter().collect()
    }

    fn clear(&self) -> Result<(), BoxError> {
        self.queue()?.clear(|| self.tier().clear())
    }

    fn forget_unknown(&self) -> Result<(), BoxError> {
        self.queue()?.clear(|| self.tier().forget_unknown())
    }

    /// Values of the namespace in the queue are removed, like older ones of their keys.
    fn forget_namespace(&self, namespace: &[u8]) -> Result<(), BoxError> {
        let queue = self.queue()?;
        queue.discard(|value| value.namespace() == namespace);
        queue.flush();
        self.tier().forget_namespace(namespace)
    }

    fn forgets_namespaces(&self) -> bool {
        self.tier().forgets_namespaces()
    }

    fn sync(&self) -> Result<(), BoxError> {
        let queue = self.queue()?;
        queue.retry_removals();
        queue.flush();
        self.tier().sync()
    }

    fn touch(&self, keys: &[&[u8]]) {
        self.tier().touch(keys);
    }

    fn values(&self) -> u64 {
        let Ok(queue) = self.queue() else { return 0 };
        let changes = queue.changes();
        let keys: Vec<&[u8]> = changes.iter().map(|(key, _)| &**key).collect();
        let changed = match keys.is_empty() {
            true => 0,
            false => self.tier().ask(&keys).iter().flatten().count(),
        };
        let stored = changes.iter().filter(|(_, is_store)| *is_store).count();
        self.tier().values().saturating_sub(changed as u64) + stored as u64
    }

    fn evictions(&self) -> u64 {
        self.tier().evictions()
    }

    fn state(&self) -> TierState {
        self.tier().state()
    }

    fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
        self.tier().keep_open(file)
    }

    fn wait_for_release(&self, seen: u64) -> Option<u64> {
        self.queue().ok()?.wait_for_release(seen)
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        let writers = std::mem::take(&mut self.writers);
        if self.process.is_forked() {
            // The values, the tier and the threads are the parent's.
            std::mem::forget((self.shared.take(), writers));
            return;
        }
        self.shared().queue.close(self.on_drop == OnDrop::Discard);
        for writer in writers {
            // A writer may drop the last reference to the queue: with a key, for example.
            if writer.thread().id() != thread::current().id() {
                // A writer catches panics.
                let _ = writer.join();
            }
        }
    }
}

impl fmt::Debug for WriteBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBehind").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
