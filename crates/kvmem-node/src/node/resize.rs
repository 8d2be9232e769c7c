//! *Resizing*: the space ends at another place of the memory file, which keeps its length.
//!
//! The file is as long as the space can ever become, so no address changes. Behind the end of the
//! space its pages have no memory.
//!
//! *Growing* makes pages resident, a few in each step, and moves the end of the space behind
//! them.
//!
//! *Shrinking* first evicts, in the usual order, what is too much. Then it takes the end of the
//! space, *chunk* by chunk from the last one on, until the new end:
//!
//! 1. The free ranges of the chunk are *closed*: they are allocated, so no call gets them. What
//!    becomes free there from now on is closed at once.
//! 2. Values in the chunk that nobody uses move to free ranges in front of it. If there is none,
//!    values are evicted until there is one.
//! 3. The pages of the closed ranges go back to the kernel. If all of the chunk is closed, the
//!    space ends in front of it; otherwise it stays closed, apart from what is in use. What became
//!    free behind its start meanwhile still has pages: the step is done again.
//!
//! All of it goes on in *pieces*, between which a step looks at its [slice](Slice) of time.
//!
//! Blocks that are pinned, reserved, or being stored or verified stay where they are. A later pass
//! takes them.
//!
//! A move makes another entry with the same key and a later batch, and then frees the first one.
//! So any prefix of its stores is a valid state: a recovery that finds both takes the later batch.
//! The end of the space is in no file: a server says which it wants when it starts.

use std::cmp::Ordering;
use std::ops::Range;

use kvmem::offset::RawAllocation;
use serde::{Deserialize, Serialize};

use super::evict::Evicted;
use super::local::Local;
use super::node::Node;
use super::slice::Slice;
use crate::format::{Committing, State, Word};

// In tests the pieces are small, so that steps end at many more places.

/// The most bytes that become resident in one step, and in one piece, if a page has fewer. The
/// kernel takes 0.5 µs for 4 KiB, and 12 to 100 µs in a virtual machine whose host must find the
/// page first.
const STEP_BYTES: u64 = 512 << 10;
const RESIDENT_PIECE: u64 = if cfg!(test) { 1 } else { 64 << 10 };
/// The most bytes that go back to the kernel in one piece, if a page has fewer: the entries of one
/// page table, 0.4 ms.
const RETURNED_PIECE: u64 = if cfg!(test) { 1 } else { 2 << 20 };
/// The most bytes of a chunk.
const CHUNK_BYTES: u64 = 16 << 20;
/// The most ranges of a chunk: to close one takes as long as there are ranges behind it.
const CHUNK_RANGES: usize = 512;
/// Entries that one step looks at, and one piece, and bytes that a step copies before it ends.
const LOOKED_AT: u32 = 1 << 14;
const LOOKED_AT_PIECE: u32 = if cfg!(test) { 1 << 2 } else { 1 << 7 };
const MOVED_BYTES: u64 = 4 << 20;
/// The most bytes that are copied in one piece.
const MOVED_PIECE: u64 = if cfg!(test) { 128 } else { 64 << 10 };
/// A longer value is evicted where it would have to move: many others would make way for it.
const MAX_MOVED: u64 = 32 << 20;

/// The state of the size.
#[derive(Debug)]
pub(super) struct Resizing {
    /// The end that the space is to have.
    pub(super) wanted: u64,
    /// Free ranges from here on are closed.
    pub(super) closed_from: u64,
    /// In no order.
    closed: Vec<RawAllocation>,
    pub(super) closed_bytes: u64,
    /// The entry to go on with, in the pass through the values of a chunk.
    scan: Option<u32>,
    /// The end of the chunk.
    top: u64,
    /// A value of the chunk that is being copied, in more than one step.
    moving: Option<Moving>,
    /// Ranges of the chunk whose pages go back before it ends; `None`: values are still moved.
    returning: Option<Vec<Range<u64>>>,
    /// Up to here, closed ranges of chunks that are over may have pages: they became free later, or
    /// the chunk was left. 0: none has.
    freed_to: u64,
}

