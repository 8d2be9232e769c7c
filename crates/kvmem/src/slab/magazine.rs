//! *Magazine*: an array of rounds, with a head; and chains of magazines.
//!
//! Head and rounds lie in one block, which comes from the system's allocator and not from the
//! global one: that may be built on this layer.

use std::alloc::{GlobalAlloc, Layout, System};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// What stands before the rounds.
pub(crate) struct MagazineHead {
    next: *mut MagazineHead,
    class: u32,
    capacity: u32,
    count: u32,
    /// What is charged for it while it is in a cache, or in the depot with rounds.
    charge: u64,
}

/// A magazine, owned. Dropping it frees the block and forgets its rounds.
pub(crate) struct Magazine<R> {
    head: NonNull<MagazineHead>,
    rounds: PhantomData<R>,
}

// SAFETY: a magazine owns its block, and rounds may go to other threads.
unsafe impl<R: Send> Send for Magazine<R> {}

/// The block of a magazine, and where in it the rounds begin.
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
        // SAFETY: the block is ours and has a head.
        unsafe { self.head.as_ref() }
    }
}

impl<R: Copy> Magazine<R> {
    /// An empty one; `None` if the system has no memory.
    pub(crate) fn new(class: usize, capacity: usize) -> Option<Self> {
        let (class, capacity) = (u32::try_from(class).ok()?, u32::try_from(capacity).ok()?);
        // SAFETY: the layout has a size, that of the head at least.
        let block =
            NonNull::new(unsafe { System.alloc(layout::<R>(capacity)?) })?.cast::<MagazineHead>();
        // SAFETY: the block is new, aligned, and has room for a head.
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

    /// Gives up ownership.
    pub(crate) fn into_raw(self) -> NonNull<MagazineHead> {
        let head = self.head;
        std::mem::forget(self);
        head
    }

    /// Takes it again.
    ///
    /// # Safety
    ///
    /// The head came from `into_raw` of a magazine of the same type, and nobody else uses it.
    /// `count` rounds have been written to it.
    pub(crate) unsafe fn from_raw(head: NonNull<MagazineHead>, count: u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { (*head.as_ptr()).count = count };
        Magazine { head, rounds: PhantomData }
    }

    /// Where the rounds of a magazine begin.
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
        // SAFETY: the block is ours.
        unsafe { self.head.as_mut() }.charge = charge;
    }

    /// The rounds in it.
    pub(crate) fn as_slice(&self) -> &[R] {
        // SAFETY: all places below the count hold rounds, and the block is ours.
        unsafe { std::slice::from_raw_parts(Self::rounds(self.head.as_ptr()), self.count()) }
    }

    /// The round that was put in last.
    pub(crate) fn pop(&mut self) -> Option<R> {
        // SAFETY: the block is ours.
        let head = unsafe { self.head.as_mut() };
        head.count = head.count.checked_sub(1)?;
        // SAFETY: all places below the former count hold rounds.
        Some(unsafe { Self::rounds(self.head.as_ptr()).add(head.count as usize).read() })
    }

    /// Moves all rounds to the end of `out`.
    pub(crate) fn empty_into(&mut self, out: &mut Vec<R>) {
        out.extend_from_slice(self.as_slice());
        // SAFETY: the block is ours.
        unsafe { self.head.as_mut() }.count = 0;
    }
}

impl<R> Drop for Magazine<R> {
    fn drop(&mut self) {
        // SAFETY: the block is ours.
        let capacity = unsafe { self.head.as_ref() }.capacity;
        if let Some(layout) = layout::<R>(capacity) {
            // SAFETY: it came from the same allocator with this layout, which was there when it was
            // made.
            unsafe { System.dealloc(self.head.as_ptr().cast(), layout) };
        }
    }
}

/// Magazines, linked through their heads: the last one in is the first one out.
pub(crate) struct Chain<R> {
    first: *mut MagazineHead,
    len: usize,
    /// In all of them.
    rounds: usize,
    magazines: PhantomData<Magazine<R>>,
}

// SAFETY: it owns its magazines, which may go to other threads.
unsafe impl<R: Send> Send for Chain<R> {}

impl<R> Chain<R> {
    pub(crate) const fn new() -> Self {
        Chain { first: ptr::null_mut(), len: 0, rounds: 0, magazines: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, magazine: Magazine<R>) {
        let head = magazine.head;
        self.rounds += magazine.head().count as usize;
        std::mem::forget(magazine);
        // SAFETY: the magazine was ours a moment ago and is the chain's now.
        unsafe { (*head.as_ptr()).next = self.first };
        self.first = head.as_ptr();
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<Magazine<R>> {
        let head = NonNull::new(self.first)?;
        // SAFETY: what is linked is owned by the chain.
        let MagazineHead { next, count, .. } = *unsafe { head.as_ref() };
        self.first = next;
        self.len -= 1;
        self.rounds -= count as usize;
        Some(Magazine { head, rounds: PhantomData })
    }

    /// How many rounds are in it. O(1).
    pub(crate) fn rounds(&self) -> usize {
        self.rounds
    }

    /// Where they begin. As pointers: a reference to a head would not reach the rounds behind it.
    fn heads(&self) -> impl Iterator<Item = *mut MagazineHead> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let head = at;
            // SAFETY: what is linked is owned by the chain.
            at = unsafe { head.as_ref() }?.next;
            Some(head)
        })
    }
}

impl<R: Copy> Chain<R> {
    /// The rounds that are in it, onto `out`.
    pub(crate) fn copy_into(&self, out: &mut Vec<R>) {
        for head in self.heads() {
            // SAFETY: it is the chain's, and nobody changes it while that is borrowed.
            let count = unsafe { (*head).count as usize };
            let rounds = Magazine::<R>::rounds(head);
            // SAFETY: all places below the count hold rounds.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(rounds, count) });
        }
    }
}

impl<R> Drop for Chain<R> {
    fn drop(&mut self) {
        while let Some(magazine) = self.pop() {
            drop(magazine);
        }
    }
}
