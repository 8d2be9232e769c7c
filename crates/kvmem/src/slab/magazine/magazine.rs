//! *Magazine*: an array of rounds with a header, and chains of magazines.
//!
//! Header and rounds are one memory block. It comes from the system's allocator and not from the
//! global one, because the global allocator may be built on this layer.

use std::alloc::{GlobalAlloc, Layout, System};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// The header in front of the rounds.
pub(crate) struct MagazineHead {
    next: *mut MagazineHead,
    class: u32,
    capacity: u32,
    count: u32,
    /// Bytes charged against the bound while the magazine is in a cache, or in the depot with
    /// rounds.
    charge: u64,
}

/// An owned magazine. Dropping it frees the memory block and discards its rounds.
pub(crate) struct Magazine<R> {
    head: NonNull<MagazineHead>,
    rounds: PhantomData<R>,
}

// SAFETY: a magazine owns its block, and rounds may move to other threads.
unsafe impl<R: Send> Send for Magazine<R> {}

/// Returns the layout of a magazine's memory block.
const fn layout<R>(capacity: u32) -> Option<Layout> {
    let align = if align_of::<R>() > align_of::<MagazineHead>() {
        align_of::<R>()
    } else {
        align_of::<MagazineHead>()
    };
    let Some(rounds) = (capacity as usize).checked_mul(size_of::<R>()) else { return None };
    let Some(size) = rounds.checked_add(rounds_at::<R>()) else { return None };
    match Layout::from_size_align(size, align) {
        Ok(layout) => Some(layout),
        Err(_) => None,
    }
}

const fn rounds_at<R>() -> usize {
    size_of::<MagazineHead>().next_multiple_of(align_of::<R>())
}

impl<R> Magazine<R> {
    fn head(&self) -> &MagazineHead {
        // SAFETY: the magazine owns the block, which has a header.
        unsafe { self.head.as_ref() }
    }
}

impl<R: Copy> Magazine<R> {
    /// Makes an empty magazine; `None` if the system has no memory.
    pub(crate) fn new(class: usize, capacity: usize) -> Option<Self> {
        let (class, capacity) = (u32::try_from(class).ok()?, u32::try_from(capacity).ok()?);
        // SAFETY: the layout is not empty: it holds at least the header.
        let block =
            NonNull::new(unsafe { System.alloc(layout::<R>(capacity)?) })?.cast::<MagazineHead>();
        // SAFETY: the block is new, aligned, and large enough for a header.
        unsafe {
            block.write(MagazineHead {
                next: ptr::null_mut(),
                class,
                capacity,
                count: 0,
                charge: 0,
            })
        };
        Some(Magazine { head: block, rounds: PhantomData })
    }

    /// Gives up the ownership of the memory block.
    pub(crate) fn into_raw(self) -> NonNull<MagazineHead> {
        let head = self.head;
        std::mem::forget(self);
        head
    }

    /// Takes back the ownership of a memory block.
    ///
    /// # Safety
    ///
    /// The header came from `into_raw` of a magazine of the same type, and no other thread or value
    /// uses it. The first `count` rounds are written.
    pub(crate) unsafe fn from_raw(head: NonNull<MagazineHead>, count: u32) -> Self {
        // SAFETY: the caller promises that the header came from `into_raw`, so it is initialized,
        // and that no other thread or value uses it.
        unsafe { (*head.as_ptr()).count = count };
        Magazine { head, rounds: PhantomData }
    }

    /// Returns the address of a magazine's first round.
    #[inline(always)]
    pub(crate) fn rounds(head: *mut MagazineHead) -> *mut R {
        head.wrapping_byte_add(rounds_at::<R>()).cast()
    }

    pub(crate) fn class(&self) -> usize {
        self.head().class as usize
    }

    pub(crate) fn capacity(&self) -> usize {
        self.head().capacity as usize
    }

    pub(crate) fn count(&self) -> usize {
        self.head().count as usize
    }

    pub(crate) fn charge(&self) -> u64 {
        self.head().charge
    }

