//! *Slot length*: how long the slots of a small space are.
//!
//! In a space that holds a handful of objects of slightly different sizes, no two holes are alike,
//! and chance decides whether the last object fits. There the policy divides the space into slots
//! of the largest recent size. An object is put at the start of a free slot if there is one, and is
//! placed like any other if not.

/// Upper bound of the objects in a space that uses slots.
pub(super) const SLOTS_MAX: u64 = 20;
/// Upper bound of the number of different sizes that count as exact sizes.
const EXACT_SIZES: usize = 8;

/// Returns the slot length that the recent large sizes suggest, or 0. `before` is the length until
/// now.
pub(super) fn slot_length(large: impl Iterator<Item = u64> + Clone, before: u64) -> u64 {
    let (Some(min), Some(max)) = (large.clone().min(), large.clone().max()) else { return 0 };
    if max > min + min / 4 {
        return 0;
    }
    // A few exact sizes find exact holes; slots would only keep them apart.
    let mut distinct = [0; EXACT_SIZES];
    let mut found = 0;
    for size in large {
        if !distinct[..found].contains(&size) {
            if found == EXACT_SIZES {
                // Keep the slots unless sizes have outgrown them or shrunk a good deal.
                return if max <= before && max > before - before / 32 { before } else { max };
            }
            distinct[found] = size;
            found += 1;
        }
    }
    0
}
