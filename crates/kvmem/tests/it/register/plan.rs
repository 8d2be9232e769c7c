//! Plans: for any mix of pages, limits and options, every registrar gets every byte exactly once,
//! within its limits, on page boundaries.

use std::num::NonZeroUsize;
use std::ops::Range;

use kvmem::arena::{PageSize, Populate, Receipt, Region};
use kvmem::register::{
    Account, CalibrationPlan, Limits, Memlock, Plan, PlanOptions, Policy, RegisterError,
    RegisterLimit, RegistrationSet, plan,
};
use proptest::prelude::*;

/// Returns a receipt for these segments: their page size, their length in pages, and how many of
/// these are resident.
fn receipt(segments: &[(PageSize, usize, usize)]) -> Receipt {
    let mut ranges = Vec::new();
    let mut at = 0;
    for (page, pages, resident) in segments {
        let len = pages * page.bytes();
        ranges.push(serde_json::json!({
            "range": { "start": at, "end": at + len }, "requested": page, "obtained": page,
            "nodes": [],
            "resident_bytes": resident * page.bytes(), "resident_error_bytes": 0,
            "huge_bytes": null, "seconds": 0.0, "gib_per_s": 0.0, "fallbacks": [],
        }));
        at += len;
    }
    let receipt = serde_json::json!({
        "requested_bytes": at, "mapped_bytes": at, "usable_bytes": at, "backing": "private",
        "policy_verified": false,
        "threads": 0, "ranges": ranges,
    });
    serde_json::from_value(receipt).expect("the shape of a receipt")
}

fn nics(count: usize, max_bytes: u64) -> Vec<Limits> {
    (0..count).map(|nic| Limits { max_bytes, ..Limits::none(format!("nic:{nic}")) }).collect()
}

/// Returns the page size at an offset.
fn page_at(receipt: &Receipt, offset: usize) -> PageSize {
    let part = receipt.ranges.iter().find(|part| part.range.contains(&offset));
    part.expect("an offset within").obtained
}