impl Resizing {
    pub(super) fn new(wanted: u64) -> Resizing {
        Resizing {
            wanted,
            closed_from: u64::MAX,
            closed: Vec::new(),
            closed_bytes: 0,
            scan: None,
            top: u64::MAX,
            moving: None,
            returning: None,
            freed_to: 0,
        }
    }
}

/// A copy of a value to its new place.
#[derive(Debug)]
struct Moving {
    from: u32,
    /// The word of the entry when the copy began. It changes with the value.
    word: Word,
    to: RawAllocation,
    copied: u64,
}

/// How a change of the size goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResizeStep {
    /// The space has the size.
    Done,
    /// The next step goes on.
    More,
    /// It goes on when the tier has stored what it is storing.
    WhenStored,
    /// Blocks behind the end are in use, or devices may have the memory registered, or the kernel
    /// has no memory: a later pass may go on.
    Stuck,
}

/// The size that the memory of a node has after a call that changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    /// Bytes for values and reservations now.
    pub size: u64,
    /// The size that was requested. The server goes on until it has it.
    pub wanted: u64,
    /// Bytes behind that end that are pinned, reserved, or being stored or verified.
    pub held_bytes: u64,
    /// Clients that have registered the memory with devices, or may have: while there are any, the
    /// memory does not shrink.
    pub registered_clients: u64,
}

impl Node {
    /// Returns the bytes for values and reservations now.
    pub(crate) fn size(&self) -> u64 {
        self.space.capacity() - self.resizing.closed_bytes
    }

    /// Returns the bytes of the longest block.
    pub(super) fn max_len(&self) -> u64 {
        self.memory.header.max_len().min(self.space.capacity())
    }

    /// Returns the bytes that values and reservations use.
    pub(super) fn used(&self) -> u64 {
        // A value that moves is counted where it still is.
        let moving = self.resizing.moving.as_ref().map_or(0, |it| it.to.size);
        self.space.metrics().allocated - self.resizing.closed_bytes - moving
    }

    /// Returns the size nearest to a number of bytes that the memory can have.
    fn possible_size(&self, bytes: u64) -> u64 {
        let (len, page) = (self.memory.header.memory_len, self.memory.page_bytes());
        bytes.checked_next_multiple_of(page).unwrap_or(len).clamp(page.min(len), len)
    }

    /// Ends the space at the requested size, or behind the last block of a recovered node. If more
    /// pages are there, the space becomes smaller in steps, which give them back; if some are
    /// missing, it grows as they come.
    pub(super) fn fit_space(&mut self, end_of_last: Option<u64>) {
        let wanted = self.possible_size(self.options.size);
        self.resizing = Resizing::new(wanted);
        let end = match end_of_last {
            None => wanted,
            Some(_) if self.options.size == u64::MAX => wanted,
            Some(end) => match self.memory.resident_bytes().cmp(&wanted) {
                Ordering::Less => self.possible_size(end),
                Ordering::Equal => self.possible_size(end).max(wanted),
                Ordering::Greater => self.space.capacity(),
            },
        };
        if end < self.space.capacity() {
            self.space.shrink_to(end).expect("no block lies behind it");
        }
    }

    /// Begins to change the size.
    pub(crate) fn resize(&mut self, bytes: u64) {
        self.resizing.wanted = self.possible_size(bytes);
        self.leave_chunk();
    }

    /// Leaves a chunk before its end. Its closed ranges still have pages.
    fn leave_chunk(&mut self) {
        if self.resizing.scan.take().is_some() {
            self.resizing.freed_to = self.resizing.freed_to.max(self.resizing.top);
        }
        self.resizing.returning = None;
        if let Some(moving) = self.resizing.moving.take() {
            self.space.free_raw(moving.to.handle).expect("it was allocated for the copy");
        }
    }

    /// Returns the size that the space has or is to have.
    pub(crate) fn wanted_size(&self) -> u64 {
        self.resizing.wanted
    }

