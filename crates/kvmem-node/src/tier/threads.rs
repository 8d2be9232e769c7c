//! *Threads* that wait for the tier, so that the server need not.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use kvmem::arena::Region;
use kvmem::tier::{StoreOutcome, Tier, TierRead, TierValue};

use super::{Fetching, Offered, Storing, TierDone, TierJob};
use crate::{crc, session_file};

/// The threads of a tier, and what they have done.
#[derive(Debug)]
pub(crate) struct TierThreads {
    /// `None` when the threads are to end.
    senders: Option<Senders>,
    threads: Vec<JoinHandle<()>>,
    /// Those that a test runs, in the place of threads.
    #[cfg(all(test, not(loom)))]
    pub(crate) workers: Vec<TierWorker>,
    done: Arc<Mutex<Vec<TierDone>>>,
}

/// The jobs of each thread.
#[derive(Debug)]
struct Senders {
    store: Sender<TierJob>,
    fetch: Sender<TierJob>,
    /// Jobs of a tier that does not know all its values: fetches from far, and look-ups.
    far: Option<[Sender<TierJob>; 2]>,
}

/// State of a thread, and its jobs.
pub(crate) struct TierWorker {
    work: Work,
    jobs: Receiver<TierJob>,
    copies: Copies,
}

#[cfg(all(test, not(loom)))]
impl std::fmt::Debug for TierWorker {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("TierWorker")
    }
}

impl TierWorker {
    fn run(mut self) {
        while let Ok(job) = self.jobs.recv() {
            self.work.finish(job, &mut self.copies);
        }
    }

    /// Does the next job, if there is one.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn step(&mut self) -> bool {
        let job = self.jobs.try_recv();
        let has_job = job.is_ok();
        if let Ok(job) = job {
            self.work.finish(job, &mut self.copies);
        }
        has_job
    }
}

/// The objects that all threads share.
struct Work {
    tier: Arc<dyn Tier>,
    memory: Arc<Region>,
    done: Arc<Mutex<Vec<TierDone>>>,
    /// An eventfd that wakes the server.
    wake: Arc<OwnedFd>,
}

impl TierThreads {
    /// Starts the threads. They write to the eventfd `wake` when there is something to
    /// [take](Self::take_done).
    pub(crate) fn start(
        tier: &Arc<dyn Tier>,
        memory: &Arc<Region>,
        wake: &Arc<OwnedFd>,
    ) -> std::io::Result<TierThreads> {
        let mut threads = Vec::new();
        let mut started = TierThreads::with(tier, memory, wake, |name, worker| {
            let thread = std::thread::Builder::new().name(name.to_owned());
            threads.push(thread.spawn(move || worker.run())?);
            Ok(())
        })?;
        started.threads = threads;
        Ok(started)
    }

