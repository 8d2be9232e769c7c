//! Sizes and alignments at every edge.

use super::{MIB, base, ordinary, page};
use kvmem::arena::{ArenaError, Ladder, Numa, PageSize, Region};

#[test]
fn sizes_round_up_to_whole_pages_and_no_further() {
    let page = page();
    for (requested, usable) in [
        (1, page),
        (page - 1, page),
        (page, page),
        (page + 1, 2 * page),
        (2 * MIB - 1, 2 * MIB),
        (2 * MIB, 2 * MIB),
        (2 * MIB + 1, 2 * MIB + page),
        (5 * MIB + 7, 5 * MIB + page),
    ] {
        for region in [base(requested), ordinary(requested)]
            .map(|builder| builder.map().expect("little memory"))
        {
            assert_eq!(
                (region.requested(), region.len(), region.mapped()),
                (requested, usable, usable)
            );
            assert_eq!(region.base().addr().get() % page, 0);
            let receipt = region.receipt();
            assert_eq!((receipt.requested_bytes, receipt.usable_bytes), (requested, usable));
            assert_eq!(receipt.ranges.iter().map(|part| part.range.len()).sum::<usize>(), usable);
        }
        // With THP and nothing below it, whole hugepages.
        let region = Region::builder(requested).ladder(PageSize::Thp).map();
        if super::thp_works() {
            let region = region.expect("little memory");
            assert_eq!(region.len(), requested.next_multiple_of(PageSize::Thp.bytes()));
            assert_eq!(region.base().addr().get() % PageSize::Thp.bytes(), 0);
        }
    }
}

#[test]
fn a_region_begins_on_a_multiple_of_the_largest_page_it_may_have() {
    for (page, size) in [(PageSize::Thp, 2 * MIB), (PageSize::Huge1G, 1 << 30)] {
        // Whether or not there are such pages: the address is right for them.
        let ladder = Ladder::new([page, PageSize::Base]);
        let region = Region::builder(3 * MIB).ladder(ladder).map().expect("little memory");
        assert_eq!(region.base().addr().get() % size, 0);
        assert_eq!(region.len(), 3 * MIB);
    }
}

#[test]
fn every_usable_byte_can_be_written_and_read() {
    for requested in [1, page(), 3 * MIB + 1] {
        let mut region = ordinary(requested).guard_pages(true).map().expect("little memory");
        let bytes = region.as_mut_bytes().expect("private memory");
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes.fill(0xa5);
        assert_eq!(bytes.iter().filter(|byte| **byte == 0xa5).count(), bytes.len());
    }
}

#[test]
fn what_cannot_be_is_an_error() {
    let map = |size| base(size).map().map(drop);
    assert_eq!(map(0), Err(ArenaError::ZeroSize));
    for size in [usize::MAX, usize::MAX - page() + 1, isize::MAX as usize, isize::MAX as usize + 1]
    {
        assert!(
            matches!(map(size), Err(ArenaError::TooLarge { requested, .. }) if requested >= size),
            "{size}"
        );
    }
    // More than any processor's address space, less than the limit of sizes.
    let error = map(1 << 60).expect_err("beyond all addresses");
    assert!(matches!(error, ArenaError::Refused { bytes, .. } if bytes >= 1 << 60), "{error}");
    let empty = Region::builder(1).ladder(Ladder::new([])).map().map(drop);
    assert_eq!(empty, Err(ArenaError::EmptyLadder));
    for backing in [false, true] {
        for size in [usize::MAX, isize::MAX as usize] {
            let error = ordinary(size).memfd(backing).map().expect_err("too large");
            assert!(matches!(error, ArenaError::TooLarge { .. }), "{error}");
        }
    }
}

#[test]
fn policies_for_nodes_that_are_not_there_are_refused() {
    let map = |numa| base(MIB).numa(numa).map().map(drop);
    assert!(matches!(map(Numa::Bind(vec![])), Err(ArenaError::NoNodes { .. })));
    assert!(matches!(map(Numa::Interleave(vec![])), Err(ArenaError::NoNodes { .. })));
    for node in [1023, 1024, u32::MAX] {
        let error = map(Numa::Bind(vec![0, node])).expect_err("no such node");
        assert!(
            matches!(error, ArenaError::NoSuchNode { node: found, .. } if found == node),
            "{error}"
        );
    }
}

#[test]
fn guards_stop_what_runs_over_the_end() {
    let page = page();
    let region = base(3 * page).guard_pages(true).map().expect("little memory");
    assert_eq!(region.mapped(), 5 * page);
    let at = region.base().addr().get();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("our own maps");
    for guard in [at - page, at + 3 * page] {
        let line = maps
            .lines()
            .find(|line| {
                let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
                let number = |text| usize::from_str_radix(text, 16).unwrap();
                (number(from)..number(to)).contains(&guard)
            })
            .expect("guards are mapped");
        assert!(line.contains(" ---p "), "{line}");
    }
}

#[test]
fn a_tebibyte_costs_nothing_before_it_is_touched() {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/smaps_rollup").expect("our own maps");
        let line = status.lines().find_map(|line| line.strip_prefix("Rss:")).expect("a figure");
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") << 10
    };
    let before = resident();
    let start = std::time::Instant::now();
    let region = ordinary(1 << 40).map().expect("addresses are plenty");
    println!("1 TiB mapped in {:?}", start.elapsed());
    assert_eq!(region.residency(..).expect("asked").resident_bytes, 0);
    assert_eq!(region.receipt().resident_bytes(), 0);
    // Other tests populate meanwhile, so this is printed; what the region itself has is asserted
    // above.
    println!("resident: {before} before, {} after", resident());
}
