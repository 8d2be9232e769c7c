//! *Workers*: threads that make the transfers of a device that may have no ring.
//!
//! A device has a bounded number of threads, however many threads use it, and they stay until the
//! device is dropped: starting a thread takes longer than a short transfer. Transfers wait for them
//! in a bounded queue, those of all batches alternately. A thread whose batch finds the queue full
//! makes the transfer itself, so it waits for the drive, and the queue grows no further. Reads
//! overtake writes. The workers have a few MiB of writes in flight, which occupy a drive, and
//! the other workers stay free for reads.
//!
//! The thread that has begun a batch works on its events; the workers only transfer.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::batch::BatchEvents;
use super::priority::Share;
use super::transfer::Transfer;

/// Transfers that wait for a worker, for each one that there may be.
const QUEUED_PER_THREAD: usize = 4;

/// The threads of a device.
pub(super) struct Workers {
    shared: Arc<Shared>,
    max_threads: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// State that the workers and the threads of batches share.
#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// A transfer waits for a worker, or the workers are to end.
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    reads: VecDeque<Job>,
    writes: VecDeque<Job>,
    /// Bytes of the writes that workers make.
    writing: usize,
    /// Workers that wait for a job.
    idle: usize,
    ends: bool,
}

/// Makes the transfer with an index of a batch.
type Run = dyn Fn(usize) -> io::Result<()> + Sync;

/// A transfer that waits for a worker.
struct Job {
    /// Of the batch, whose thread waits until all its jobs are done.
    run: *const Run,
    index: usize,
    kind: Kind,
    done: Arc<Done>,
}

/// Whether a job reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    /// Has this number of bytes in flight at a time.
    Write(usize),
}

impl Kind {
    /// Returns the kind of a transfer.
    pub(super) fn of(transfer: &Transfer) -> Kind {
        match transfer.write {
            true => Kind::Write(transfer.len().min(Share::ALONE.piece)),
            false => Kind::Read,
        }
    }
}

impl Queue {
    fn len(&self) -> usize {
        self.reads.len() + self.writes.len()
    }

    /// Adds a job behind those of its kind.
    fn push(&mut self, job: Job) {
        match job.kind {
            Kind::Read => self.reads.push_back(job),
            Kind::Write(_) => self.writes.push_back(job),
        }
    }

    /// Takes the next job that may begin now.
    fn next(&mut self) -> Option<Job> {
        if let Some(read) = self.reads.pop_front() {
            return Some(read);
        }
        let may_write = self.writing < Share::ALONE.bytes;
        let write = may_write.then(|| self.writes.pop_front()).flatten()?;
        if let Kind::Write(bytes) = write.kind {
            self.writing += bytes;
        }
        Some(write)
    }

    /// Notes that a job of this kind has ended. Returns whether another worker may go on.
    fn ended(&mut self, kind: Kind) -> bool {
        if let Kind::Write(bytes) = kind {
            self.writing -= bytes;
        }
        self.writes.len() > 1 && self.idle > 0
    }
}

// SAFETY: the pointer is to a `Sync` function, which any thread may call while the batch waits for
// the job.
unsafe impl Send for Job {}

/// The results of a batch that its thread has not taken yet. Workers share it, so it outlives the
/// batch until the last one has let go of it.
#[derive(Default)]
struct Done {
    results: Mutex<Vec<(usize, io::Result<()>)>>,
    came: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

impl Job {
    /// Makes the transfer, and passes on its result.
    fn make(self) {
        let Job { run, index, done, .. } = self;
        // SAFETY: the thread of the batch waits for the result, which is passed on later, and holds
        // the function and all that it borrows until then.
        let run = unsafe { &*run };
        let result = catch_unwind(AssertUnwindSafe(|| run(index)))
            .unwrap_or_else(|_| Err(io::Error::other("the transfer panicked")));
        lock(&done.results).push((index, result));
        done.came.notify_one();
    }
}

/// The jobs of a batch that are not done. Waits for them when it is dropped, by a panic too: what
/// they borrow ends then.
struct Pending {
    done: Arc<Done>,
    count: usize,
}

impl Pending {
    /// Waits for results, of which at least one is missing.
    fn take(&mut self) -> Vec<(usize, io::Result<()>)> {
        let mut results = lock(&self.done.results);
        while results.is_empty() {
            results = wait(&self.done.came, results);
        }
        self.count -= results.len();
        std::mem::take(&mut *results)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        while self.count > 0 {
            self.take();
        }
    }
}

impl Workers {
    /// Creates no thread yet; there will be at most `max_threads`.
    pub(super) fn new(max_threads: usize) -> Workers {
        Workers { shared: Arc::default(), max_threads, threads: Mutex::default() }
    }

