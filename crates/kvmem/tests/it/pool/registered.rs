//! Registrars: every block has one key with each registrar, valid until the block is freed.

use std::ptr::NonNull;
use std::time::Duration;

use kvmem::arena::{ArenaError, CancelToken, Numa, PageSize, Populate};
use kvmem::pool::{Block, Pool, PoolError, PoolReport};
use kvmem::register::{Devices, Limits, Policy, RegisterError, RingTable};

use crate::register::fixed::Worker;

use super::fake::{Fake, live, registrars};
use super::{MIB, small};

const PART: u64 = 256 << 10;

#[test]
fn every_block_has_one_key_with_each() {
    let fakes = Fake::some(3, PART);
    let pool = small(2 * MIB).registrars(registrars(&fakes)).build().expect("little memory");
    let report = pool.report();
    assert_eq!((report.boundary_bytes, report.part_bytes), (Some(PART), PART));
    assert_eq!(report.devices, ["fake:0", "fake:1", "fake:2"]);
    assert_eq!(live(&fakes), 3 * 8);
    let registered = report.registered.as_ref().expect("it was registered");
    assert_eq!((registered.keys, registered.devices), (24, 3));
    let mut keys = std::collections::BTreeMap::new();
    let blocks: Vec<Block> = std::iter::from_fn(|| pool.allocate(70_001).ok()).collect();
    assert_eq!(blocks.len(), 8 * 3, "three in each part");
    for block in &blocks {
        let part = block.offset() / PART;
        assert_eq!(part, (block.range().end - 1) / PART, "it straddles an edge: {block:?}");
        let found = block.keys().expect("registered");
        assert_eq!(
            found.iter().map(|(device, _)| device.as_str()).collect::<Vec<_>>(),
            report.devices
        );
        assert_eq!(block.key("fake:1").expect("registered"), found[1].1);
        assert_eq!(block.sub(5..70_001).expect("within").keys().expect("registered"), found);
        // All blocks of a part have the same keys; no two parts share a key.
        assert_eq!(keys.entry(part).or_insert_with(|| found.clone()), &found);
    }
    let distinct: std::collections::BTreeSet<u64> =
        keys.values().map(|found| found[0].1.handle).collect();
    assert_eq!(distinct.len(), 8);
    let error = blocks[0].key("mlx5_7").unwrap_err();
    let PoolError::Register(error) = error else { panic!("{error}") };
    assert!(matches!(*error, RegisterError::NoSuchDevice { .. }), "{error}");
}

#[test]
fn keys_stay_as_long_as_a_block() {
    let fakes = Fake::some(2, PART);
    let pool = small(MIB).registrars(registrars(&fakes)).build().expect("little memory");
    let block = pool.allocate(100).expect("room");
    let key = block.key("fake:0").expect("registered");
    drop(pool);
    assert_eq!(live(&fakes), 2 * 4);
    assert_eq!(block.key("fake:0"), Ok(key));
    std::thread::spawn(move || drop(block)).join().expect("no panic");
    assert_eq!(live(&fakes), 0);
}

#[test]
fn one_key_covers_the_pool_if_no_limit_requires_more() {
    let fakes = Fake::some(2, u64::MAX);
    let pool = small(MIB).registrars(registrars(&fakes)).build().expect("little memory");
    let report = pool.report();
    assert_eq!((live(&fakes), report.boundary_bytes, pool.boundary()), (2, None, None));
    assert_eq!(pool.allocate(MIB).expect("all of it").keys().expect("registered").len(), 2);
    // The registrar with the smallest limit decides for all.
    let mut uneven = Fake::some(1, u64::MAX);
    uneven.push(Fake::new("small", Limits { max_bytes: 300_000, ..Limits::none("") }));
    let pool = small(MIB).registrars(registrars(&uneven)).build().expect("little memory");
    let report = pool.report();
    assert_eq!(report.boundary_bytes, Some(300_000 / 4096 * 4096));
    assert!(
        report
            .choices
            .iter()
            .any(|choice| choice.what == "boundary" && choice.why.contains("small"))
    );
    assert_eq!(pool.boundary(), report.boundary_bytes);
    // The requested boundary is used, rounded down to whole pages.
    let pool = small(MIB)
        .registrars(registrars(&Fake::some(1, PART)))
        .boundary(100_000)
        .build()
        .expect("ok");
    let report = pool.report();
    assert_eq!(report.boundary_bytes, Some(98_304));
    // Without registrars the boundary applies to offsets alone.
    let pool = small(MIB).boundary(100_000).build().expect("little memory");
    let report = pool.report();
    assert_eq!((pool.boundary(), report.part_bytes), (Some(98_304), MIB as u64));
    // A tebibyte in parts of one page returns an error before anything is mapped.
    let builder =
        Pool::builder("1 TiB").ladder(PageSize::Thp).populate(Populate::None).in_background(true);
    let error = builder.boundary(4096).build().unwrap_err();
    assert_eq!(error, PoolError::Boundary { requested: 4096, min: 1 << 20 });
    let error = small(MIB).boundary(100).build().unwrap_err();
    assert_eq!(error, PoolError::Boundary { requested: 100, min: PageSize::Base.bytes() as u64 });
}

#[test]
fn without_registrars_there_is_no_key() {
    let pool = small(MIB).build().expect("little memory");
    let report = pool.report();
    assert!(report.registered.is_none() && report.devices.is_empty());
    let block = pool.allocate(1).expect("room");
    assert_eq!(block.keys(), Ok(Vec::new()));
    assert!(block.key("fake:0").is_err());
}

