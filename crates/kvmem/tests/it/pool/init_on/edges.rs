//! Calls that fail, forked children, quarantine, pools that outlive or are outlived.

use std::time::Duration;

use kvmem::pool::InitOn;

use super::super::MIB;
use super::{View, builder, free_ranges};
use crate::child::forked;

const BOTH: [InitOn; 2] = [InitOn::Alloc, InitOn::Free];

#[test]
fn a_new_block_has_zeros_whatever_its_length() {
    for init_on in BOTH {
        let pool = builder(4 * MIB, init_on).build().expect("little memory");
        for len in [1, 100, 4096, 65_535, 65_536, 65_537, 1_000_003, 4 * MIB] {
            for _ in 0..3 {
                let mut block = pool.allocate(len).expect("room");
                let kept = block.bytes().iter().position(|byte| *byte != 0);
                assert_eq!(kept, None, "{init_on}: {len}");
                block.bytes_mut().fill(7);
            }
        }
    }
}

#[test]
fn the_report_names_the_choice() {
    for init_on in BOTH {
        let report = builder(MIB, init_on).build().expect("little memory").report();
        let choice = report.choices.iter().find(|choice| choice.what == "init on");
        assert_eq!(choice.expect("a choice").chosen, init_on.to_string());
        assert!(report.to_string().contains("bytes are set to zero"), "{report}");
    }
    let report = builder(MIB, InitOn::default()).build().expect("little memory").report();
    assert!(report.choices.iter().all(|choice| choice.what != "init on"));
}

#[test]
fn a_call_that_fails_for_its_argument_keeps_the_bytes() {
    for init_on in BOTH {
        let pool = builder(MIB, init_on).build().expect("little memory");
        let mut block = pool.allocate(10_000).expect("room");
        block.bytes_mut().fill(9);
        assert!(block.shrink(0).is_err() && block.shrink(10_001).is_err());
        for range in [5..5, 9_999..10_001, 20_000..30_000] {
            block = block.free_range(range).expect_err("not a part").0;
        }
        assert!(block.extend(2 * MIB).is_err() && block.extend(9_999).is_err());
        assert!(block.bytes().iter().all(|byte| *byte == 9), "{init_on}");

        let raw = pool.make_raw(block).expect("its own");
        assert!(
            pool.shrink_raw(raw.handle, 0).is_err() && pool.shrink_raw(raw.handle, MIB).is_err()
        );
        assert!(pool.extend_raw(raw.handle, 2 * MIB).is_err());
        let block = pool.adopt_raw(raw.handle).expect("it is live");
        assert!(pool.free_raw(raw.handle).is_err() && pool.shrink_raw(raw.handle, 1).is_err());
        assert!(block.bytes().iter().all(|byte| *byte == 9), "{init_on}");
    }
}

#[test]
fn a_forked_child_frees_blocks_without_touching_them() {
    for init_on in BOTH {
        let pool = builder(MIB, init_on).build().expect("little memory");
        let mut blocks = pool.allocate_batch(50_000, 4).expect("room");
        blocks.iter_mut().for_each(|block| block.bytes_mut().fill(3));
        let raw = pool.allocate_raw(1000).expect("room");
        let mut own: Vec<_> = blocks.drain(..2).collect();
        let status = forked(|| {
            // The child has no memory at these addresses: a touch would end it by a signal.
            drop(own.pop());
            let kept = own[0].shrink(10).is_ok() && own[0].extend(20).is_ok();
            let freed = pool.free_raw(raw.handle).is_ok() && pool.allocate(30_000).is_ok();
            i32::from(!(kept && freed))
        });
        assert_eq!(status, 0, "{init_on}");
        assert!(blocks.iter().chain(&own).all(|block| block.bytes().iter().all(|byte| *byte == 3)));
    }
}

#[test]
fn a_block_in_quarantine_is_never_touched_again() {
    let pool = builder(MIB, InitOn::Free).build().expect("little memory");
    let view = View::of(&pool);
    let mut bad = pool.allocate(100_000).expect("room");
    bad.bytes_mut().fill(0xbb);
    let range = bad.range();
    pool.quarantine_block(bad, "a device reported it");
    drop(pool);
    assert!(view.bytes(range).iter().all(|byte| *byte == 0xbb));
}

#[test]
fn nothing_is_left_when_the_pool_ends() {
    let pool = builder(MIB, InitOn::Free).build().expect("little memory");
    let view = View::of(&pool);
    let mut last = pool.allocate(70_000).expect("room");
    last.bytes_mut().fill(1);
    let raw = pool.allocate_raw(70_000).expect("room");
    view.fill(raw.offset..raw.offset + raw.size, 2);
    drop(pool);
    // The raw block ended with the pool; the other one outlives it.
    assert_eq!(view.first_kept(raw.offset..raw.offset + raw.size), None);
    assert!(last.bytes().iter().all(|byte| *byte == 1));
    drop(last);
    assert_eq!(view.first_kept_of_all(), None);
}

#[test]
fn parts_become_ready_and_come_back_with_zeros() {
    for init_on in BOTH {
        let pool = builder(MIB, init_on)
            .boundary(256 << 10)
            .max_size(2 * MIB)
            .in_background(true)
            .build()
            .expect("little memory");
        assert_eq!(pool.wait_ready(u64::MAX, Duration::from_secs(60)), MIB as u64);
        let view = View::of(&pool);
        for _ in 0..3 {
            pool.grow_to(2 * MIB as u64).expect("room");
            let mut blocks = pool.allocate_batch(128 << 10, 16).expect("all of it");
            for block in &mut blocks {
                assert!(block.bytes().iter().all(|byte| *byte == 0), "{init_on}: {block:?}");
                block.bytes_mut().fill(4);
            }
            drop(blocks);
            pool.shrink_to(256 << 10).expect("nothing is in use");
        }
        if init_on == InitOn::Free {
            assert!(free_ranges(&pool).into_iter().all(|free| view.first_kept(free).is_none()));
        }
    }
}
