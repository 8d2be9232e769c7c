//! The published allocator, modelled.
//!
//! 1. *Bins.* A free range lies in one of 240 bins. A bin is named by a small float: five bits of exponent, three
//!    of mantissa, so there are eight bins in each power of two and sizes below eight have one each. A range is
//!    filed under the largest bin that is not above its size.
//! 2. *Two-level bitmap.* One word says which exponents have a free range, one byte for each exponent says
//!    which of its eight bins have. The search starts at the smallest bin that is not *below* the request, takes
//!    the first bin that is not empty and the range that was filed there last.
//! 3. *Split and merge.* The request takes the low end of the range, the rest is filed again. Nodes know their
//!    neighbours in address order; a freed range swallows free neighbours at once.
//! 4. *Rounding.* Since the search only looks at bins at or above the request, a hole left by an object of an
//!    in-between size is filed below the bin in which the next such object is looked for, and is lost until a
//!    neighbour dies. [`Binned`] therefore gives every object the whole size of its bin; [`BinnedUnrounded`] is
//!    the allocator before that change.
//! 5. *Tables.* Nodes and the stack of spare nodes are created with the allocator. Offsets are 32 bits wide; a space above
//!    the largest bin (3.75 GiB) is cut into units of a power of two bytes, and requests are rounded up to units
//!    before they are rounded up to bins.
//! 6. *Sharing.* One mutex around it all, behind a reference count; a handle holds a weak reference, so that it may
//!    outlive the allocator.
//!
//! Written to be as fast as the original is: no allocation after creation, indices whose bounds the compiler can
//! see, and no bookkeeping that the original lacks.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Contender, ContenderId, CreateError, Held, Space};

const NONE: u32 = u32::MAX;
const MANTISSA_BITS: u32 = 3;
const MANTISSA_MASK: u32 = (1 << MANTISSA_BITS) - 1;
/// The largest size that a bin stands for: 15 · 2^28 bytes.
const MAX_BIN_SIZE: u64 = 15 << 28;

/// The largest bin whose size is at most `size`.
#[inline]
fn bin_floor(size: u32) -> u8 {
    if size <= MANTISSA_MASK {
        return size as u8;
    }
    let shift = 31 - size.leading_zeros() - MANTISSA_BITS;
    (((shift + 1) << MANTISSA_BITS) + ((size >> shift) & MANTISSA_MASK)) as u8
}

/// The smallest bin whose size is at least `size`.
#[inline]
fn bin_ceil(size: u32) -> u8 {
    if size <= MANTISSA_MASK {
        return size as u8;
    }
    let shift = 31 - size.leading_zeros() - MANTISSA_BITS;
    let inexact = size & ((1 << shift) - 1) != 0;
    // A mantissa of eight carries into the exponent, as it should.
    (((shift + 1) << MANTISSA_BITS) + ((size >> shift) & MANTISSA_MASK) + u32::from(inexact)) as u8
}

/// The size that bin `bin` stands for.
#[inline]
fn bin_size(bin: u8) -> u32 {
    let (exponent, mantissa) = (u32::from(bin) >> MANTISSA_BITS, u32::from(bin) & MANTISSA_MASK);
    if exponent == 0 { mantissa } else { (mantissa | 1 << MANTISSA_BITS) << (exponent - 1) }
}

/// A range of the space, used or free, or a spare node.
#[derive(Clone, Copy)]
struct Node {
    offset: u32,
    size: u32,
    /// Neighbours in the list of the node's bin; only while free.
    bin_prev: u32,
    bin_next: u32,
    /// Neighbours in address order.
    near_prev: u32,
    near_next: u32,
    used: bool,
}

const BLANK: Node = Node {
    offset: 0,
    size: 0,
    bin_prev: NONE,
    bin_next: NONE,
    near_prev: NONE,
    near_next: NONE,
    used: false,
};

/// Bins, bitmaps and nodes; offsets and sizes in units.
struct Heap<const ROUND: bool> {
    exponents: u32,
    mantissas: [u8; 32],
    heads: [u32; 256],
    nodes: Box<[Node]>,
    spare: Box<[u32]>,
    /// How many entries of `spare` are spare.
    spare_len: usize,
}

impl<const ROUND: bool> Heap<ROUND> {
    fn new(size: u32, max_nodes: u32) -> Self {
        let mut heap = Self {
            exponents: 0,
            mantissas: [0; 32],
            heads: [NONE; 256],
            nodes: vec![BLANK; max_nodes as usize].into_boxed_slice(),
            // Popped from the end: nodes are first used in the order in which they lie in memory.
            spare: (0..max_nodes).rev().collect(),
            spare_len: max_nodes as usize,
        };
        heap.file(offset_and(0, size), NONE, NONE);
        heap
    }

