//! Random requests, compared with the same arithmetic in numbers that cannot overflow.

use kvmem::arena::{BumpArena, BumpError};
use proptest::prelude::*;

use super::{Reservation, figures};

#[derive(Clone, Debug)]
enum Op {
    Alloc {
        size: usize,
        align: usize,
    },
    /// The remaining bytes at this alignment, plus or minus a few.
    Rest {
        align: usize,
        more: isize,
    },
    Reset,
}

fn sizes() -> impl Strategy<Value = usize> {
    let max = isize::MAX as usize;
    prop_oneof![
        10 => 0usize..300,
        5 => (0u32..40, -2isize..=2)
            .prop_map(|(shift, more)| (1usize << shift).wrapping_add_signed(more)),
        1 => (0usize..4).prop_map(move |less| max - less),
        1 => (0usize..4).prop_map(move |more| max.wrapping_add(more)),
        1 => (0usize..4).prop_map(|less| usize::MAX - less),
        1 => any::<usize>(),
    ]
}

fn aligns() -> impl Strategy<Value = usize> {
    prop_oneof![
        10 => (0u32..14).prop_map(|shift| 1usize << shift),
        3 => (0u32..64).prop_map(|shift| 1usize << shift),
        1 => 0usize..20,
        1 => any::<usize>(),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        20 => (sizes(), aligns()).prop_map(|(size, align)| Op::Alloc { size, align }),
        2 => (0u32..20, -2isize..=2).prop_map(|(shift, more)| Op::Rest { align: 1 << shift, more }),
        1 => Just(Op::Reset),
    ];
    prop::collection::vec(op, 1..60)
}

/// Returns the expected address, or the expected error.
fn expected(
    base: usize,
    used: usize,
    capacity: usize,
    size: usize,
    align: usize,
) -> Result<usize, BumpError> {
    if !align.is_power_of_two() {
        return Err(BumpError::BadAlign { align });
    }
    if size == 0 {
        return Err(BumpError::Zero);
    }
    let (wide_size, wide_align) = (size as u128, align as u128);
    if wide_size.next_multiple_of(wide_align) > isize::MAX as u128 {
        return Err(BumpError::Overflow { requested: size, align });
    }
    let start = ((base + used) as u128).next_multiple_of(wide_align);
    let limit = (base + capacity) as u128;
    if start + wide_size > limit {
        return Err(BumpError::Full {
            requested: size,
            remaining: limit.saturating_sub(start) as usize,
        });
    }
    Ok(start as usize)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn results_match_the_arithmetic(
        capacity in prop_oneof![1usize..5000, (12u32..36).prop_map(|shift| 1usize << shift)],
        skip in 0usize..4096,
        ops in ops(),
    ) {
        let mut arena = BumpArena::new(Reservation::new(capacity, skip));
        let base = arena.base().addr().get();
        let mut used = 0;
        for op in ops {
            let (size, align) = match op {
                Op::Reset => {
                    arena.reset();
                    used = 0;
                    continue;
                }
                Op::Alloc { size, align } => (size, align),
                Op::Rest { align, more } => {
                    let start = (base + used).next_multiple_of(align);
                    let remaining = (base + capacity).saturating_sub(start);
                    (remaining.saturating_add_signed(more), align)
                }
            };
            let due = expected(base, used, capacity, size, align);
            let got = arena.allocate_bytes(size, align);
            let got = got.map(|bytes| (bytes.cast::<u8>().addr().get(), bytes.len()));
            prop_assert_eq!(got, due.map(|at| (at, size)));
            if let Ok(at) = due {
                used = at + size - base;
            }
            if let Err(BumpError::Full { requested, remaining }) = due {
                prop_assert!(remaining < requested);
            }
            let remaining = capacity - used;
            prop_assert_eq!(figures(arena.stats()), (capacity, used, remaining));
        }
    }
}