    /// Runs `transfer` for each of `batch`, by the workers or by this thread. A batch of one is
    /// transferred by this thread.
    pub(super) fn each<T: Send>(
        &self,
        batch: &mut [T],
        kind: impl Fn(&T) -> Kind,
        transfer: impl Fn(&mut T) -> io::Result<()> + Sync,
        events: &mut impl BatchEvents,
    ) {
        let len = batch.len();
        let kinds: Vec<Kind> = batch.iter().map(kind).collect();
        // Each transfer is locked once, by the thread that makes it.
        let batch: Vec<_> = batch.iter_mut().map(Mutex::new).collect();
        let run = |index: usize| transfer(&mut lock(&batch[index]));
        let mut pending = Pending { done: Arc::default(), count: 0 };
        let mut own = Vec::new();
        for (index, kind) in kinds.into_iter().enumerate() {
            let is_queued = len > 1 && self.push(&run, index, kind, &pending.done);
            if is_queued {
                pending.count += 1;
            } else {
                own.push((index, run(index)));
            }
        }
        while events.has_work(len) {
            events.work();
        }
        own.into_iter().for_each(|(index, result)| events.done(index, result));
        while pending.count > 0 {
            for (index, result) in pending.take() {
                events.done(index, result);
            }
        }
    }

    /// Lets a worker make a transfer. Returns false if the queue is full, or if there is no worker.
    fn push<'a>(
        &self,
        run: &'a (dyn Fn(usize) -> io::Result<()> + Sync + 'a),
        index: usize,
        kind: Kind,
        done: &Arc<Done>,
    ) -> bool {
        let mut queue = lock(&self.shared.queue);
        if queue.len() >= self.max_threads * QUEUED_PER_THREAD {
            return false;
        }
        // Each waiting job needs a worker of its own, as long as there may be more.
        if queue.idle <= queue.len() && !self.start_worker() {
            return false;
        }
        let run: *const (dyn Fn(usize) -> io::Result<()> + Sync + 'a) = run;
        // SAFETY: only the lifetime changes. The caller waits for the job before it ends.
        let run = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) -> io::Result<()> + Sync + 'a), *const Run>(
                run,
            )
        };
        queue.push(Job { run, index, kind, done: Arc::clone(done) });
        drop(queue);
        self.shared.work.notify_one();
        true
    }

    /// Starts a worker if there may be one more. Returns whether there is any.
    fn start_worker(&self) -> bool {
        let mut threads = lock(&self.threads);
        if threads.len() < self.max_threads {
            let shared = Arc::clone(&self.shared);
            let builder = thread::Builder::new().name("kvmem-tier".into());
            if let Ok(thread) = builder.spawn(move || shared.work()) {
                threads.push(thread);
            }
        }
        !threads.is_empty()
    }

    /// Leaves everything as it is, in a forked child, which has none of the threads.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::replace(self, Workers::new(0)));
    }

    #[cfg(test)]
    fn threads(&self) -> usize {
        lock(&self.threads).len()
    }
}

