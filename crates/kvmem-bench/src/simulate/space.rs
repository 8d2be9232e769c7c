//! *Space*: the state of one lock and of the metadata below it.

use std::collections::VecDeque;

use super::machine::SpaceWork;

/// Entries of a slot besides the request: calls without an answer.
pub(super) const NOTES: usize = 2;
/// Slots that a thread tries.
pub(super) const TRIES: usize = 4;
/// Waits after which the slots open.
pub(super) const WAITS: u32 = 16;
/// Operations after which the slots close if they were of no use.
pub(super) const PERIOD: u32 = 64;

/// How the lock is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockKind {
    /// To the thread that waits longest.
    Queue,
    /// To the thread that is first.
    Spin,
    /// As `Spin`, and with this many slots under contention.
    Combining(usize),
}

/// An entry of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Entry {
    Free,
    /// A core is about to publish, or has yet to read the answer.
    Claimed,
    Ready(SpaceWork),
}

#[derive(Clone, Debug)]
pub(super) struct SlotLine {
    /// The core that has the line.
    pub(super) at: usize,
    /// When it has it.
    pub(super) arrives: u64,
    pub(super) request: Entry,
    pub(super) notes: [Entry; NOTES],
}

/// A thread that waits for the lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) core: usize,
    pub(super) since: u64,
    pub(super) work: SpaceWork,
}

/// What the holder of the lock does next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// Serves the slots of the mask, then makes its own call.
    ServeFirst {
        mask: u64,
    },
    /// Makes its own call.
    Own,
    /// Ends its own call.
    Finish,
    /// Serves the slots of the mask, then releases the lock.
    ServeLast {
        mask: u64,
    },
    Release,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) core: usize,
    pub(super) work: SpaceWork,
    pub(super) phase: Phase,
    /// The slot whose request has just been run, and the core that waits for its answer.
    pub(super) answering: Option<(usize, usize)>,
    /// Calls of other threads that were run in this turn.
    pub(super) served: u64,
}

#[derive(Clone, Debug)]
pub(super) struct SpaceModel {
    pub(super) kind: LockKind,
    pub(super) holder: Option<Holder>,
    pub(super) waiters: VecDeque<Waiter>,
    /// Counts the times that the lock was taken.
    pub(super) epoch: u64,
    /// The cores that had the line of the lock, and the metadata, last.
    pub(super) word_at: Option<usize>,
    pub(super) data_at: Option<usize>,
    /// When the lock was taken last.
    pub(super) taken: u64,
    /// A thread that waits for an answer has read the line of the lock.
    pub(super) word_is_shared: bool,
    pub(super) is_open: bool,
    /// The core whose threads take the lock while the slots are open.
    pub(super) owner: usize,
    /// Waits while the slots are closed; operations since `since` while they are open.
    pub(super) count: u32,
    pub(super) served: u32,
    pub(super) since: u64,
    pub(super) slots: Vec<SlotLine>,
    /// A bit for each slot that may hold something.
    pub(super) used: u64,
}

impl SpaceModel {
    pub(super) fn new(kind: LockKind) -> Self {
        let slots = if let LockKind::Combining(slots) = kind { slots } else { 0 };
        let slot = SlotLine {
            at: usize::MAX,
            arrives: 0,
            request: Entry::Free,
            notes: [Entry::Free; NOTES],
        };
        SpaceModel {
            kind,
            holder: None,
            waiters: VecDeque::new(),
            epoch: 0,
            word_at: None,
            data_at: None,
            taken: 0,
            word_is_shared: false,
            is_open: false,
            owner: 0,
            count: 0,
            served: 0,
            since: 0,
            slots: vec![slot; slots],
            used: 0,
        }
    }

    /// Opens the slots.
    pub(super) fn open(&mut self, owner: usize, now: u64) {
        (self.is_open, self.owner, self.used) = (true, owner, 0);
        (self.count, self.served, self.since) = (0, 0, now);
    }

    /// Closes the slots if all entries are free.
    pub(super) fn try_close(&mut self) {
        let is_free =
            |slot: &SlotLine| slot.request == Entry::Free && slot.notes == [Entry::Free; NOTES];
        if self.slots.iter().all(is_free) {
            (self.is_open, self.used, self.count) = (false, 0, 0);
        }
    }

    /// Claims an entry for `core`; returns the slot, the entry (`None` for the request) and the
    /// number of lines that had to be fetched.
    pub(super) fn claim(
        &mut self,
        core: usize,
        is_note: bool,
    ) -> (Option<(usize, Option<usize>)>, u64) {
        let mut lines = 0;
        for tried in 0..TRIES.min(self.slots.len()) {
            let number = (core + tried) % self.slots.len();
            let slot = &mut self.slots[number];
            if slot.at != core {
                (slot.at, lines) = (core, lines + 1);
            }
            let note = slot.notes.iter().position(|entry| *entry == Entry::Free);
            if is_note && let Some(note) = note {
                slot.notes[note] = Entry::Claimed;
                return (Some((number, Some(note))), lines);
            }
            if !is_note && slot.request == Entry::Free {
                slot.request = Entry::Claimed;
                return (Some((number, None)), lines);
            }
        }
        (None, lines)
    }
}
