//! *Threads* that wait for the tier, so that the server need not.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use kvmem::arena::Region;

use super::{Fetching, NodeTier, Storing, TierDone, TierJob, TierRead};
use crate::{crc, session_file};

/// The threads of a tier, and what they have done.
#[derive(Debug)]
pub(crate) struct TierThreads {
    /// `None` when the threads are to end.
    senders: Option<Senders>,
    threads: Vec<JoinHandle<()>>,
    done: Arc<Mutex<Vec<TierDone>>>,
}

/// The jobs of each thread.
#[derive(Debug)]
struct Senders {
    store: Sender<TierJob>,
    fetch: Sender<TierJob>,
    /// Those of a tier that does not know all its values: fetches from far, and look-ups.
    far: Option<[Sender<TierJob>; 2]>,
}

/// What a thread works with.
struct Work {
    tier: Arc<dyn NodeTier>,
    memory: Arc<Region>,
    done: Arc<Mutex<Vec<TierDone>>>,
    /// An eventfd that wakes the server.
    wake: Arc<OwnedFd>,
}

impl TierThreads {
    /// Starts the threads. They write to the eventfd `wake` when there is something to
    /// [take](Self::take_done).
    pub(crate) fn start(
        tier: &Arc<dyn NodeTier>,
        memory: &Arc<Region>,
        wake: &Arc<OwnedFd>,
    ) -> std::io::Result<TierThreads> {
        let done = Arc::new(Mutex::new(Vec::new()));
        let mut threads = Vec::new();
        let mut start = |name: &str| {
            let (sender, jobs) = channel();
            let (tier, memory) = (Arc::clone(tier), Arc::clone(memory));
            let work = Work { tier, memory, done: Arc::clone(&done), wake: Arc::clone(wake) };
            let thread = std::thread::Builder::new().name(name.to_owned());
            threads.push(thread.spawn(move || work.run(&jobs))?);
            Ok::<_, std::io::Error>(sender)
        };
        let (store, fetch) = (start("kvmem-tier-store")?, start("kvmem-tier-fetch")?);
        let far = match tier.knows_all() {
            true => None,
            false => Some([start("kvmem-tier-far")?, start("kvmem-tier-find")?]),
        };
        let senders = Senders { store, fetch, far };
        Ok(TierThreads { senders: Some(senders), threads, done })
    }

    /// Gives a job to its thread.
    pub(crate) fn send(&self, job: TierJob) {
        let Some(Senders { store, fetch, far }) = &self.senders else { return };
        let far = |which: usize| far.as_ref().map_or(fetch, |far| &far[which]);
        let to = match job {
            TierJob::Store(_) | TierJob::Remove(_) => store,
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
    /// Waits for the jobs that were given, and ends the threads. Returns what was done.
    pub(crate) fn finish(mut self) -> Vec<TierDone> {
        self.join();
        self.take_done()
    }

    fn join(&mut self) {
        self.senders = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for TierThreads {
    /// Waits for the jobs that were given.
    fn drop(&mut self) {
        self.join();
    }
}

impl Work {
    fn run(&self, jobs: &Receiver<TierJob>) {
        while let Ok(job) = jobs.recv() {
            let done = match job {
                TierJob::Store(values) => self.store(values),
                TierJob::Fetch(values) | TierJob::FetchFar(values) => self.fetch(values),
                TierJob::LookUp(values) => {
                    let keys: Vec<&[u8]> = values.iter().map(|it| &*it.tier_key).collect();
                    let lengths = self.tier.look_up(&keys);
                    TierDone::LookedUp(values.into_iter().zip(lengths).collect())
                }
                TierJob::Remove(values) => {
                    let keys: Vec<&[u8]> = values.iter().map(|it| &*it.tier_key).collect();
                    let removed = self.tier.remove(&keys);
                    TierDone::Removed(values, removed)
                }
            };
            self.done.lock().unwrap_or_else(PoisonError::into_inner).push(done);
            // The counter of an eventfd cannot overflow here, so the write does not block.
            let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Returns the address of a block.
    fn block(&self, offset: u64, len: u64) -> *mut u8 {
        let all = self.memory.len() as u64;
        assert!(offset.checked_add(len).is_some_and(|end| end <= all), "the node said so");
        // SAFETY: the block lies in the region, as was just checked.
        unsafe { self.memory.base().as_ptr().add(offset as usize) }
    }

    fn store(&self, values: Vec<Storing>) -> TierDone {
        let batch: Vec<(&[u8], &[u8])> = values
            .iter()
            .map(|it| {
                let first = self.block(it.offset, it.len);
                // SAFETY: the value is committed, and pinned until the job is done: no client
                // writes to it.
                let bytes = unsafe { std::slice::from_raw_parts(first, it.len as usize) };
                (&*it.key, bytes)
            })
            .collect();
        let stored = self.tier.store(&batch);
        drop(batch);
        TierDone::Stored(values.into_iter().zip(stored).collect())
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
        // The block may be one whose pins a session has lost.
        session_file::before_writing();
        let fetched = self.tier.fetch(&mut reads);
        let sums: Vec<Option<u32>> = reads
            .iter()
            .zip(fetched)
            .map(|(read, fetched)| fetched.then(|| crc::of(read.into)))
            .collect();
        drop(reads);
        TierDone::Fetched(values.into_iter().zip(sums).collect())
    }
}