fn check(plan: &Plan, receipt: &Receipt, limits: &[Limits], options: &PlanOptions) {
    let len = receipt.usable_bytes;
    let cap = |limits: &Limits| {
        let wanted = options.chunk_bytes.or(limits.preferred_chunk_bytes).unwrap_or(u64::MAX);
        wanted.min(limits.max_bytes)
    };
    let least = limits.iter().map(cap).min().expect("a registrar");
    let finest: Vec<usize> = plan
        .devices
        .iter()
        .map(|device| device.chunks.iter().map(|chunk| chunk.end).collect::<Vec<_>>())
        .max_by_key(Vec::len)
        .expect("a device");
    assert_eq!(plan.devices.len(), limits.len());
    for (device, limits) in plan.devices.iter().zip(limits) {
        assert_eq!(device.device, limits.device);
        assert!(device.chunks.len() as u64 <= limits.max_keys);
        let mut end = 0;
        for chunk in &device.chunks {
            assert_eq!(chunk.start, end, "no gap, no overlap");
            assert!(
                !chunk.is_empty() && chunk.len() as u64 <= cap(limits),
                "{chunk:?} within {limits:?}"
            );
            end = chunk.end;
        }
        assert_eq!(end, len, "the whole region is covered");
        for edge in device.chunks.iter().skip(1).map(|chunk| chunk.start) {
            let (page, base) = (page_at(receipt, edge).bytes(), PageSize::Base.bytes());
            let unit = [page, base, 1]
                .into_iter()
                .find(|unit| *unit as u64 <= least)
                .expect("one byte fits");
            assert!(edge.is_multiple_of(unit), "edge {edge:#x} on a boundary of {unit}");
            assert!(
                finest.binary_search(&edge).is_ok(),
                "edge {edge:#x} is one of the finest registrar's"
            );
            let boundary = plan.boundary_bytes.expect("there are edges");
            assert!((edge as u64).is_multiple_of(boundary));
        }
    }
    if finest.len() == 1 {
        assert_eq!(plan.boundary_bytes, None);
    }

    let whole = |part: &Range<usize>| {
        receipt.ranges.iter().find(|range| range.range.start == part.start).is_some()
            && receipt.ranges.iter().any(|range| range.range.end == part.end)
    };
    let absent: usize = receipt
        .ranges
        .iter()
        .filter(|part| part.resident_bytes < part.range.len() as u64)
        .map(|part| part.range.len())
        .sum();
    let populated: usize = plan.populate.iter().map(Range::len).sum();
    let unpopulated = options.policy == Policy::Sequential || options.populate == Populate::None;
    assert_eq!(populated, if unpopulated { 0 } else { absent });
    assert!(plan.populate.iter().all(whole));
    assert!(
        plan.populate.windows(2).all(|pair| pair[0].end < pair[1].start),
        "disjoint, merged, in order"
    );
    assert_eq!(plan.populate_threads == 0, plan.populate.is_empty());
    assert!(plan.populate_threads <= options.cores);

    assert!((1..=limits.len()).contains(&plan.threads));
    match options.policy {
        Policy::Sequential => assert_eq!(plan.threads, 1),
        _ if unpopulated && absent > 0 => {
            assert_eq!(plan.threads, 1, "untouched memory is registered by one registrar at a time")
        }
        Policy::Parallel(threads) => assert_eq!(plan.threads, threads.get().min(limits.len())),
        Policy::Auto => {
            assert!(
                plan.threads <= options.cores && (plan.calibration.is_some() == (plan.threads > 1))
            )
        }
    }
    let shortest = plan.devices.iter().map(|device| device.chunks.len()).min().expect("a device");
    match plan.calibration {
        Some(CalibrationPlan::Chunks { rounds }) => {
            assert!(2 * rounds <= shortest && !options.by_range)
        }
        Some(CalibrationPlan::Slices { slice_bytes, .. }) => {
            assert!(plan.devices.iter().all(|device| slice_bytes <= device.chunks[0].len() as u64));
            assert!(slice_bytes * 24 <= plan.len_bytes * limits.len() as u64);
        }
        _ => {}
    }
    assert_eq!(plan.steps.first().map(|step| step.start), Some(0));
    assert_eq!(plan.steps.last().map(|step| step.end), Some(len));
    assert!(plan.steps.windows(2).all(|pair| pair[0].end == pair[1].start));
    assert_eq!(plan.steps.len(), if options.by_range { finest.len() } else { 1 });

    let json = serde_json::to_string(plan).expect("plain data");
    let mut read: Plan = serde_json::from_str(&json).expect("what was written");
    // The last digit of the estimate may differ.
    read.estimate = plan.estimate;
    assert_eq!(read, *plan);
    let shown = plan.to_string();
    assert!(limits.iter().all(|limits| shown.contains(&limits.device)), "{shown}");
}

fn segments() -> impl Strategy<Value = Vec<(PageSize, usize, usize)>> {
    // Large pages first, as regions are mapped; at most one segment of each page size.
    let count = |max: usize| (0..max).prop_flat_map(|pages| (Just(pages), 0..=pages));
    (count(3), count(1200), count(700), count(3000)).prop_filter_map(
        "no bytes",
        |(giant, huge, thp, base)| {
            let kinds = [PageSize::Huge1G, PageSize::Huge2M, PageSize::Thp, PageSize::Base];
            let all = kinds.into_iter().zip([giant, huge, thp, base]);
            let all: Vec<_> = all
                .filter(|(_, (pages, _))| *pages > 0)
                .map(|(page, (pages, there))| (page, pages, there))
                .collect();
            (!all.is_empty()).then_some(all)
        },
    )
}

/// Byte limits from a few pages to none, round numbers and others.
fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        (16..40u32).prop_map(|bits| 1 << bits),
        (1u64 << 20..1 << 34),
        Just((4 << 30) - 1),
        Just(u64::MAX),
    ]
}