    /// Makes the workers without threads: a test lets them [do](TierWorker::step) their jobs.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn by_hand(
        tier: &Arc<dyn Tier>,
        memory: &Arc<Region>,
        wake: &Arc<OwnedFd>,
    ) -> std::io::Result<TierThreads> {
        let mut workers = Vec::new();
        let mut made = TierThreads::with(tier, memory, wake, |_, worker| {
            workers.push(worker);
            Ok(())
        })?;
        made.workers = workers;
        Ok(made)
    }

    fn with(
        tier: &Arc<dyn Tier>,
        memory: &Arc<Region>,
        wake: &Arc<OwnedFd>,
        mut begin: impl FnMut(&str, TierWorker) -> std::io::Result<()>,
    ) -> std::io::Result<TierThreads> {
        let done = Arc::new(Mutex::new(Vec::new()));
        let mut start = |name: &str| {
            let (sender, jobs) = channel();
            let (tier, memory) = (Arc::clone(tier), Arc::clone(memory));
            let work = Work { tier, memory, done: Arc::clone(&done), wake: Arc::clone(wake) };
            begin(name, TierWorker { work, jobs, copies: Copies::default() })?;
            Ok::<_, std::io::Error>(sender)
        };
        let (store, fetch) = (start("kvmem-tier-store")?, start("kvmem-tier-fetch")?);
        let far = match tier.knows_all() {
            true => None,
            false => Some([start("kvmem-tier-far")?, start("kvmem-tier-find")?]),
        };
        let senders = Senders { store, fetch, far };
        Ok(TierThreads {
            senders: Some(senders),
            threads: Vec::new(),
            #[cfg(all(test, not(loom)))]
            workers: Vec::new(),
            done,
        })
    }

    /// Gives a job to its thread.
    pub(crate) fn send(&self, job: TierJob) {
        let Some(Senders { store, fetch, far }) = &self.senders else { return };
        let far = |which: usize| far.as_ref().map_or(fetch, |far| &far[which]);
        let to = match job {
            TierJob::Store(_) | TierJob::Remove(_) | TierJob::Clear(_) => store,
            TierJob::Fetch(_) => fetch,
            TierJob::FetchFar(_) => far(0),
            TierJob::LookUp(_) => far(1),
        };
        // A thread ends only with the sender.
        let _ = to.send(job);
    }

    /// Returns what was done since the last call.
    pub(crate) fn take_done(&self) -> Vec<TierDone> {
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TierThreads {
    /// Waits for the submitted jobs, and ends the threads. Returns what was done.
    pub(crate) fn finish(mut self) -> Vec<TierDone> {
        self.join();
        self.take_done()
    }

    fn join(&mut self) {
        self.senders = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        #[cfg(all(test, not(loom)))]
        self.workers.drain(..).for_each(TierWorker::run);
    }
}

impl Drop for TierThreads {
    /// Waits for the submitted jobs.
    fn drop(&mut self) {
        self.join();
    }
}

/// Memory of the server alone for the values of a job. The next job uses it again.
#[derive(Default)]
struct Copies {
    memory: Vec<u8>,
}

impl Copies {
    /// The alignment of each copy: a disk writes it from there.
    const ALIGN: usize = 4096;

    /// Returns memory for values of these lengths. The bytes are any.
    fn parts(&mut self, lens: impl Iterator<Item = usize> + Clone) -> Vec<&mut [u8]> {
        let room = |len: usize| len.next_multiple_of(Self::ALIGN);
        let needed = lens.clone().map(room).sum::<usize>() + Self::ALIGN;
        // One job may have a long value, and the next ones none.
        if self.memory.len() < needed || self.memory.len() / 4 > needed {
            self.memory = Vec::new();
            self.memory = vec![0; needed];
        }
        let begin = self.memory.as_ptr().align_offset(Self::ALIGN);
        let mut rest = &mut self.memory[begin..];
        let part = |len: usize| {
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(room(len));
            rest = behind;
            &mut part[..len]
        };
        lens.map(part).collect()
    }
}

impl Work {
    /// Does a job, and wakes the server.
    fn finish(&self, job: TierJob, copies: &mut Copies) {
        let done = match job {
            TierJob::Store(values) => self.store(values, copies),
            TierJob::Fetch(values) | TierJob::FetchFar(values) => self.fetch(values),
            TierJob::LookUp(values) => {
                let keys: Vec<&[u8]> = values.iter().map(|it| &*it.tier_key).collect();
                let lengths = self.tier.ask(&keys);
                TierDone::LookedUp(values.into_iter().zip(lengths).collect())
            }
            TierJob::Remove(values) => {
                let keys: Vec<&[u8]> = values.iter().map(|it| &*it.tier_key).collect();
                let removed = self.remove(&keys);
                TierDone::Removed(values, removed)
            }
            TierJob::Clear(None) => TierDone::Cleared(self.tier.clear().is_ok()),
            TierJob::Clear(Some(namespace)) => {
                TierDone::Cleared(self.tier.forget_namespace(namespace.as_bytes()).is_ok())
            }
        };
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(done);
        // The counter of an eventfd cannot overflow here, so the write does not block.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    /// Returns the address of a block.
    fn block(&self, offset: u64, len: u64) -> *mut u8 {
        let all = self.memory.len() as u64;
        assert!(offset.checked_add(len).is_some_and(|end| end <= all), "the node said so");
        // SAFETY: the block lies in the region, as was just checked.
        unsafe { self.memory.base().as_ptr().add(offset as usize) }
    }

    /// Copies a committed value to memory of the server alone. Returns whether the copy has the
    /// checksum of its writer, if that has calculated one.
    fn copy(&self, value: &Storing, to: &mut [u8]) -> bool {
        let first = self.block(value.offset, value.len);
        // SAFETY: the bytes lie in the region, and the value is committed and pinned until the job
        // is done. A client may write to them all the same: they are copied as raw memory, no
        // reference to them exists, and `to` is memory of the server alone.
        unsafe { std::ptr::copy_nonoverlapping(first, to.as_mut_ptr(), to.len()) };
        value.checksum.is_none_or(|checksum| checksum == crc::of(to))
    }

    /// Stores copies of the values. The memory of the node is that of its clients, too: one that
    /// writes to it while the disk reads would store other bytes than those of the checksum.
    fn store(&self, values: Vec<Storing>, copies: &mut Copies) -> TierDone {
        let parts = copies.parts(values.iter().map(|it| it.len as usize));
        let mut batch: Vec<TierValue<'_>> = Vec::with_capacity(values.len());
        let mut changed: Vec<&[u8]> = Vec::new();
        let mut is_whole = Vec::with_capacity(values.len());
        for (value, part) in values.iter().zip(parts) {
            let whole = self.copy(value, part);
            is_whole.push(whole);
            if whole {
                let stored = TierValue::new(&value.key, part).with_namespace(value.namespace());
                batch.push(stored.with_hints(value.hints));
            } else {
                changed.push(&value.key);
            }
        }
        let mut stored = self.tier.store(&batch).into_iter();
        drop(batch);
        // No older value stays for one whose bytes are not those of its writer.
        changed.retain(|key| self.tier.may_have(key));
        let none_stays = changed.is_empty() || self.remove(&changed);
        let outcomes = is_whole.into_iter().map(|whole| match whole.then(|| stored.next()) {
            Some(Some(Ok(StoreOutcome::Stored))) => Offered::Stored,
            Some(Some(Ok(StoreOutcome::NotStored))) => Offered::NotStored,
            None if none_stays => Offered::NotStored,
            _ => Offered::Failed,
        });
        let outcomes: Vec<Offered> = outcomes.collect();
        TierDone::Stored(values.into_iter().zip(outcomes).collect())
    }

    /// Removes values for good: they do not come back after a power cut either. Returns whether the
    /// tier could.
    fn remove(&self, keys: &[&[u8]]) -> bool {
        self.tier.remove(keys).is_ok() && self.tier.sync().is_ok()
    }

    fn fetch(&self, values: Vec<Fetching>) -> TierDone {
        let mut reads: Vec<TierRead<'_>> = values
            .iter()
            .map(|it| {
                let first = self.block(it.offset, it.len);
                // SAFETY: the block is the server's own until the job is done: no other process
                // uses it, and the blocks of a job do not overlap.
                let into = unsafe { std::slice::from_raw_parts_mut(first, it.len as usize) };
                TierRead { key: &it.key, into }
            })
            .collect();
        // The block may be one whose pins were revoked.
        session_file::before_writing();
        let hits = self.tier.fetch(&mut reads);
        let fetched: Vec<_> = reads
            .iter()
            .zip(hits)
            .map(|(read, hit)| {
                let hit = hit?;
                Some((hit.checksum.unwrap_or_else(|| crc::of(read.into)), hit.hints))
            })
            .collect();
        drop(reads);
        TierDone::Fetched(values.into_iter().zip(fetched).collect())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicBool, Ordering};

    use kvmem::arena::{Backing, PageSize};
    use kvmem::tier::{BoxError, Lookup, TierHints, TierHit};

    use super::*;

    const LEN: usize = 5000;

    /// A tier in memory. A client writes to the memory of the node while it works.
    #[derive(Default)]
    struct Attacked {
        values: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
        /// The address of the memory of the node.
        memory: usize,
        /// It stores and removes nothing.
        fails: AtomicBool,
    }

    impl Attacked {
        fn works(&self) -> Result<(), BoxError> {
            // Relaxed: one thread alone uses it.
            if self.fails.load(Ordering::Relaxed) { Err("it fails".into()) } else { Ok(()) }
        }

        /// Changes the first byte of the second block of the node.
        fn attack(&self) {
            let byte = (self.memory + LEN) as *mut u8;
            // SAFETY: the region is longer, and its bytes are used by this thread alone.
            unsafe { byte.write(byte.read() ^ 1) };
        }
    }

    impl Tier for Attacked {
        fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
            self.attack();
            if self.works().is_err() {
                return values.iter().map(|_| Err("it fails".into())).collect();
            }
            let mut held = self.values.lock().unwrap();
            for value in values {
                assert!(value.bytes.as_ptr().addr().is_multiple_of(4096));
                held.insert(value.key.to_vec(), value.bytes.to_vec());
            }
            values.iter().map(|_| Ok(StoreOutcome::Stored)).collect()
        }

        fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
            let held = self.values.lock().unwrap();
            let len = |value: &Vec<u8>| Lookup::Found(value.len() as u64);
            keys.iter().map(|key| held.get(*key).map_or(Lookup::Missing, len)).collect()
        }

        fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
            let held = self.values.lock().unwrap();
            let read = |read: &mut TierRead<'_>| {
                let value = held.get(read.key)?;
                read.into.copy_from_slice(value);
                Some(TierHit { checksum: Some(crc::of(value)), ..TierHit::default() })
            };
            let hits = reads.iter_mut().map(read).collect();
            self.attack();
            hits
        }

        fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
            self.works()?;
            let mut held = self.values.lock().unwrap();
            keys.iter().for_each(|key| drop(held.remove(*key)));
            Ok(())
        }

        fn clear(&self) -> Result<(), BoxError> {
            self.values.lock().unwrap().clear();
            Ok(())
        }
    }

    fn work() -> (Work, Arc<Attacked>) {
        let memory = Region::builder(1 << 20).backing(Backing::Shared).ladder(PageSize::Base);
        let memory = Arc::new(memory.map().expect("memory can be mapped"));
        let base = memory.base().as_ptr();
        for at in 0..3 * LEN {
            // SAFETY: the region is longer, and nothing else uses it yet.
            unsafe { base.add(at).write((at / 7) as u8) };
        }
        let tier = Arc::new(Attacked { memory: base.addr(), ..Attacked::default() });
        let flags = rustix::event::EventfdFlags::empty();
        let wake = Arc::new(rustix::event::eventfd(0, flags).expect("there are descriptors"));
        let done = Arc::default();
        (Work { tier: Arc::clone(&tier) as _, memory, done, wake }, tier)
    }

    /// Returns the bytes that the block `number` of the node has at first.
    fn block(number: usize) -> Vec<u8> {
        (number * LEN..(number + 1) * LEN).map(|at| (at / 7) as u8).collect()
    }

    fn storing(number: usize, checksum: Option<u32>) -> Storing {
        let (offset, len) = ((number * LEN) as u64, LEN as u64);
        let (slot, key, hints) = (number as u32, vec![number as u8], TierHints::default());
        Storing { slot, key, offset, len, checksum, hints }
    }

    /// The tier gets what was summed, whatever a client writes meanwhile, and nothing that has
    /// another checksum than its writer calculated.
    #[test]
    fn a_tier_gets_copies_that_no_client_changes() {
        let (work, tier) = work();
        let mut copies = Copies::default();
        let sum = crc::of(&block(1));
        let mut store = |checksums: [Option<u32>; 3]| {
            let values = (0..).zip(checksums).map(|(number, sum)| storing(number, sum)).collect();
            let TierDone::Stored(stored) = work.store(values, &mut copies) else { panic!() };
            stored.into_iter().map(|(_, stored)| stored).collect::<Vec<Offered>>()
        };
        assert_eq!(store([None, Some(sum), None]), [Offered::Stored; 3]);
        let held = |number: u8| tier.values.lock().unwrap().get(&vec![number]).cloned();
        assert!((0..3).all(|number| held(number) == Some(block(usize::from(number)))));
        // The client has changed the value: it is not stored, and the older one is removed.
        let changed = [Offered::Stored, Offered::NotStored, Offered::Stored];
        assert_eq!(store([None, Some(sum), None]), changed);
        assert_eq!((held(0), held(1), held(2)), (Some(block(0)), None, Some(block(2))));
        // The older one may still be there if it cannot be removed.
        tier.values.lock().unwrap().insert(vec![1], block(1));
        // Relaxed: one thread alone uses it.
        tier.fails.store(true, Ordering::Relaxed);
        assert_eq!(store([None, Some(sum), None]), [Offered::Failed; 3]);
    }

    /// The node has the checksum of what was stored, not of what a client makes of it.
    #[test]
    fn a_fetched_value_has_the_checksum_of_the_tier() {
        let (work, tier) = work();
        tier.values.lock().unwrap().insert(b"key".to_vec(), block(2));
        let fetching = Fetching {
            slot: 0,
            key: b"key".to_vec(),
            offset: LEN as u64,
            len: LEN as u64,
            parent: 0,
        };
        let TierDone::Fetched(fetched) = work.fetch(vec![fetching]) else { panic!() };
        assert_eq!(fetched[0].1.map(|(sum, _)| sum), Some(crc::of(&block(2))));
    }

    #[test]
    fn memory_of_a_long_job_is_not_used_again_for_short_ones() {
        let mut copies = Copies::default();
        for lens in [&[5, 4096, 0, 70_000][..], &[10_000_000], &[100], &[]] {
            let parts = copies.parts(lens.iter().copied());
            assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), lens);
            assert!(parts.iter().all(|part| part.as_ptr().addr().is_multiple_of(4096)));
        }
        assert!(copies.memory.len() < 100_000);
    }
}
