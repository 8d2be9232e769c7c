//! *Crew*: threads that work together, in one sweep after another.
//!
//! None begins a sweep before all are there: what is measured is work, and not how long starting a
//! thread takes. Sweeps can be short, some hundred microseconds, so threads stay between two of
//! them, and wait awake: one that sleeps is woken on the core of the one that wakes it, and both
//! then share that core for the first milliseconds, which is all of a short sweep. Those that are
//! not needed any more are sent home before long work begins.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::sys;
use crate::trace::Here;

/// How long threads that have been started are waited for.
const PATIENCE: Duration = Duration::from_millis(20);
/// The most threads of a crew: numbers in an order are of 16 bits.
const MOST: usize = 1 << 15;

/// What all threads of a crew see. Numbers count from the leader, who is 0.
struct Orders<'a> {
    /// Told the number of the thread, and how many work.
    work: &'a (dyn Fn(usize, usize) + Sync),
    /// The present [`Order`]. One word: a helper that looks late must not mix two of them.
    order: AtomicU64,
    /// Helpers that have not finished the present sweep.
    busy: AtomicUsize,
    /// Helpers that have come to wait for orders.
    arrived: AtomicUsize,
    /// Where the leader is: what helpers do is a part of it.
    here: Here,
}

/// What helpers are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    /// How many there were before.
    number: u32,
    /// Threads numbered below this stay; the others go home.
    stay: u16,
    /// Threads numbered below this work.
    workers: u16,
}

impl Order {
    fn packed(self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.stay) << 16 | u64::from(self.workers)
    }

    fn of(packed: u64) -> Order {
        Order { number: (packed >> 32) as u32, stay: (packed >> 16) as u16, workers: packed as u16 }
    }
}

/// Threads of which the calling one is the leader.
pub(crate) struct Crew<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    name: &'env str,
    orders: &'env Orders<'env>,
    helpers: Vec<ScopedJoinHandle<'scope, ()>>,
}

/// Leads a crew whose threads are called `name`, and which does `work` in each sweep: `work` is
/// told the number of the thread, from 0, and how many there are in this sweep. All threads have
/// ended when this returns.
///
/// # Panics
/// A panic in `work` is passed on.
pub(crate) fn lead<R>(
    name: &str,
    work: &(dyn Fn(usize, usize) + Sync),
    lead: impl FnOnce(&mut Crew<'_, '_>) -> R,
) -> R {
    let (order, busy, arrived) = (AtomicU64::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let orders = Orders { work, order, busy, arrived, here: Here::now() };
    thread::scope(|scope| lead(&mut Crew { scope, name, orders: &orders, helpers: Vec::new() }))
}

impl Crew<'_, '_> {
    /// Has so many threads work, the leader among them, or fewer if they cannot be had; returns how
    /// many. `begin` is called with that number when all are there, before any of them works.
    pub(crate) fn sweep(&mut self, threads: usize, begin: impl FnOnce(usize)) -> usize {
        self.grow(threads.min(MOST));
        let threads = threads.min(self.helpers.len() + 1).max(1);
        begin(threads);
        if threads > 1 {
            // Relaxed: the order publishes it.
            self.orders.busy.store(threads - 1, Ordering::Relaxed);
            self.give_order(u16::MAX, threads as u16);
        }
        // All are done when this returns, and when a panic comes through it.
        let _all_done = AllDone(&self.orders.busy);
        (self.orders.work)(0, threads);
        threads
    }

    /// Sends home whoever is numbered `threads` or above.
    pub(crate) fn shrink(&mut self, threads: usize) {
        let threads = threads.max(1);
        if self.helpers.len() < threads {
            return;
        }
        self.give_order(threads as u16, 0);
        let home = self.helpers.drain(threads - 1..);
        let panics: Vec<_> = home.filter_map(|helper| helper.join().err()).collect();
        if let Some(panic) = panics.into_iter().next()
            && !thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }

    fn give_order(&self, stay: u16, workers: u16) {
        // Relaxed: only this thread changes it.
        let last = Order::of(self.orders.order.load(Ordering::Relaxed));
        let order = Order { number: last.number.wrapping_add(1), stay, workers };
        // Release pairs with the Acquire in `help`: what was done before the order is seen.
        self.orders.order.store(order.packed(), Ordering::Release);
    }

    /// Starts helpers until there are enough, or there can be no more, and waits until they have
    /// come.
    fn grow(&mut self, threads: usize) {
        if threads <= self.helpers.len() + 1 {
            return;
        }
        // Relaxed: only this thread changes it.
        let (orders, seen) = (self.orders, self.orders.order.load(Ordering::Relaxed));
        // Relaxed: a head count; nothing is passed on.
        let before = orders.arrived.load(Ordering::Relaxed);
        let mut more = 0;
        while self.helpers.len() + 1 < threads {
            let number = self.helpers.len() + 1;
            match sys::spawn_scoped(self.scope, self.name, move || orders.help(number, seen)) {
                Ok(helper) => self.helpers.push(helper),
                // Fewer hands do it too.
                Err(_) => break,
            }
            more += 1;
        }
        let start = Instant::now();
        // Relaxed: see above.
        while orders.arrived.load(Ordering::Relaxed) < before + more && start.elapsed() < PATIENCE {
            thread::yield_now();
        }
    }
}

impl Drop for Crew<'_, '_> {
    fn drop(&mut self) {
        self.shrink(1);
    }
}

impl Orders<'_> {
    /// What a helper does: waits for orders, `seen` of which it need not follow, until it is sent
    /// home.
    fn help(&self, number: usize, mut seen: u64) {
        // Relaxed: a head count; nothing is passed on.
        self.arrived.fetch_add(1, Ordering::Relaxed);
        loop {
            // Acquire pairs with the Release in `give_order`.
            let packed = self.order.load(Ordering::Acquire);
            if packed == seen {
                thread::yield_now();
                continue;
            }
            seen = packed;
            let order = Order::of(packed);
            if number >= order.stay.into() {
                return;
            }
            if number < order.workers.into() {
                let _done = Done(&self.busy);
                self.here.run(|| (self.work)(number, order.workers.into()));
            }
        }
    }
}