    /// Begins to give memory back because others need it, or to take it again.
    pub(crate) fn resize_for_others(&mut self, bytes: u64) {
        let wanted = self.resizing.wanted;
        self.resize(bytes);
        self.counters.pressure += u64::from(self.resizing.wanted < wanted);
    }

    /// Returns the least size under pressure.
    pub(crate) fn min_size(&self) -> u64 {
        self.options.min_size
    }

    /// Returns whether the memory has had, or may get, another size than its file.
    pub(crate) fn is_elastic(&self) -> bool {
        let len = self.memory.header.memory_len;
        let is_less = |size: u64| size < len;
        [self.size(), self.resizing.wanted, self.options.min_size].into_iter().any(is_less)
            || self.counters.given_back > 0
    }

    /// Returns the sizes that an operator may request.
    pub(crate) fn size_limits(&self) -> (u64, u64) {
        (self.memory.page_bytes(), self.memory.header.memory_len)
    }

    /// Returns whether the space has another size than it is to have.
    pub(crate) fn is_resizing(&self) -> bool {
        self.space.capacity() != self.resizing.wanted || !self.resizing.closed.is_empty()
    }

    /// Returns how far the change of the size is.
    pub(crate) fn resized(&self) -> Resized {
        let Resizing { wanted, closed_from, closed_bytes, .. } = self.resizing;
        let behind = self.space.capacity().saturating_sub(closed_from.max(wanted));
        Resized {
            size: self.size(),
            wanted,
            held_bytes: behind.saturating_sub(closed_bytes),
            registered_clients: self.sessions.may_have_registered() as u64,
        }
    }

    /// Does a part of a change of the size, for a slice of time, with at most `evictions_left`
    /// evictions.
    pub(crate) fn resize_some(&mut self, slice: Slice) -> ResizeStep {
        let wanted = self.resizing.wanted;
        let is_closed_before = self.resizing.closed.iter().any(|it| it.offset < wanted);
        if self.space.capacity() < wanted || is_closed_before {
            return self.grow_some(slice);
        }
        if !self.is_resizing() {
            // Nothing was closed for a smaller size, and nothing is from now on.
            self.resizing.closed_from = u64::MAX;
            return ResizeStep::Done;
        }
        if self.sessions.may_have_registered() > 0 {
            return ResizeStep::Stuck;
        }
        self.shrink_some(slice)
    }

    /// Opens what is closed below the end, and moves the end of the space.
    fn grow_some(&mut self, slice: Slice) -> ResizeStep {
        let wanted = self.resizing.wanted;
        let capacity = self.space.capacity();
        self.leave_chunk();
        self.resizing.top = u64::MAX;
        let lowest = self.resizing.closed.iter().enumerate().min_by_key(|(_, it)| it.offset);
        let lowest = lowest.filter(|(_, it)| it.offset < wanted).map(|(at, it)| (at, *it));
        self.resizing.closed_from = match wanted < capacity {
            true => self.resizing.closed_from.max(wanted),
            false => u64::MAX,
        };
        let step = STEP_BYTES.max(self.memory.page_bytes());
        if let Some((at, RawAllocation { handle, offset, size, .. })) = lowest {
            let middle = (offset + size.min(step)).min(wanted);
            let Some(middle) = self.make_resident(offset..middle, slice) else {
                return ResizeStep::Stuck;
            };
            self.resizing.closed.swap_remove(at);
            self.resizing.closed_bytes -= size;
            self.space.free_raw(handle).expect("it was closed");
            self.close(middle..offset + size);
            return ResizeStep::More;
        }
        if capacity < wanted {
            let end = wanted.min(capacity + step);
            let Some(end) = self.make_resident(capacity..end, slice) else {
                return ResizeStep::Stuck;
            };
            return match self.space.grow_to(end) {
                Ok(()) => ResizeStep::More,
                Err(_) => ResizeStep::Stuck,
            };
        }
        ResizeStep::More
    }