    /// The first bin from `from` on that is not empty.
    #[inline]
    fn first_bin_from(&self, from: u8) -> Option<u8> {
        let (exponent, mantissa) = (from >> MANTISSA_BITS, from & MANTISSA_MASK as u8);
        let here = self.mantissas[usize::from(exponent)] & (0xff << mantissa);
        if here != 0 {
            return Some(exponent << MANTISSA_BITS | here.trailing_zeros() as u8);
        }
        // Exponents run to 31, and a shift by 32 must give no bits.
        let above = self.exponents & (u64::MAX << (exponent + 1)) as u32;
        if above == 0 {
            return None;
        }
        let exponent = above.trailing_zeros() as u8 & 31;
        let mantissa = self.mantissas[usize::from(exponent)].trailing_zeros() as u8;
        Some(exponent << MANTISSA_BITS | mantissa)
    }

    /// Takes a range of at least `asked` units; gives its offset and node.
    #[inline]
    fn allocate(&mut self, asked: u32) -> Option<(u32, u32)> {
        // The last node is never handed out: the remainder of a split may need it.
        if self.spare_len <= 1 {
            return None;
        }
        let bin_min = bin_ceil(asked);
        let size = if ROUND { bin_size(bin_min) } else { asked };
        let bin = self.first_bin_from(bin_min)?;
        let index = self.heads[usize::from(bin)];
        let node = &mut self.nodes[index as usize];
        let (offset, total, next, after) = (node.offset, node.size, node.bin_next, node.near_next);
        node.size = size;
        node.used = true;
        self.heads[usize::from(bin)] = next;
        if next == NONE {
            self.mark_empty(bin);
        } else {
            self.nodes[next as usize].bin_prev = NONE;
        }
        let rest = total - size;
        if rest > 0 {
            let tail = self.file(offset_and(offset + size, rest), index, after);
            if after != NONE {
                self.nodes[after as usize].near_prev = tail;
            }
            self.nodes[index as usize].near_next = tail;
        }
        Some((offset, index))
    }

    /// Frees the range of node `index` and merges it with free neighbours.
    #[inline]
    fn free(&mut self, index: u32) {
        let node = self.nodes[index as usize];
        let (mut offset, mut size) = (node.offset, node.size);
        let (mut before, mut after) = (node.near_prev, node.near_next);
        if before != NONE {
            let prev = self.nodes[before as usize];
            if !prev.used {
                offset = prev.offset;
                size += prev.size;
                self.unfile(before, prev);
                before = prev.near_prev;
            }
        }
        if after != NONE {
            let next = self.nodes[after as usize];
            if !next.used {
                size += next.size;
                self.unfile(after, next);
                after = next.near_next;
            }
        }
        self.give_spare(index);
        let merged = self.file(offset_and(offset, size), before, after);
        if before != NONE {
            self.nodes[before as usize].near_next = merged;
        }
        if after != NONE {
            self.nodes[after as usize].near_prev = merged;
        }
    }

    /// Files a free range at the head of its bin, on a spare node.
    #[inline]
    fn file(&mut self, (offset, size): (u32, u32), near_prev: u32, near_next: u32) -> u32 {
        let bin = bin_floor(size);
        let head = self.heads[usize::from(bin)];
        if head == NONE {
            let exponent = bin >> MANTISSA_BITS;
            self.mantissas[usize::from(exponent)] |= 1 << (bin & MANTISSA_MASK as u8);
            self.exponents |= 1 << exponent;
        }
        self.spare_len -= 1;
        let index = self.spare[self.spare_len];
        self.nodes[index as usize] =
            Node { offset, size, bin_prev: NONE, bin_next: head, near_prev, near_next, used: false };
        if head != NONE {
            self.nodes[head as usize].bin_prev = index;
        }
        self.heads[usize::from(bin)] = index;
        index
    }

    /// Takes free node `index`, of which `node` is a copy, out of its bin; the node is spare afterwards.
    #[inline]
    fn unfile(&mut self, index: u32, node: Node) {
        if node.bin_prev != NONE {
            self.nodes[node.bin_prev as usize].bin_next = node.bin_next;
            if node.bin_next != NONE {
                self.nodes[node.bin_next as usize].bin_prev = node.bin_prev;
            }
        } else {
            let bin = bin_floor(node.size);
            self.heads[usize::from(bin)] = node.bin_next;
            if node.bin_next != NONE {
                self.nodes[node.bin_next as usize].bin_prev = NONE;
            } else {
                self.mark_empty(bin);
            }
        }
        self.give_spare(index);
    }