/// Waits for the helpers of a sweep.
struct AllDone<'a>(&'a AtomicUsize);

impl Drop for AllDone<'_> {
    fn drop(&mut self) {
        // Acquire pairs with the Release of `Done`: what the helpers did is seen.
        while self.0.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        }
    }
}

/// Says that a helper is done, in any case.
struct Done<'a>(&'a AtomicUsize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire of `AllDone`: what the helper did is seen.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;
    use std::thread::ThreadId;

    use super::*;

    #[test]
    fn orders_fit_into_a_word() {
        for order in [
            Order { number: 0, stay: 0, workers: 0 },
            Order { number: u32::MAX, stay: 1, workers: 2 },
            Order { number: 7, stay: u16::MAX, workers: u16::MAX },
        ] {
            assert_eq!(Order::of(order.packed()), order);
        }
    }

    #[test]
    fn each_sweep_has_as_many_threads_as_it_was_told() {
        let present: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());
        let work = |_, _| present.lock().expect("nobody panics here").push(thread::current().id());
        lead("test", &work, |crew| {
            for round in 0..200 {
                let threads = [1, 4, 2, 3, 4, 1][round % 6];
                assert_eq!(crew.sweep(threads, |all| assert_eq!(all, threads)), threads);
                let mut all = std::mem::take(&mut *present.lock().expect("nobody panics here"));
                all.sort_unstable_by_key(|id| format!("{id:?}"));
                all.dedup();
                assert_eq!(all.len(), threads, "each of them once");
                if round % 50 == 49 {
                    crew.shrink(round % 3);
                }
            }
        });
    }

    #[test]
    fn a_panic_is_passed_on_and_nobody_is_left_behind() {
        let leader = thread::current().id();
        for led in [true, false] {
            let work = |_, _| assert_ne!(thread::current().id() == leader, led, "told to");
            let result =
                catch_unwind(AssertUnwindSafe(|| lead("test", &work, |crew| crew.sweep(4, drop))));
            assert!(result.is_err());
        }
    }
}
