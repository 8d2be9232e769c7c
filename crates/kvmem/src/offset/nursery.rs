//! *Nursery*: small objects live together at the far end of the space, and their neighbourhoods drain.
//!
//! A small object that dies late in the middle of the space splits room that large ones need. So, while small
//! requests make up a good part of the traffic, they are cut from one hole that is held back for them, the
//! nursery: a piece of about a quarter of the mean request, taken as far out as there is room. It is never
//! refilled: what dies in it joins the free ranges around, and when it is used up, the next one is opened as far
//! out as there is room then. So old pieces drain, and the small objects move outwards.

use super::bins::Hole;
use super::heap::{Grant, Heap, WALL};
use super::placement::End;
use super::table::NIL;

/// Ranges looked at from the far end when a nursery is opened.
const LOOK_BACK: usize = 256;
/// Nursery sizes are whole pages, and at most this part of the space.
const PAGE: u64 = 4096;
const PART_OF_SPACE: u64 = 64;

impl Heap {
    /// Grants a small request from the nursery; opens a new one if need be. `None`: no room for a nursery.
    pub(super) fn allocate_in_nursery(&mut self, size: u64) -> Option<Grant> {
        let fits = self.nursery != NIL && self.bins.holes[self.nursery].size >= size;
        if !fits {
            self.close_nursery();
            self.open_nursery(size)?;
        }
        self.book(size);
        let id = self.nursery;
        let hole = &mut self.bins.holes[id];
        if hole.size == size {
            let hole = self.bins.remove_held_back(id);
            self.nursery = NIL;
            self.set_used(hole.node, hole.offset);
            return Some(Grant { node: hole.node, offset: hole.offset });
        }
        hole.size -= size;
        let (node, offset) = (hole.node, hole.end());
        Some(Grant { node: self.link_used_after(node, offset), offset })
    }

    /// Holds back a piece of the outermost hole with room for it.
    fn open_nursery(&mut self, size: u64) -> Option<()> {
        let most = (self.capacity / PART_OF_SPACE).min(self.boundary);
        let want = (self.policy.mean() / 4 / PAGE * PAGE).min(most).max(size);
        let mut node = self.nodes[WALL].prev;
        for _ in 0..LOOK_BACK {
            if node == WALL {
                return None;
            }
            if let Some(id) = self.nodes[node].hole()
                && self.bins.holes[id].is_binned()
                && self.bins.holes[id].size >= want
            {
                self.hold_back(id, want);
                return Some(());
            }
            node = self.nodes[node].prev;
        }
        None
    }

    /// Makes the upper `size` bytes of the binned hole `id` the nursery.
    fn hold_back(&mut self, id: u32, size: u64) {
        let Hole { size: room, .. } = self.bins.holes[id];
        if room == size {
            self.bins.pull(id);
            self.nursery = id;
            return;
        }
        let Grant { node, offset } = self.take(id, size, End::High);
        self.allocated -= size;
        self.live -= 1;
        let held = self.bins.insert_held_back(Hole::new(offset, size, node));
        self.set_free(node, held);
        self.nursery = held;
    }

    /// Gives the nursery's hole back to the bins, joined with its free neighbours. Returns whether there was one.
    pub(super) fn close_nursery(&mut self) -> bool {
        self.settle();
        if self.nursery == NIL {
            return false;
        }
        let Hole { offset, size, node, .. } = self.bins.remove_held_back(self.nursery);
        self.nursery = NIL;
        self.release(node, offset, size);
        true
    }

    /// The size of the range that closing the nursery would yield.
    pub(super) fn nursery_joined(&self) -> u64 {
        let hole = &self.bins.holes[self.nursery];
        let node = &self.nodes[hole.node];
        let beyond = |node: u32, seam: u64| match self.nodes[node].hole() {
            Some(id) if self.bins.holes[id].is_binned() && !self.is_edge(seam) => self.bins.holes[id].size,
            _ => 0,
        };
        hole.size + beyond(node.prev, hole.offset) + beyond(node.next, hole.end())
    }
}