    /// Makes pages of a range resident, from its start on, for a slice of time. Returns where what
    /// is resident ends; `None`: the kernel has no memory.
    fn make_resident(&self, range: Range<u64>, slice: Slice) -> Option<u64> {
        let piece = RESIDENT_PIECE.max(self.memory.page_bytes());
        let mut at = range.start;
        while at < range.end && (at == range.start || !slice.is_over()) {
            let next = ((at / piece + 1) * piece).min(range.end);
            if !self.memory.make_resident(at..next) {
                break;
            }
            at = next;
        }
        (at > range.start).then_some(at)
    }

    fn shrink_some(&mut self, slice: Slice) -> ResizeStep {
        let wanted = self.resizing.wanted;
        if let Some(too_much) = self.used().checked_sub(wanted).filter(|it| *it > 0) {
            match self.evict_some(None, too_much, slice).1 {
                Evicted::More => return ResizeStep::More,
                Evicted::WhenStored => return ResizeStep::WhenStored,
                Evicted::Enough if slice.is_over() => return ResizeStep::More,
                Evicted::Enough => {}
            }
        }
        if let Some(moving) = self.resizing.moving.take()
            && (!self.copy_some(moving, slice) || slice.is_over())
        {
            return ResizeStep::More;
        }
        if let Some(returning) = self.resizing.returning.take() {
            return self.return_some(returning, slice);
        }
        let Some(from) = self.resizing.scan else {
            self.begin_chunk();
            return ResizeStep::More;
        };
        let all = self.locals.len() as u32;
        let end = from.saturating_add(LOOKED_AT).min(all);
        let mut moved = 0;
        for slot in from..end {
            if (slot - from) % LOOKED_AT_PIECE == LOOKED_AT_PIECE - 1 && slice.is_over() {
                self.resizing.scan = Some(slot);
                return ResizeStep::More;
            }
            let range = self.range_of(self.entry(slot).extent());
            let behind = range.end > self.resizing.closed_from;
            if !behind || self.word(slot).state != State::Committed {
                continue;
            }
            let local = &self.locals[slot as usize];
            if local.pins > 0 || local.is_held() {
                continue;
            }
            if moved >= MOVED_BYTES || (moved > 0 && slice.is_over()) {
                self.resizing.scan = Some(slot);
                return ResizeStep::More;
            }
            moved += range.end - range.start;
            if !self.make_way(slot, slice) {
                self.resizing.scan = Some(slot);
                return ResizeStep::More;
            }
        }
        if end < all {
            self.resizing.scan = Some(end);
            return ResizeStep::More;
        }
        let returning = self.merge_closed();
        self.return_some(returning, slice)
    }

    /// Closes the next chunk, or begins a pass through all that is closed.
    fn begin_chunk(&mut self) {
        self.resizing.scan = Some(0);
        let (wanted, capacity) = (self.resizing.wanted, self.space.capacity());
        let top = self.resizing.closed_from.min(capacity);
        self.resizing.top = top;
        if top <= wanted {
            self.resizing.top = capacity;
            return;
        }
        let page = self.memory.page_bytes();
        let map = self.space.map();
        let below: Vec<_> = map.iter().rev().skip_while(|it| it.offset >= top).collect();
        let many = below.get(CHUNK_RANGES).map_or(0, |it| it.offset);
        let least = top.saturating_sub(CHUNK_BYTES).max(many);
        let bottom = (least / page * page).max(wanted);
        self.resizing.closed_from = bottom;
        let free = below.into_iter().take_while(|it| it.offset + it.size > bottom);
        for it in free.filter(|it| !it.used) {
            self.close(it.offset.max(bottom)..(it.offset + it.size).min(top));
        }
    }