    #[inline]
    fn mark_empty(&mut self, bin: u8) {
        let exponent = bin >> MANTISSA_BITS;
        let left = &mut self.mantissas[usize::from(exponent)];
        *left &= !(1 << (bin & MANTISSA_MASK as u8));
        if *left == 0 {
            self.exponents &= !(1 << exponent);
        }
    }

    #[inline]
    fn give_spare(&mut self, index: u32) {
        self.spare[self.spare_len] = index;
        self.spare_len += 1;
    }
}

/// Names the pair that [`Heap::file`] takes.
#[inline]
fn offset_and(offset: u32, size: u32) -> (u32, u32) {
    (offset, size)
}

/// The state behind the mutex.
struct Guarded<const ROUND: bool> {
    heap: Heap<ROUND>,
    /// Bytes asked for and ranges alive, as the original counts them.
    live_bytes: u64,
    live: u64,
}

/// What handles refer to.
struct Shared<const ROUND: bool> {
    guarded: Mutex<Guarded<ROUND>>,
    unit_shift: u32,
}

/// The model; `ROUND` says whether sizes are rounded up to bins.
pub struct Model<const ROUND: bool>(Arc<Shared<ROUND>>);

/// The published allocator as it is now.
pub type Binned = Model<true>;
/// The published allocator before sizes were rounded.
pub type BinnedUnrounded = Model<false>;

/// A live range: 40 bytes, as published.
pub struct Handle<const ROUND: bool> {
    owner: Weak<Shared<ROUND>>,
    /// A weak pointer of the original is two words wide, ours is one. This is the other, so that a table of handles
    /// weighs what theirs weighs.
    _second_word: usize,
    offset: u32,
    node: u32,
    base: u64,
    size: u64,
}

impl<const ROUND: bool> Held for Handle<ROUND> {
    #[inline]
    fn offset(&self) -> u64 {
        self.base
    }

    #[inline]
    fn size(&self) -> u64 {
        self.size
    }
}

impl<const ROUND: bool> Drop for Handle<ROUND> {
    #[inline]
    fn drop(&mut self) {
        if let Some(owner) = self.owner.upgrade() {
            let mut guarded = owner.guarded.lock().unwrap_or_else(PoisonError::into_inner);
            debug_assert_eq!(guarded.heap.nodes[self.node as usize].offset, self.offset);
            guarded.heap.free(self.node);
            guarded.live_bytes -= self.size;
            guarded.live -= 1;
        }
    }
}

impl<const ROUND: bool> Contender for Model<ROUND> {
    const ID: ContenderId = if ROUND { ContenderId::Binned } else { ContenderId::BinnedUnrounded };
    type Handle = Handle<ROUND>;

    fn create(space: Space) -> Result<Self, CreateError> {
        let refuse = |reason: &str| CreateError {
            contender: Self::ID,
            capacity: space.capacity,
            reason: reason.into(),
        };
        if space.capacity == 0 {
            return Err(refuse("an empty space"));
        }
        let mut unit_shift = 0;
        while space.capacity >> unit_shift > MAX_BIN_SIZE {
            unit_shift += 1;
        }
        // One node for each object and each hole between two, and one at the end of the stack that is never used.
        let max_nodes = u32::try_from(space.max_live.saturating_mul(2).saturating_add(2))
            .ok()
            .filter(|&n| n < NONE)
            .ok_or_else(|| refuse("node indices are 32 bits wide"))?;
        let heap = Heap::new((space.capacity >> unit_shift) as u32, max_nodes);
        let guarded = Mutex::new(Guarded { heap, live_bytes: 0, live: 0 });
        Ok(Self(Arc::new(Shared { guarded, unit_shift })))
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<Handle<ROUND>> {
        if size == 0 {
            return None;
        }
        let shared = &self.0;
        let mut guarded = shared.guarded.lock().unwrap_or_else(PoisonError::into_inner);
        let units = size.checked_add((1 << shared.unit_shift) - 1)? >> shared.unit_shift;
        if units > MAX_BIN_SIZE {
            return None;
        }
        let (offset, node) = guarded.heap.allocate(units as u32)?;
        guarded.live_bytes += size;
        guarded.live += 1;
        drop(guarded);
        let base = u64::from(offset) << shared.unit_shift;
        Some(Handle { owner: Arc::downgrade(shared), _second_word: 0, offset, node, base, size })
    }

    fn metadata_bytes(&self) -> Option<u64> {
        // Tables as the live set of now would need them: they are sized for the most that may ever be live.
        let guarded = self.0.guarded.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes = guarded.heap.nodes.len() - guarded.heap.spare_len;
        let per_node = size_of::<Node>() + size_of::<u32>();
        Some((size_of::<Shared<ROUND>>() + nodes * per_node) as u64)
    }
}