fn limits() -> impl Strategy<Value = Vec<Limits>> {
    prop::collection::vec((bytes(), prop::option::of(bytes())), 1..9).prop_map(|all| {
        let named = all.into_iter().enumerate();
        named
            .map(|(nic, (max_bytes, preferred_chunk_bytes))| Limits {
                max_bytes,
                preferred_chunk_bytes,
                ..Limits::none(format!("nic:{nic}"))
            })
            .collect()
    })
}

fn options() -> impl Strategy<Value = PlanOptions> {
    let policy = prop_oneof![
        Just(Policy::Sequential),
        Just(Policy::Auto),
        (1..12usize).prop_map(Policy::parallel),
        Just(Policy::all_at_once()),
    ];
    let populate = prop_oneof![
        Just(Populate::Auto),
        Just(Populate::None),
        (1..9usize).prop_map(Populate::threads),
    ];
    (policy, 1..129usize, populate, prop::option::weighted(0.3, bytes()), any::<bool>()).prop_map(
        |(policy, cores, populate, chunk_bytes, by_range)| PlanOptions {
            populate,
            chunk_bytes,
            by_range,
            ..PlanOptions::new(policy, cores)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_covers_every_byte_once_within_all_limits(
        segments in segments(), limits in limits(), options in options()
    ) {
        let receipt = receipt(&segments);
        let plan = plan(&receipt, &limits, &options).expect("no limit is hit");
        check(&plan, &receipt, &limits, &options);
    }
}

#[test]
fn chunks_are_as_large_as_they_may_be() {
    let region = receipt(&[(PageSize::Huge2M, 4096, 4096)]);
    let chunks = |limits: &[Limits], options: &PlanOptions| -> Vec<usize> {
        let plan = plan(&region, limits, options).expect("no limit is hit");
        plan.devices.iter().map(|device| device.chunks.len()).collect()
    };
    let options = PlanOptions::new(Policy::Auto, 2);
    // One key for everything, unless the device, its preferred length, or the user requires smaller
    // chunks.
    assert_eq!(chunks(&nics(2, u64::MAX), &options), [1, 1]);
    assert_eq!(chunks(&nics(2, 1 << 30), &options), [8, 8]);
    let picky =
        [Limits { preferred_chunk_bytes: Some(128 << 20), ..Limits::none("a") }, Limits::none("b")];
    assert_eq!(chunks(&picky, &options), [64, 1]);
    let chunked = PlanOptions { chunk_bytes: Some(2 << 30), ..options.clone() };
    assert_eq!(chunks(&picky, &chunked), [4, 4]);
    // An odd limit is rounded down to whole pages.
    assert_eq!(chunks(&nics(1, (4 << 30) - 1), &options), [3]);
    assert_eq!(chunks(&nics(1, 3 << 20), &options), [4096], "one page a chunk");
    assert_eq!(chunks(&nics(1, 1 << 20), &options), [8192], "less than a hugepage: on base pages");
}

#[test]
fn limits_are_compared_with_the_need_by_the_plan() {
    let region = receipt(&[(PageSize::Base, 4096, 0)]);
    let options = PlanOptions::new(Policy::Auto, 2);
    let keys = [Limits { max_bytes: 1 << 20, max_keys: 15, ..Limits::none("mlx5_0") }];
    let error = plan(&region, &keys, &options).unwrap_err();
    let exceeded = RegisterLimit::Keys { limit: 15, need: 16 };
    assert_eq!(error, RegisterError::Limited { device: "mlx5_0".to_owned(), exceeded });

    let memlock =
        |account, limit_bytes| Some(Memlock { account, limit_bytes, used_bytes: 1 << 20 });
    let mut limits = nics(3, u64::MAX);
    limits[0].memlock = memlock(Account::Rings, 40 << 20);
    limits[1].memlock = memlock(Account::Pinned, 17 << 20);
    plan(&region, &limits, &options).expect("16 MiB of 16 and of 39");
    // Two rings share an account.
    limits[1].memlock = memlock(Account::Rings, 32 << 20);
    let error = plan(&region, &limits, &options).unwrap_err();
    let text = error.to_string();
    for part in [
        "nic:0, nic:1",
        "RLIMIT_MEMLOCK is 33554432",
        "33554432 more",
        "33792 KiB",
        "ulimit -l",
        "CAP_IPC_LOCK",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }

    assert_eq!(plan(&region, &[], &options).unwrap_err(), RegisterError::NoRegistrars);
    let twins = [Limits::none("a"), Limits::none("b"), Limits::none("a")];
    let error = RegisterError::SameName { device: "a".to_owned() };
    assert_eq!(plan(&region, &twins, &options).unwrap_err(), error);
    assert_eq!(plan(&receipt(&[]), &nics(1, 1), &options).unwrap_err(), RegisterError::Empty);
    // A request for a billion keys fails before it fills the memory.
    let chunked = PlanOptions { chunk_bytes: Some(1), ..options };
    let huge = receipt(&[(PageSize::Huge1G, 1024, 0)]);
    assert!(matches!(
        plan(&huge, &nics(8, u64::MAX), &chunked),
        Err(RegisterError::Limited { .. })
    ));
}

#[test]
fn a_tebibyte_is_planned() {
    let region = receipt(&[(PageSize::Huge2M, 1 << 19, 1 << 19)]);
    let rings: Vec<Limits> = (0..8)
        .map(|ring| Limits {
            max_bytes: 1 << 30,
            max_keys: 1 << 14,
            preferred_chunk_bytes: Some(128 << 20),
            ..Limits::none(format!("io_uring:{ring}"))
        })
        .collect();
    let plan = plan(&region, &rings, &PlanOptions::new(Policy::Auto, 64)).expect("no limit is hit");
    assert_eq!(plan.keys(), 8 * 8192);
}

#[test]
fn memory_at_any_address_is_divided_on_page_boundaries() {
    // The middle of a foreign buffer, 100 bytes after a page boundary.
    let page = PageSize::Base.bytes();
    let mut buffer = vec![0u8; 64 * page].into_boxed_slice();
    let skew = buffer.as_ptr().addr().next_multiple_of(page) - buffer.as_ptr().addr() + 100;
    let at = std::ptr::NonNull::new(&raw mut buffer[skew]).expect("a place in a buffer");
    // SAFETY: the region owns the buffer, and nothing else uses its bytes.
    let region = unsafe { Region::from_raw(at, 40 * page, buffer) }.expect("a valid range");
    let plan = RegistrationSet::builder()
        .registrar(super::fake::Fake::new(
            "nic",
            Limits { max_bytes: 8 * page as u64, ..Limits::none("nic") },
        ))
        .plan(&region)
        .expect("no limit is hit");
    let chunks = &plan.devices[0].chunks;
    assert_eq!((chunks.len(), chunks[0].clone()), (6, 0..8 * page - 100));
    assert!(
        chunks
            .iter()
            .skip(1)
            .all(|chunk| (region.base().addr().get() + chunk.start).is_multiple_of(page))
    );
}

#[test]
fn a_part_of_a_region_is_planned_by_its_own_offsets() {
    let region = Region::builder(8 << 20).ladder(PageSize::Base).map().expect("a little memory");
    let (_, part) = region.split_at((4 << 20) + 4096).expect("within");
    let limits = Limits { max_bytes: 1 << 20, ..Limits::none("nic") };
    let builder = RegistrationSet::builder().registrar(super::fake::Fake::new("nic", limits));
    let plan =
        builder.policy(Policy::Parallel(NonZeroUsize::MIN)).plan(&part).expect("no limit is hit");
    assert_eq!(plan.len_bytes, (4 << 20) - 4096);
    assert_eq!(plan.populate, std::slice::from_ref(&(0..(4 << 20) - 4096)));
    assert_eq!(plan.devices[0].chunks.len(), 4);
}