    /// Makes neighbours of the closed ranges of a chunk one range each, with all whole pages.
    /// Returns these ranges.
    fn merge_closed(&mut self) -> Vec<Range<u64>> {
        let bottom = self.resizing.closed_from;
        let top = self.resizing.top.max(std::mem::take(&mut self.resizing.freed_to));
        let is_within = |it: &mut RawAllocation| it.offset >= bottom && it.offset < top;
        let within: Vec<_> = self.resizing.closed.extract_if(.., is_within).collect();
        for it in &within {
            self.resizing.closed_bytes -= it.size;
            self.space.free_raw(it.handle).expect("it was closed");
        }
        let map = self.space.map();
        let free = map.iter().rev().take_while(|it| it.offset + it.size > bottom);
        let free = free.filter(|it| !it.used && it.offset < top);
        let ranges = free.map(|it| it.offset.max(bottom)..(it.offset + it.size).min(top));
        let ranges: Vec<_> = ranges.collect();
        ranges.iter().for_each(|range| self.close(range.clone()));
        ranges
    }

    /// Gives the pages of the ranges of a chunk back, for a slice of time. After the last one the
    /// space ends in front of the chunk if nothing is in use from there on.
    fn return_some(&mut self, mut ranges: Vec<Range<u64>>, slice: Slice) -> ResizeStep {
        let piece = RETURNED_PIECE.max(self.memory.page_bytes());
        let resident = self.memory.resident_bytes();
        let mut is_first = true;
        while let Some(range) = ranges.pop() {
            if !is_first && slice.is_over() {
                ranges.push(range);
                break;
            }
            is_first = false;
            let middle = ((range.start / piece + 1) * piece).min(range.end);
            self.memory.give_back(range.start..middle);
            if middle < range.end {
                ranges.push(middle..range.end);
            }
        }
        self.counters.given_back += resident.saturating_sub(self.memory.resident_bytes());
        if !ranges.is_empty() {
            self.resizing.returning = Some(ranges);
            return ResizeStep::More;
        }
        if self.resizing.freed_to > 0 {
            let ranges = self.merge_closed();
            self.resizing.returning = Some(ranges);
            return ResizeStep::More;
        }
        self.end_chunk()
    }

    /// Ends the space in front of a chunk if nothing is in use from there on.
    fn end_chunk(&mut self) -> ResizeStep {
        self.resizing.scan = None;
        let bottom = self.resizing.closed_from;
        let is_closed = self.space.capacity() - bottom == self.resizing.closed_bytes;
        if is_closed {
            for it in std::mem::take(&mut self.resizing.closed) {
                self.space.free_raw(it.handle).expect("it was closed");
            }
            (self.resizing.closed_bytes, self.resizing.closed_from) = (0, u64::MAX);
            self.space.shrink_to(bottom).expect("all behind it was closed");
        }
        match (is_closed, bottom > self.resizing.wanted) {
            (_, true) => ResizeStep::More,
            (true, false) => ResizeStep::Done,
            (false, false) => ResizeStep::Stuck,
        }
    }

    /// Allocates a free range, so that no call gets it.
    fn close(&mut self, range: Range<u64>) {
        let boundary = self.space.boundary().unwrap_or(u64::MAX);
        let mut start = range.start;
        while start < range.end {
            let next = (start / boundary + 1).saturating_mul(boundary).min(range.end);
            // If the allocation fails, the range counts as used, and the next pass tries again.
            if let Ok(closed) = self.space.allocate_raw_at(start..next) {
                self.resizing.closed_bytes += closed.size;
                self.resizing.closed.push(closed);
            }
            start = next;
        }
    }

    /// Frees the extent of an entry that is free, or the part of it that is not closed.
    pub(super) fn free_space(&mut self, slot: u32) {
        let extent = self.locals[slot as usize].extent;
        let closed_from = self.resizing.closed_from;
        if closed_from == u64::MAX {
            self.space.free_raw(extent).expect("the entry has its extent");
            return;
        }
        let range = self.space.resolve_raw(extent).expect("the entry has its extent");
        self.space.free_raw(extent).expect("the entry has its extent");
        if range.end > closed_from {
            self.resizing.freed_to = self.resizing.freed_to.max(range.end);
            self.close(range.start.max(closed_from)..range.end);
        }
    }

