//! [`WriteBehind`]: a lower tier whose values are written by other threads.

use std::any::Any;
use std::fmt;
use std::hash::Hash;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::options::{OnDrop, QueueOptions};
use super::queue::{Change, Found, Made, Queue, QueuedValue, Taken};
use super::stats::WriteBehindStats;
use crate::cache::process::Process;
use crate::cache::{LowerTier, LowerTierError, Pinned, TierOrigin, TierRead};
use crate::sys;

impl<K> QueuedValue for Pinned<K> {
    fn bytes(&self) -> u64 {
        self.block().len() as u64
    }

    fn is_superseded(&self) -> bool {
        Pinned::is_superseded(self)
    }
}

/// What the threads share.
struct WriterState<K, T: ?Sized> {
    queue: Queue<K, Pinned<K>>,
    tier: Arc<T>,
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
/// - **Failures.** When the tier does not take a value, the value is lost, and an older one of its
///   key is removed. If that fails too, the key is not fetched until it is written, invalidated or
///   cleared, or until a [sync](LowerTier::sync) has removed it. A panic of the tier in a writer is
///   such a failure. [`stats`](Self::stats) counts all of them, and
///   [`last_error`](Self::last_error) has the message.
/// - **Removals** ([`invalidate`](LowerTier::invalidate), [`clear`](LowerTier::clear)) take values
///   out of the queue, wait for those being written, and are made to the tier at once.
/// - **The end of the process** without a drop loses what is in the queue. The tier may then have
///   an older value of a key. [`flush`](Self::flush) waits until everything is written.
/// - **Fork.** A forked child has no writers: there the queue takes nothing and finds nothing.
///
/// The tier must not call the cache above it from its own methods: the writer would wait for
/// itself. `Hash`, `Eq` and `Clone` of the keys must not panic: a writer calls them, too.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex};
///
/// use kvmem::arena::PageSize;
/// use kvmem::cache::{LowerTier, LowerTierError, Pinned, TierRead, WriteBehind};
/// use kvmem::cache::KvCache;
/// use kvmem::pool::Pool;
///
/// #[derive(Default)]
/// struct Below(Mutex<HashMap<u64, Vec<u8>>>);
///
/// impl LowerTier<u64> for Below {
///     fn put(&self, value: &Pinned<u64>) -> Result<(), LowerTierError> {
///         let mut below = self.0.lock().unwrap();
///         if !value.is_superseded() {
///             below.insert(*value.key(), value.to_vec());
///         }
///         Ok(())
///     }
///     fn lengths(&self, keys: &[&u64]) -> Vec<Option<usize>> {
///         let below = self.0.lock().unwrap();
///         keys.iter().map(|key| below.get(key).map(Vec::len)).collect()
///     }
///     fn fetch(&self, reads: &mut [TierRead<'_, u64>]) -> Vec<bool> {
///         let below = self.0.lock().unwrap();
///         let mut fetch = |read: &mut TierRead<'_, u64>| match below.get(read.key) {
///             Some(value) if value.len() == read.into.len() => {
///                 read.into.copy_from_slice(value);
///                 true
///             }
///             _ => false,
///         };
///         reads.iter_mut().map(&mut fetch).collect()
///     }
///     fn invalidate(&self, key: &u64) -> Result<(), LowerTierError> {
///         self.0.lock().unwrap().remove(key);
///         Ok(())
///     }
///     fn clear(&self) -> Result<(), LowerTierError> {
///         self.0.lock().unwrap().clear();
///         Ok(())
///     }
/// }
///
/// let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
/// let below = Arc::new(Below::default());
/// let behind = Arc::new(WriteBehind::builder(&pool, Arc::clone(&below)).build()?);
/// let tier: Arc<dyn LowerTier<u64>> = Arc::clone(&behind) as _;
/// let cache: KvCache<u64> = KvCache::builder(&pool).max_blocks(10).lower_tier(tier).build()?;
/// for key in 0..100 {
///     cache.insert(key, &[key as u8; 1000])?;
/// }
/// // It is in the queue, or written by now.
/// assert_eq!(cache.get_or_fetch(&[3])[0].as_ref().expect("it is below").bytes(), [3; 1000]);
/// behind.flush();
/// assert!(below.0.lock().unwrap().len() >= 90 && behind.stats().values == 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WriteBehind<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: LowerTier<K> + ?Sized + 'static,
{
    /// `None` only during the drop.
    shared: Option<Arc<WriterState<K, T>>>,
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

impl<K, T> WriteBehind<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: LowerTier<K> + ?Sized + 'static,
{
    pub(super) fn start(tier: Arc<T>, options: &QueueOptions) -> io::Result<Self> {
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

    fn shared(&self) -> &WriterState<K, T> {
        self.shared.as_ref().expect("only the drop takes it")
    }

    /// Returns what the threads share; an error in a forked child, where a thread that does not
    /// exist may hold the lock.
    fn queue(&self) -> Result<&Queue<K, Pinned<K>>, Forked> {
        if self.process.is_forked() { Err(Forked) } else { Ok(&self.shared().queue) }
    }

    /// Returns the tier below.
    #[must_use]
    pub fn tier(&self) -> &Arc<T> {
        &self.shared().tier
    }

    /// Waits until every value that was evicted before has been given to the tier, and its memory
    /// released. Values evicted meanwhile do not prolong it. In a forked child it returns at once.
    pub fn flush(&self) {
        if let Ok(queue) = self.queue() {
            queue.flush();
        }
    }

    /// Waits as [`flush`](Self::flush) does, until `deadline` at most. Returns whether everything
    /// has been given to the tier; false in a forked child.
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

impl<K, T> WriterState<K, T>
where
    K: Hash + Eq + Clone,
    T: LowerTier<K> + ?Sized,
{
    /// Makes the changes of the queue to the tier, until it is closed and empty.
    fn write(&self) {
        while let Some(batch) = self.queue.take() {
            let made = self.make(&batch);
            // A key's `Drop` that panics has been reported by the panic hook.
            let _ = catch_unwind(AssertUnwindSafe(|| self.queue.done(batch, &made)));
        }
    }

    fn make(&self, batch: &[Taken<K, Pinned<K>>]) -> Vec<Made> {
        let mut stored = {
            let values = batch.iter().filter_map(|taken| match &taken.change {
                Change::Store(value) => Some(value.clone()),
                Change::Remove => None,
            });
            let values: Vec<Pinned<K>> = values.collect();
            let results = if values.is_empty() {
                Some(Vec::new())
            } else {
                self.call(|tier| Ok(tier.put_all(&values)))
            };
            results.unwrap_or_default().into_iter()
        };
        let make = |taken: &Taken<K, Pinned<K>>| {
            if let Change::Store(_) = taken.change {
                // A tier that panicked, or gave too few results, has not stored the rest.
                match stored.next() {
                    Some(Ok(())) => return Made::Yes,
                    Some(Err(error)) => self.keep(error.to_string()),
                    None => {}
                }
            }
            match self.call(|tier| tier.invalidate(&taken.key)) {
                Some(()) if matches!(taken.change, Change::Remove) => Made::Yes,
                Some(()) => Made::Removed,
                None => Made::Unknown,
            }
        };
        batch.iter().map(make).collect()
    }

    /// Calls the tier; keeps the message of an error or a panic.
    fn call<R>(&self, call: impl FnOnce(&T) -> Result<R, LowerTierError>) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(|| call(&self.tier))) {
            Ok(Ok(result)) => return Some(result),
            Ok(Err(error)) => self.keep(error.to_string()),
            Err(panic) => {
                self.queue.count_panic();
                self.keep(format!("the tier panicked: {}", message(&*panic)));
                // What a panic carries may panic when it is dropped.
                std::mem::forget(panic);
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

impl<K, T> LowerTier<K> for WriteBehind<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: LowerTier<K> + ?Sized + 'static,
{
    fn put(&self, value: &Pinned<K>) -> Result<(), LowerTierError> {
        Ok(self.queue()?.put(value.key(), value.clone())?)
    }

    fn lengths(&self, keys: &[&K]) -> Vec<Option<usize>> {
        let Ok(queue) = self.queue() else { return vec![None; keys.len()] };
        let found = queue.find(keys.iter().copied());
        let mut in_tier = Vec::new();
        let mut lengths = Vec::with_capacity(keys.len());
        for (index, found) in found.into_iter().enumerate() {
            lengths.push(match found {
                Found::Value(value) => Some(value.bytes().len()),
                Found::Nothing => None,
                Found::InTier => {
                    in_tier.push(index);
                    None
                }
            });
        }
        if !in_tier.is_empty() {
            let wanted: Vec<&K> = in_tier.iter().map(|&index| keys[index]).collect();
            for (index, len) in in_tier.into_iter().zip(self.tier().lengths(&wanted)) {
                lengths[index] = len;
            }
        }
        lengths
    }

    fn fetch(&self, reads: &mut [TierRead<'_, K>]) -> Vec<bool> {
        let mut whole = vec![false; reads.len()];
        let Ok(queue) = self.queue() else { return whole };
        let found = queue.find(reads.iter().map(|read| read.key));
        let (mut in_tier, mut wanted, mut hits) = (Vec::new(), Vec::new(), 0);
        for (index, (found, read)) in found.into_iter().zip(reads.iter_mut()).enumerate() {
            match found {
                Found::Value(value) if value.bytes().len() == read.into.len() => {
                    read.into.copy_from_slice(value.bytes());
                    read.origin = value.origin();
                    whole[index] = true;
                    hits += 1;
                }
                Found::Value(_) | Found::Nothing => {}
                Found::InTier => {
                    in_tier.push(index);
                    wanted.push(TierRead::new(read.key, &mut *read.into));
                }
            }
        }
        if hits > 0 {
            queue.count_hits(hits);
        }
        if !wanted.is_empty() {
            let fetched = self.tier().fetch(&mut wanted);
            let origins: Vec<Option<TierOrigin>> = wanted.iter().map(|read| read.origin).collect();
            for ((index, fetched), origin) in in_tier.into_iter().zip(fetched).zip(origins) {
                whole[index] = fetched;
                reads[index].origin = origin;
            }
        }
        whole
    }

    fn invalidate(&self, key: &K) -> Result<(), LowerTierError> {
        self.queue()?.invalidate(key, || self.tier().invalidate(key))
    }

    fn clear(&self) -> Result<(), LowerTierError> {
        self.queue()?.clear(|| self.tier().clear())
    }

    fn sync(&self) -> Result<(), LowerTierError> {
        let queue = self.queue()?;
        queue.retry_removals();
        queue.flush();
        self.tier().sync()
    }

    fn wait_for_release(&self, seen: u64) -> Option<u64> {
        self.queue().ok()?.wait_for_release(seen)
    }
}

impl<K, T> Drop for WriteBehind<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: LowerTier<K> + ?Sized + 'static,
{
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

impl<K, T> fmt::Debug for WriteBehind<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: LowerTier<K> + ?Sized + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBehind").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
