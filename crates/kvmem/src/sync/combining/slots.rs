//! *Slots*: where threads publish requests for the holder of the lock.
//!
//! A slot is one cache line: a [request](Request), whose thread waits for the answer, and two
//! notes, whose threads go on at once. Each of these entries has a state:
//!
//! ```text
//!          holder           thread             thread           holder
//!  CLOSED ───────▶ FREE ──────────▶ WRITING ─────────▶ READY ───────────▶ FREE  (note)
//!         ◀───────  ▲                                    │ holder
//!          holder   └──────────────── DONE ◀─────────────┘                      (request)
//!                        thread
//! ```
//!
//! A panic while a holder serves an entry is a defect of the data. The entry is not run again: a
//! note is gone, and the thread of a request runs it itself.

use super::super::checker::{AtomicU32, AtomicU64, MODELLED, Ordering};
use super::super::prefetch;

/// The number of slots. A thread takes that of its processor, or one of the next ones.
const SLOTS: usize = if MODELLED { 1 } else { 16 };
/// The number of slots that a thread tries.
const TRIES: usize = if MODELLED { 1 } else { 4 };
/// Entries of a slot: the request, then the notes.
const ENTRIES: usize = if MODELLED { 2 } else { 3 };
/// The entry of the request.
const REQUEST: usize = 0;

const CLOSED: u32 = 0;
const FREE: u32 = 1;
const WRITING: u32 = 2;
const READY: u32 = 3;
const DONE: u32 = 4;
/// The request has panicked in the thread that served it.
const FAILED: u32 = 5;

/// The content of a request, a note or an answer.
pub(crate) type Words = [u64; 2];

/// Data that a holder of the lock changes for other threads.
pub(crate) trait Combined {
    /// Runs a note.
    fn note(&mut self, words: Words);
    /// Runs a request; returns its answer.
    fn request(&mut self, words: Words) -> Words;
}

/// A slot: one cache line, in a pair of lines of its own, because processors fetch lines in pairs.
#[repr(C, align(128))]
struct CombiningSlot {
    states: [AtomicU32; ENTRIES],
    words: [[AtomicU64; 2]; ENTRIES],
}

impl CombiningSlot {
    fn new() -> Self {
        CombiningSlot {
            states: std::array::from_fn(|_| AtomicU32::new(CLOSED)),
            words: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
        }
    }

    fn read(&self, entry: usize) -> Words {
        // Relaxed, both: ordered by the entry's state.
        [0, 1].map(|at: usize| self.words[entry][at].load(Ordering::Relaxed))
    }

    fn write(&self, entry: usize, words: Words) {
        for (word, value) in self.words[entry].iter().zip(words) {
            // Relaxed: ordered by the entry's state.
            word.store(value, Ordering::Relaxed);
        }
    }

    fn claim(&self, entry: usize) -> bool {
        // Acquire pairs with the Release of the holder that opened or served the entry, or of the
        // thread that read its answer: what they did comes before this claim. Relaxed: on failure
        // nothing was claimed.
        self.states[entry]
            .compare_exchange(FREE, WRITING, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Frees an entry.
    fn free(&self, entry: usize) {
        // Release pairs with the Acquire in `claim` and in `Slots::close`.
        self.states[entry].store(FREE, Ordering::Release);
    }

    fn is_ready(&self, entry: usize) -> bool {
        // Acquire pairs with the Release in `Slots::publish`: the words are written.
        self.states[entry].load(Ordering::Acquire) == READY
    }
}

/// The slots of a lock.
pub(super) struct Slots([CombiningSlot; SLOTS]);

/// A published request. Its thread must get the answer, or withdraw the request.
pub(super) struct Request<'a> {
    slot: &'a CombiningSlot,
}

impl Slots {
    pub(super) fn new() -> Self {
        Slots(std::array::from_fn(|_| CombiningSlot::new()))
    }

    fn states(&self) -> impl Iterator<Item = &AtomicU32> {
        self.0.iter().flat_map(|slot| &slot.states)
    }

    /// Opens all entries, which are closed. The caller holds the lock.
    pub(super) fn open(&self) {
        // Release pairs with the Acquire in `CombiningSlot::claim`.
        self.states().for_each(|state| state.store(FREE, Ordering::Release));
    }

    /// Closes all entries, or none if one is in use. The caller holds the lock.
    pub(super) fn close(&self) -> bool {
        let stays_open = |state: &AtomicU32| {
            // Acquire pairs with the Release of the thread that freed the entry. Relaxed: an entry
            // in use is not touched.
            state.compare_exchange(FREE, CLOSED, Ordering::Acquire, Ordering::Relaxed).is_err()
        };
        let Some(open) = self.states().position(stays_open) else { return true };
        for state in self.states().take(open) {
            // Release pairs with the Acquire in `CombiningSlot::claim`.
            state.store(FREE, Ordering::Release);
        }
        false
    }