    /// Moves a value that nobody uses to the front, or evicts it. Returns false if that needs more
    /// than `evictions_left` or a slice of time.
    fn make_way(&mut self, slot: u32, slice: Slice) -> bool {
        let (len, align) = (self.len_of(slot), self.memory.header.align);
        if len > MAX_MOVED {
            self.evict(slot);
            return true;
        }
        let space = self.space_for(len);
        let mut has_evicted = false;
        loop {
            let allocated = match self.has_free_slot() {
                true => self.space.allocate_aligned_raw(space, align).ok(),
                false => None,
            };
            if let Some(extent) = allocated {
                let (word, copied) = (self.word(slot), 0);
                return self.copy_some(Moving { from: slot, word, to: extent, copied }, slice);
            }
            if self.evictions_left == 0 || (has_evicted && slice.is_over()) {
                return false;
            }
            // If all the others are in use, it goes itself.
            let victim = self.victim(None).unwrap_or(slot);
            // It may be one that the tier stores first now.
            if self.locals[slot as usize].is_held() {
                return true;
            }
            self.evict(victim);
            if victim == slot {
                return true;
            }
            has_evicted = true;
        }
    }

    /// Copies a value to its new place, for a slice of time, and moves it there after the last
    /// byte. Returns whether that is over: also if the value is in use, or gone, meanwhile.
    fn copy_some(&mut self, mut moving: Moving, slice: Slice) -> bool {
        let Moving { from, word, to, .. } = moving;
        let local = &self.locals[from as usize];
        let is_same = self.word(from) == word && local.pins == 0 && !local.is_held();
        if !is_same || !self.has_free_slot() {
            self.space.free_raw(to.handle).expect("it was allocated for the copy");
            return true;
        }
        let extent = self.entry(from).extent();
        let len = extent.end - extent.start;
        while moving.copied < len {
            let next = (moving.copied + MOVED_PIECE).min(len);
            let piece = extent.start + moving.copied..extent.start + next;
            self.memory.copy(piece, to.offset + moving.copied);
            moving.copied = next;
            if next < len && slice.is_over() {
                self.resizing.moving = Some(moving);
                return false;
            }
        }
        let slot = self.take_slot(to.handle).expect("there is a free entry");
        self.move_value(from, slot, to.offset);
        true
    }

    /// Moves a value that nobody uses, and whose bytes are copied, to another entry, whose extent
    /// begins at `offset`.
    fn move_value(&mut self, from: u32, to: u32, offset: u64) {
        let word = self.word(from);
        let len = self.len_of(from);
        let batch = self.next_batch();
        let (old, new) = (self.entry(from), self.entry(to));
        let key = old.key();
        let what = Committing {
            key: &key[..word.key_len.into()],
            namespace: old.namespace(),
            priority: old.priority(),
            data_type: old.data_type(),
            checksum: old.checksum(),
            batch,
            expires_at: old.expires_at(),
            parent: old.parent(),
        };
        let generation = new.generation().wrapping_add(1);
        new.reserve(generation, offset..offset + len, None);
        new.set_used_at(old.used_at());
        new.set_order(old.order());
        if old.is_clean() {
            new.set_clean();
        }
        new.prepare(generation, &what);
        // From here on a recovery finds the value twice, and takes this one.
        new.commit(self.word(to));
        let hash = self.leave(from, word.key_len);
        let space = self.space_of(to);
        self.namespaces.at(what.namespace).add_block(space);
        let local = self.locals[from as usize];
        let extent = self.locals[to as usize].extent;
        self.locals[to as usize] = Local { extent, queued: false, has_moved: true, ..local };
        self.relink(from, to);
        // The value itself was here before, or a child from which it has its place.
        self.namespaces.at(what.namespace).remove_record(local.order, to);
        if let Some(history) = &mut self.history {
            history.remove(from);
            history.insert(to, hash);
        }
        self.release_extent(from);
        self.add_key(to, hash);
        self.queue(to);
    }
}