    pub(crate) fn set_charge(&mut self, charge: u64) {
        // SAFETY: the magazine owns the block.
        unsafe { self.head.as_mut() }.charge = charge;
    }

    /// Returns the rounds.
    pub(crate) fn as_slice(&self) -> &[R] {
        // SAFETY: all places below the count hold rounds, and the magazine owns the block.
        unsafe { std::slice::from_raw_parts(Self::rounds(self.head.as_ptr()), self.count()) }
    }

    /// Takes the round that was put last.
    pub(crate) fn pop(&mut self) -> Option<R> {
        // SAFETY: the magazine owns the block.
        let head = unsafe { self.head.as_mut() };
        head.count = head.count.checked_sub(1)?;
        // SAFETY: all places below the former count hold rounds.
        Some(unsafe { Self::rounds(self.head.as_ptr()).add(head.count as usize).read() })
    }

    /// Moves all rounds to the end of `out`.
    pub(crate) fn empty_into(&mut self, out: &mut Vec<R>) {
        out.extend_from_slice(self.as_slice());
        // SAFETY: the magazine owns the block.
        unsafe { self.head.as_mut() }.count = 0;
    }
}

impl<R> Drop for Magazine<R> {
    fn drop(&mut self) {
        // SAFETY: the magazine owns the block.
        let capacity = unsafe { self.head.as_ref() }.capacity;
        if let Some(layout) = layout::<R>(capacity) {
            // SAFETY: the block came from this allocator with this layout; the layout was valid
            // when the block was allocated.
            unsafe { System.dealloc(self.head.as_ptr().cast(), layout) };
        }
    }
}

/// A stack of magazines, linked through their headers.
pub(crate) struct MagazineChain<R> {
    first: *mut MagazineHead,
    len: usize,
    /// The number of rounds in all magazines of the chain.
    rounds: usize,
    magazines: PhantomData<Magazine<R>>,
}

// SAFETY: the chain owns its magazines, and magazines may move to other threads.
unsafe impl<R: Send> Send for MagazineChain<R> {}

impl<R> MagazineChain<R> {
    pub(crate) const fn new() -> Self {
        MagazineChain { first: ptr::null_mut(), len: 0, rounds: 0, magazines: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, magazine: Magazine<R>) {
        let head = magazine.head;
        self.rounds += magazine.head().count as usize;
        std::mem::forget(magazine);
        // SAFETY: `magazine` owned the block until now; the chain owns it from here on.
        unsafe { (*head.as_ptr()).next = self.first };
        self.first = head.as_ptr();
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<Magazine<R>> {
        let head = NonNull::new(self.first)?;
        // SAFETY: the chain owns the blocks that it links.
        let MagazineHead { next, count, .. } = *unsafe { head.as_ref() };
        self.first = next;
        self.len -= 1;
        self.rounds -= count as usize;
        Some(Magazine { head, rounds: PhantomData })
    }

    /// Returns the number of rounds in the chain. O(1).
    pub(crate) fn rounds(&self) -> usize {
        self.rounds
    }

    /// Iterates over the headers. Pointers, because a reference to a header does not cover the
    /// rounds behind it.
    fn heads(&self) -> impl Iterator<Item = *mut MagazineHead> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let head = at;
            // SAFETY: the chain owns the blocks that it links.
            at = unsafe { head.as_ref() }?.next;
            Some(head)
        })
    }
}

impl<R: Copy> MagazineChain<R> {
    /// Appends a copy of all rounds to `out`.
    pub(crate) fn copy_into(&self, out: &mut Vec<R>) {
        for head in self.heads() {
            // SAFETY: the chain owns the block, and the borrow of the chain excludes changes.
            let count = unsafe { (*head).count as usize };
            let rounds = Magazine::<R>::rounds(head);
            // SAFETY: all places below the count hold rounds.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(rounds, count) });
        }
    }
}

impl<R> Drop for MagazineChain<R> {
    fn drop(&mut self) {
        while let Some(magazine) = self.pop() {
            drop(magazine);
        }
    }
}