#[test]
fn a_limit_is_reported_before_anything_is_registered() {
    let fake = Fake::new("few", Limits { max_bytes: PART, max_keys: 3, ..Limits::none("") });
    let error = small(MIB).registrar(fake.clone()).build().unwrap_err();
    let PoolError::Register(inner) = &error else { panic!("{error}") };
    assert!(matches!(**inner, RegisterError::Limited { .. }), "{error}");
    assert_eq!(fake.calls(), 0);
    let error = small(MIB)
        .registrars(registrars(&Fake::some(1, PART)))
        .registrar(Fake::new("fake:0", Limits::none("")))
        .build()
        .unwrap_err();
    assert!(error.to_string().contains("two registrars are called fake:0"), "{error}");
    let cancel = CancelToken::new();
    cancel.cancel();
    assert!(small(MIB).cancel(cancel).build().is_err());
}

#[test]
fn rings_register_what_they_can() {
    let registrars = match "io_uring:2".parse::<Devices>().expect("a spec").open() {
        Ok(registrars) => registrars,
        Err(why) => return println!("skipped: {why}"),
    };
    let built = Pool::builder(2 * MIB)
        .ladder(PageSize::Base)
        .registrars(registrars)
        .boundary(PART)
        .policy(Policy::all_at_once())
        .build();
    let pool = match built {
        Ok(pool) => pool,
        Err(why) => return println!("skipped: {why}"),
    };
    let mut blocks = pool.allocate_batch(PART as usize, 8).expect("all of it");
    blocks.sort_unstable_by_key(Block::offset);
    let slots: Vec<u64> =
        blocks.iter().map(|block| block.key("io_uring:1").expect("registered").lkey).collect();
    let mut sorted = slots.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), 8, "{slots:?}");
    println!("{}", pool.report());
}

#[test]
fn reports_are_shown_and_stored() {
    let fakes = Fake::some(1, PART);
    let pool = small(MIB)
        .registrars(registrars(&fakes))
        .hot_sizes([4096])
        .max_size(4 * MIB)
        .build()
        .expect("little memory");
    let report = pool.report();
    let text = report.to_string();
    for part in [
        "pool of 1 MiB",
        "may grow to 4 MiB",
        "boundary  256 KiB: fake:0 takes it best",
        "registered with 1 registrar",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let json = serde_json::to_string(&report).expect("plain data");
    assert_eq!(serde_json::from_str::<PoolReport>(&json).expect("the same reference"), report);
    assert_eq!(pool.report(), report);
    assert_eq!(report.hot_sizes, [4096]);
    let steps: Vec<&str> = report.steps.iter().map(|step| step.what.as_str()).collect();
    assert_eq!(steps, ["map", "register"], "registering populates");
    let registered = report.registered.as_ref().expect("it was registered");
    assert_eq!((registered.populated.bytes, report.populated), (MIB as u64, None));
    assert!(registered.seconds >= registered.register_seconds.max(registered.populated.seconds));
    assert!(report.steps[1].seconds >= registered.seconds);
    assert_eq!(report.receipt.ranges[0].resident_bytes, MIB as u64);
}

#[test]
fn bytes_go_out_and_come_in_by_the_key_of_a_block() {
    let Some(mut worker) = Worker::new() else { return };
    let ring = match worker.adopt(RingTable::New(16)) {
        Ok(ring) => ring,
        Err(why) => return println!("skipped: {why}"),
    };
    let built =
        small(MIB).max_size(2 * MIB).boundary(PART).registrar(ring).in_background(true).build();
    let pool = match built {
        Ok(pool) => pool,
        Err(why) => return println!("skipped: {why}"),
    };
    if pool.wait_ready(u64::MAX, Duration::from_secs(60)) < pool.capacity() {
        return println!("skipped: {}", pool.report());
    }
    let mut prove = |block: &mut Block| {
        let (key, len) = (block.key("ring").expect("registered"), block.len());
        worker.prove(key, NonNull::new(block.as_mut_ptr()).expect("an address"), len);
    };
    let mut blocks: Vec<Block> = [1, 4096, 100_000, PART as usize, 5, 200_000]
        .into_iter()
        .map(|len| pool.allocate(len).expect("room"))
        .collect();
    blocks.iter_mut().for_each(&mut prove);
    pool.grow_to(2 * MIB as u64).expect("addresses are there");
    blocks.extend(std::iter::from_fn(|| pool.allocate(77_777).ok()));
    assert!(blocks.iter().any(|block| block.offset() >= MIB as u64));
    blocks.iter_mut().for_each(&mut prove);
    drop(pool);
    // The pool has been dropped, and the key of the last block is still valid.
    blocks.truncate(1);
    blocks.iter_mut().for_each(&mut prove);
}

#[test]
fn pages_are_on_the_requested_node() {
    let built = small(MIB)
        .numa(Numa::Bind(vec![0]))
        .boundary(PART)
        .registrars(registrars(&Fake::some(1, PART)))
        .build();
    let pool = match built {
        Ok(pool) => pool,
        Err(PoolError::Memory(why))
            if matches!(*why, ArenaError::PolicyFailed { .. } | ArenaError::NoSuchNode { .. }) =>
        {
            return println!("skipped: {why}");
        }
        Err(error) => panic!("{error}"),
    };
    let report = pool.report();
    assert!(report.receipt.policy_verified);
    assert_eq!(report.receipt.resident_bytes(), MIB as u64);
    assert_eq!(pool.capacity(), MIB as u64);
    let error = small(MIB).numa(Numa::Bind(vec![4000])).build().unwrap_err();
    assert!(matches!(&error, PoolError::Memory(_)), "{error}");
}
