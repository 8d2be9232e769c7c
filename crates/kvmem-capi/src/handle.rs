//! *Handle*: the bits by which a program names an object.
//!
//! A caller may pass NULL, a destroyed handle, a handle of another type, or any other bits. A
//! handle is therefore not an address but a number in the type of a pointer:
//!
//! ```text
//!   63 62 | 61       60     | 59..54 | 53..24     | 23..0
//!    1  1 | poisoned closed | kind   | generation | slot
//! ```
//!
//! Its bits 63 and 61 differ, so no processor accepts it as an address: a program that dereferences
//! it faults at once. The two upper flags are 0 in a handle. They occur only in the
//! [table](crate::table).

/// The bits of the slot.
pub(crate) const SLOT_BITS: u32 = 24;
/// The bits of the generation.
pub(crate) const GENERATION_BITS: u32 = 30;
/// The position of the type of object.
pub(crate) const KIND_SHIFT: u32 = SLOT_BITS + GENERATION_BITS;
/// The bits of the type of object, in their lowest position.
const KIND_MASK: u64 = 0x3f;
/// The two upper bits, which every handle has.
pub(crate) const MARK: u64 = 0b11 << 62;
/// In a slot: a call on the object has panicked.
pub(crate) const POISONED: u64 = 1 << 61;
/// In a slot: the handle is no longer valid, but the object exists.
pub(crate) const CLOSED: u64 = 1 << 60;
/// In a slot: the object belongs to the parent of this process.
pub(crate) const FORKED: u64 = POISONED | CLOSED;

/// Makes the types of objects and their names.
macro_rules! kinds {
    ($($name:ident)*) => {
        /// The type of object that a handle names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Kind {
            $($name,)*
        }

        /// The names, in order.
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

kinds! {
    kvmem_region
    kvmem_bump_arena
    kvmem_registrars
    kvmem_registration
    kvmem_background_registration
    kvmem_offset_allocator
    kvmem_slab_allocator
    kvmem_pool
    kvmem_attached_pool
    kvmem_kv_cache
    kvmem_kv_cache_pin
    kvmem_kv_cache_reservation
    kvmem_cancel
    kvmem_disk_tier
    kvmem_lower_tier
    kvmem_kv_cache_fetching
    kvmem_node_client
    kvmem_node_pins
    kvmem_node_reservation
}

impl Kind {
    /// Returns the bits of the type in a handle. The type of no object has the number 0.
    pub(crate) const fn bits(self) -> u64 {
        MARK | (self as u64 + 1) << KIND_SHIFT
    }

    /// Returns the name of the type, if the bits have the form of a handle.
    pub(crate) fn of(bits: u64) -> Option<&'static str> {
        let kind = (bits >> KIND_SHIFT & KIND_MASK) as usize;
        let name = NAMES.get(kind.checked_sub(1)?).copied();
        name.filter(|_| bits & (MARK | POISONED | CLOSED) == MARK)
    }
}