    /// Closes the entries that are free; returns whether all are closed now. Under contention some
    /// entry is in use at any time, so [`close`](Self::close) may never succeed. The caller holds
    /// the lock, and serves the others or [opens](Self::reopen) what is closed.
    pub(super) fn close_free(&self) -> bool {
        self.states().fold(true, |all, state| {
            // Acquire pairs with the Release of the thread that freed the entry. Relaxed: an entry
            // in use is not touched, and only the holder closes one.
            let found = state.compare_exchange(FREE, CLOSED, Ordering::Acquire, Ordering::Relaxed);
            all & matches!(found, Ok(_) | Err(CLOSED))
        })
    }

    /// Opens the entries that are closed. The caller holds the lock.
    pub(super) fn reopen(&self) {
        // Relaxed: only the holder closes an entry, or opens one.
        for state in self.states().filter(|state| state.load(Ordering::Relaxed) == CLOSED) {
            // Release pairs with the Acquire in `CombiningSlot::claim`.
            state.store(FREE, Ordering::Release);
        }
    }

    /// Publishes a note in a slot near `at`; `mark` runs with the slot's number before the note can
    /// be seen. Returns whether an entry was free.
    pub(super) fn note(&self, at: usize, words: Words, mark: impl Fn(usize)) -> bool {
        self.publish(at, REQUEST + 1..ENTRIES, words, mark).is_some()
    }

    /// Publishes a request in a slot near `at`, as [`note`](Self::note) does.
    pub(super) fn request(
        &self,
        at: usize,
        words: Words,
        mark: impl Fn(usize),
    ) -> Option<Request<'_>> {
        self.publish(at, REQUEST..REQUEST + 1, words, mark).map(|slot| Request { slot })
    }

    fn publish(
        &self,
        at: usize,
        entries: std::ops::Range<usize>,
        words: Words,
        mark: impl Fn(usize),
    ) -> Option<&CombiningSlot> {
        for number in (0..TRIES).map(|tried| (at + tried) % SLOTS) {
            let slot = &self.0[number];
            if let Some(entry) = entries.clone().find(|entry| slot.claim(*entry)) {
                mark(number);
                slot.write(entry, words);
                // Release pairs with the Acquire in `is_ready`.
                slot.states[entry].store(READY, Ordering::Release);
                return Some(slot);
            }
        }
        None
    }

    /// Serves what is published in the slot `number`; returns how many. The caller holds the lock.
    /// Notes come first: a thread that left notes and then requests finds them done.
    pub(super) fn serve(&self, number: usize, data: &mut impl Combined) -> u32 {
        let slot = &self.0[number];
        let requested = slot.is_ready(REQUEST);
        let mut served = u32::from(requested);
        for entry in REQUEST + 1..ENTRIES {
            if slot.is_ready(entry) {
                let words = slot.read(entry);
                slot.free(entry);
                data.note(words);
                served += 1;
            }
        }
        if requested {
            let mut answer = Answer { slot, state: FAILED };
            slot.write(REQUEST, data.request(slot.read(REQUEST)));
            answer.state = DONE;
        }
        served
    }

    /// Starts to fetch a slot, without waiting for it.
    #[inline]
    pub(super) fn prefetch(&self, number: usize) {
        prefetch(&raw const self.0[number]);
    }

    /// In the child of a fork, whose only thread holds no entry: drops what other threads wait for
    /// or were about to publish. Notes that are published stay, and are run once, as in the parent.
    pub(super) fn forget_waiters(&self) {
        for slot in &self.0 {
            for (entry, state) in slot.states.iter().enumerate() {
                // Relaxed: the child has one thread.
                match state.load(Ordering::Relaxed) {
                    CLOSED | FREE => {}
                    READY if entry != REQUEST => {}
                    _ => slot.free(entry),
                }
            }
        }
    }
}

/// Ends the service of a request, also by a panic.
struct Answer<'a> {
    slot: &'a CombiningSlot,
    state: u32,
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `Request::result`: the answer is written.
        self.slot.states[REQUEST].store(self.state, Ordering::Release);
    }
}

/// The result of a request that was served.
pub(super) enum Served {
    Answered(Words),
    /// The thread that served it panicked.
    Panicked,
}

impl Request<'_> {
    /// Returns the result if the request has been served.
    pub(super) fn result(&self) -> Option<Served> {
        // Acquire pairs with the Release in `Answer::drop`.
        let result = match self.slot.states[REQUEST].load(Ordering::Acquire) {
            DONE => Served::Answered(self.slot.read(REQUEST)),
            FAILED => Served::Panicked,
            _ => return None,
        };
        self.slot.free(REQUEST);
        Some(result)
    }

    /// Takes the request back. The caller holds the lock, and there was no answer under it.
    pub(super) fn withdraw(self) {
        self.slot.free(REQUEST);
    }
}
