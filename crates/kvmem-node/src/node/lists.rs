//! *Lists*: values that can be evicted, in the order of their last use.
//!
//! Each namespace has one list for each priority. A pinned value is in no list, so the first value
//! of a list is always a victim. The links are kept beside the entries, not in the index file.

/// No entry.
const NONE: u32 = u32::MAX;

/// The number of priorities. Values of priority 0 are evicted first.
pub(super) const PRIORITIES: usize = 4;

/// The links of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    before: u32,
    behind: u32,
}

impl Links {
    /// The links of an entry in no list.
    pub(super) const OUT: Links = Links { before: NONE, behind: NONE };
}

/// One list.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl List {
    pub(super) const EMPTY: List = List { first: NONE, last: NONE };

    /// Returns the value that was used least recently.
    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Returns all entries, in their order.
    pub(super) fn iter<'a, T: AsRef<Links>>(&self, all: &'a [T]) -> impl Iterator<Item = u32> + 'a {
        std::iter::successors(self.first(), |slot| {
            let behind = all[*slot as usize].as_ref().behind;
            (behind != NONE).then_some(behind)
        })
    }

    /// Adds an entry as the one that was used last. O(1).
    pub(super) fn push<T: AsMut<Links>>(&mut self, all: &mut [T], slot: u32) {
        *all[slot as usize].as_mut() = Links { before: self.last, behind: NONE };
        match self.last {
            NONE => self.first = slot,
            last => all[last as usize].as_mut().behind = slot,
        }
        self.last = slot;
    }

    /// Takes out an entry of this list. O(1).
    pub(super) fn unlink<T: AsMut<Links>>(&mut self, all: &mut [T], slot: u32) {
        let Links { before, behind } = std::mem::replace(all[slot as usize].as_mut(), Links::OUT);
        match before {
            NONE => self.first = behind,
            before => all[before as usize].as_mut().behind = behind,
        }
        match behind {
            NONE => self.last = before,
            behind => all[behind as usize].as_mut().before = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl AsMut<Links> for Links {
        fn as_mut(&mut self) -> &mut Links {
            self
        }
    }

    #[test]
    fn a_list_keeps_its_order() {
        let mut all = [Links::OUT; 5];
        let mut list = List::EMPTY;
        for slot in 0..5 {
            list.push(&mut all, slot);
        }
        for slot in [2, 0, 4] {
            list.unlink(&mut all, slot);
        }
        list.push(&mut all, 0);
        let mut order = Vec::new();
        while let Some(slot) = list.first() {
            list.unlink(&mut all, slot);
            order.push(slot);
        }
        assert_eq!(order, [1, 3, 0]);
        assert!(list.last == NONE);
    }
}
