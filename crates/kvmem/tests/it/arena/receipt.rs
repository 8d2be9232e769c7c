//! The receipt matches the memory.

use std::num::NonZeroUsize;

use super::{MIB, base, ordinary, page, thp_works};
use kvmem::arena::{
    ArenaError, Backing, Fallback, Ladder, Numa, PageSize, Populate, Receipt, Region,
};

#[test]
fn of_populated_base_pages() {
    let region = base(5 * MIB + 1).populate(Populate::threads(1)).map().expect("little memory");
    let receipt = region.receipt();
    assert_eq!(receipt.backing, Some(Backing::Private));
    assert_eq!(receipt.threads, 1);
    let [part] = &receipt.ranges[..] else { panic!("{receipt:?}") };
    assert_eq!(
        (part.range.clone(), part.requested, part.obtained),
        (0..region.len(), PageSize::Base, PageSize::Base)
    );
    assert_eq!((part.resident_bytes, part.resident_error_bytes), (region.len() as u64, 0));
    assert!(part.huge_bytes.is_none_or(|huge| huge == 0), "{receipt:?}");
    assert!(part.seconds > 0.0 && part.gib_per_s > 0.0);
    assert!(part.fallbacks.is_empty());
}

#[test]
fn of_hugepages_and_a_tail() {
    if !thp_works() {
        return println!("skipped: transparent hugepages are off");
    }
    let region = ordinary(4 * MIB + 1).populate(Populate::Auto).map().expect("little memory");
    let [huge, tail] = &region.receipt().ranges[..] else { panic!("{:?}", region.receipt()) };
    assert_eq!((huge.range.clone(), huge.obtained), (0..4 * MIB, PageSize::Thp));
    match huge.huge_bytes {
        // Bytes that are not in hugepages have a reason.
        Some(bytes) if bytes < 4 << 20 => {
            assert_eq!(huge.fallbacks, [Fallback::ThpPartial { huge: bytes, wanted: 4 << 20 }]);
        }
        _ => assert!(huge.fallbacks.is_empty()),
    }
    assert_eq!((tail.range.clone(), tail.obtained), (4 * MIB..4 * MIB + page(), PageSize::Base));
    assert_eq!(tail.fallbacks, [Fallback::Tail { page: PageSize::Thp }]);
    assert_eq!(region.receipt().resident_bytes(), region.len() as u64);
    assert_eq!(region.page_at(0), Some(PageSize::Thp));
    assert_eq!(region.page_at(4 * MIB), Some(PageSize::Base));
    assert_eq!(region.page_at(region.len()), None);
}

#[test]
fn of_a_numa_policy() {
    for numa in [Numa::Bind(vec![0]), Numa::Interleave(vec![0, 0])] {
        let mapped = ordinary(4 * MIB).numa(numa.clone()).populate(Populate::threads(2)).map();
        let region = match mapped {
            Ok(region) => region,
            Err(error @ ArenaError::PolicyFailed { .. }) => return println!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        };
        let receipt = region.receipt();
        assert!(receipt.policy_verified);
        if matches!(numa, Numa::Bind(_)) {
            assert!(
                receipt.ranges.iter().all(|part| part.nodes.0.iter().all(|node| *node == 0)),
                "{receipt}"
            );
        }
    }
    assert!(!base(MIB).map().expect("little memory").receipt().policy_verified);
}

#[test]
fn as_text_and_as_json() {
    let region = ordinary(2 * MIB + 1)
        .populate(Populate::Threads(NonZeroUsize::MIN))
        .map()
        .expect("little memory");
    let receipt = region.receipt();
    let json = serde_json::to_string(receipt).expect("plain data");
    let mut read = serde_json::from_str::<Receipt>(&json).expect("valid JSON");
    for (read, written) in read.ranges.iter_mut().zip(&receipt.ranges) {
        // The parser may differ in the last bit of a fraction.
        for (read, written) in
            [(&mut read.seconds, written.seconds), (&mut read.gib_per_s, written.gib_per_s)]
        {
            assert!((*read - written).abs() <= written * 1e-15, "{read} for {written}");
            *read = written;
        }
    }
    assert_eq!(&read, receipt);
    let text = receipt.to_string();
    assert!(
        text.starts_with("requested 2.0 MiB, mapped 2.0 MiB, usable 2.0 MiB, private; "),
        "{text}"
    );
    assert!(text.contains("shorter than one thp page") || !thp_works(), "{text}");
    assert!(text.contains("populated in "), "{text}");
}

#[test]
fn strict_hugepages_are_all_or_nothing() {
    let map = || {
        Region::builder(8 * MIB).ladder(Ladder::only(PageSize::Thp)).populate(Populate::Auto).map()
    };
    match map() {
        Ok(region) => {
            let [part] = &region.receipt().ranges[..] else { panic!("{:?}", region.receipt()) };
            assert!(part.huge_bytes.is_none_or(|huge| huge == 8 << 20), "{part:?}");
        }
        Err(ArenaError::NoPages { page: PageSize::Thp, reason, .. }) => {
            assert!(
                matches!(reason, Fallback::ThpOff { .. } | Fallback::ThpPartial { .. }),
                "{reason}"
            );
        }
        Err(error) => panic!("{error}"),
    }
}