impl Shared {
    /// Makes transfers until the device is dropped.
    fn work(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = queue.next() {
                let kind = job.kind;
                drop(queue);
                job.make();
                queue = lock(&self.queue);
                if queue.ended(kind) {
                    self.work.notify_one();
                }
            } else if queue.ends {
                return;
            } else {
                queue.idle += 1;
                queue = wait(&self.work, queue);
                queue.idle -= 1;
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.shared.queue).ends = true;
        self.shared.work.notify_all();
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A worker catches the panics of transfers, and has no others.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// Counts the pieces of work, and the results of each index.
    struct Seen {
        worked: usize,
        results: Vec<Vec<bool>>,
    }

    impl Seen {
        fn new(len: u32) -> Seen {
            Seen { worked: 0, results: vec![Vec::new(); len as usize] }
        }
    }

    impl BatchEvents for Seen {
        const WORKS_WHEN_DONE: bool = false;

        fn has_work(&self, submitted: usize) -> bool {
            self.worked < submitted
        }

        fn work(&mut self) {
            self.worked += 1;
        }

        fn done(&mut self, index: usize, result: io::Result<()>) {
            self.results[index].push(result.is_ok());
        }
    }

    #[test]
    fn each_transfer_is_made_once_and_has_its_result() {
        for (threads, len) in [(0, 3), (1, 50), (2, 50), (8, 50), (100, 50), (8, 1), (8, 0)] {
            let workers = Workers::new(threads);
            let mut batch: Vec<u32> = (0..len).collect();
            let mut seen = Seen::new(len);
            let transfer = |one: &mut u32| {
                *one += 100;
                if one.is_multiple_of(7) { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
            };
            workers.each(&mut batch, |_| Kind::Read, transfer, &mut seen);
            assert_eq!(batch, (100..100 + len).collect::<Vec<_>>());
            assert_eq!(seen.worked, len as usize);
            for (number, results) in (100_u32..).zip(seen.results) {
                let expected = [!number.is_multiple_of(7)];
                assert_eq!(results, expected, "{threads} threads, {number}");
            }
        }
    }

    /// Many threads transfer at once: no more workers come than there may be, the queue stays
    /// short, and a thread that finds it full transfers itself.
    #[test]
    fn threads_and_queue_stay_bounded_whatever_the_number_of_callers() {
        const CALLERS: usize = 24;
        let workers = Workers::new(3);
        let (now, most, longest) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..CALLERS {
                scope.spawn(|| {
                    let mut batch = [0_u32; 40];
                    let mut seen = Seen::new(40);
                    let transfer = |one: &mut u32| {
                        // Relaxed, all: counts, which order nothing.
                        let running = now.fetch_add(1, Ordering::Relaxed) + 1;
                        most.fetch_max(running, Ordering::Relaxed);
                        longest.fetch_max(lock(&workers.shared.queue).len(), Ordering::Relaxed);
                        thread::sleep(Duration::from_micros(200));
                        *one += 1;
                        now.fetch_sub(1, Ordering::Relaxed);
                        Ok(())
                    };
                    workers.each(&mut batch, |_| Kind::Read, transfer, &mut seen);
                    assert_eq!(batch, [1; 40]);
                    assert_eq!((seen.worked, seen.results), (40, vec![vec![true]; 40]));
                });
            }
        });
        assert_eq!(workers.threads(), 3);
        let (most, longest) = (most.into_inner(), longest.into_inner());
        assert!(most > 3 && most <= 3 + CALLERS, "{most} transfers at once");
        assert!((1..=3 * QUEUED_PER_THREAD).contains(&longest), "{longest} jobs waited");
    }

    /// The writes of the workers have a few MiB in flight together. Later reads overtake the writes
    /// that wait.
    #[test]
    fn reads_overtake_writes() {
        const WRITES: u32 = 24;
        let workers = Workers::new(8);
        let (now, most, made) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let mut batch: Vec<u32> = (0..WRITES).collect();
                let transfer = |_: &mut u32| {
                    // Relaxed, all: counts, which order nothing.
                    most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(20));
                    now.fetch_sub(1, Ordering::Relaxed);
                    made.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                };
                let kind = |_: &u32| Kind::Write(Share::ALONE.bytes / 4);
                workers.each(&mut batch, kind, transfer, &mut Seen::new(WRITES));
            });
            while now.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            workers.each(&mut [0; 3], |_| Kind::Read, |_| Ok(()), &mut Seen::new(3));
            let made = made.load(Ordering::Relaxed);
            assert!(made < WRITES as usize / 2, "{made} writes were made before");
            writing.join().unwrap();
        });
        assert_eq!(most.into_inner(), 4);
    }

    #[test]
    fn a_panic_of_the_events_waits_for_the_transfers() {
        struct Panics;
        impl BatchEvents for Panics {
            const WORKS_WHEN_DONE: bool = false;
            fn has_work(&self, _: usize) -> bool {
                true
            }
            fn work(&mut self) {
                panic!("by an event");
            }
            fn done(&mut self, _: usize, _: io::Result<()>) {}
        }
        let workers = Workers::new(4);
        let made = AtomicUsize::new(0);
        let mut batch = [0_u32; 8];
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let transfer = |one: &mut u32| {
                thread::sleep(Duration::from_millis(2));
                *one = 1;
                // Relaxed: a count, read after the batch has waited.
                made.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            workers.each(&mut batch, |_| Kind::Read, transfer, &mut Panics);
        }));
        assert!(caught.is_err());
        assert_eq!((made.into_inner(), batch), (8, [1; 8]));
    }

    #[test]
    fn a_panic_of_a_transfer_is_its_result() {
        let workers = Workers::new(2);
        let mut seen = Seen::new(6);
        let transfer = |one: &mut u32| {
            assert!(*one != 3 || thread::current().name() != Some("kvmem-tier"), "by a transfer");
            Ok(())
        };
        workers.each(&mut [0, 1, 2, 3, 4, 5], |_| Kind::Write(1), transfer, &mut seen);
        let results: Vec<bool> = seen.results.into_iter().flatten().collect();
        assert_eq!(results, [true, true, true, false, true, true]);
    }
}
