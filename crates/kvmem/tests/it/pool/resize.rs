//! Growing and shrinking by whole parts, with keys and pages.

use kvmem::offset::SpaceError;
use kvmem::pool::{Block, Pool, PoolError};
use kvmem::register::RegisterError;

use super::fake::{Fake, Faults, live, registrars};
use super::{MIB, small};

const PART: usize = 256 << 10;

/// Returns the resident bytes of a pool.
fn resident(pool: &Pool) -> u64 {
    let report = pool.report();
    let block = pool.allocate(1).expect("room");
    let base = block.as_ptr().addr() - block.offset() as usize;
    let mut pages = vec![0u8; report.max_bytes as usize / 4096];
    // SAFETY: the block keeps the range mapped, and the vector has a byte for each page.
    let requested = unsafe {
        libc::mincore(base as *mut libc::c_void, report.max_bytes as usize, pages.as_mut_ptr())
    };
    assert_eq!(requested, 0);
    pages.iter().filter(|page| **page & 1 == 1).count() as u64 * 4096
}

#[test]
fn growing_and_shrinking_register_and_deregister() {
    let fakes = Fake::some(2, PART as u64);
    let pool =
        small(MIB).max_size(3 * MIB).registrars(registrars(&fakes)).build().expect("little memory");
    let report = pool.report();
    assert_eq!((report.capacity_bytes, report.max_bytes), (MIB as u64, 3 * MIB as u64));
    assert_eq!((live(&fakes), resident(&pool)), (8, MIB as u64));
    let mut blocks = pool.allocate_batch(PART, 4).expect("all of it");
    assert!(pool.allocate(1).is_err());

    pool.grow_to((MIB + 1) as u64).expect("addresses are there");
    assert_eq!((pool.capacity(), pool.ready_bytes()), ((MIB + PART) as u64, (MIB + PART) as u64));
    assert_eq!((live(&fakes), resident(&pool)), (10, (MIB + PART) as u64));
    let last = pool.allocate(PART).expect("the added part");
    assert_eq!((last.offset(), last.keys().expect("registered").len()), (MIB as u64, 2));
    pool.grow_to(3 * MIB as u64).expect("addresses are there");
    assert_eq!(live(&fakes), 24);
    assert_eq!(pool.report().registered.expect("all").keys, 24);
    assert_eq!(
        pool.grow_to(3 * MIB as u64 + 1),
        Err(PoolError::Limit { requested: 3 * MIB as u64 + 1, max: 3 * MIB as u64 })
    );
    let error = pool.grow_to(MIB as u64).unwrap_err();
    assert!(
        matches!(
            &error,
            PoolError::Space(inner) if matches!(**inner, SpaceError::WrongDirection { .. })
        ),
        "{error}"
    );

    // A part in use is not removed.
    let error = pool.shrink_to(MIB as u64).unwrap_err();
    assert!(
        matches!(&error, PoolError::Space(inner) if matches!(**inner, SpaceError::InUse { .. })),
        "{error}"
    );
    assert_eq!(live(&fakes), 24);
    let shrunk = pool.shrink().expect("the end is free");
    assert_eq!((shrunk.bytes, shrunk.keys), ((2 * MIB - PART) as u64, 14));
    assert_eq!((shrunk.discarded_bytes, shrunk.kept_bytes), ((2 * MIB - PART) as u64, 0));
    assert_eq!((pool.capacity(), live(&fakes)), ((MIB + PART) as u64, 10));
    drop(last);
    blocks.truncate(1);
    let at_most = blocks[0].range().end.next_multiple_of(PART as u64);
    pool.shrink().expect("the end is free");
    assert_eq!((pool.capacity(), pool.ready_bytes()), (at_most, at_most));
    drop(blocks);
    pool.shrink_to(0).expect("all is free");
    assert_eq!((pool.capacity(), live(&fakes), resident(&pool)), (PART as u64, 2, PART as u64));
    pool.grow_to(2 * MIB as u64).expect("addresses are there");
    assert_eq!((live(&fakes), resident(&pool)), (16, 2 * MIB as u64));
    pool.check().expect("sound");
}

#[test]
fn a_failed_growth_changes_nothing() {
    let mut fakes = Fake::some(2, PART as u64);
    fakes[0] = fakes[0].clone().with(Faults { register: vec![6], ..Faults::default() });
    let pool =
        small(MIB).max_size(2 * MIB).registrars(registrars(&fakes)).build().expect("little memory");
    let block = pool.allocate(PART).expect("room");
    let error = pool.grow_to(2 * MIB as u64).unwrap_err();
    assert!(matches!(error, PoolError::Register(_)), "{error}");
    assert_eq!(
        (pool.capacity(), live(&fakes), block.keys().expect("registered").len()),
        (MIB as u64, 8, 2)
    );
    pool.grow_to(2 * MIB as u64).expect("the second attempt succeeds");
    assert_eq!(live(&fakes), 16);
}

#[test]
fn a_failed_deregistration_keeps_the_pages() {
    let mut fakes = Fake::some(1, PART as u64);
    // The first deregistration fails, in each attempt of the shrink.
    fakes[0] = fakes[0].clone().with(Faults { deregister: vec![(1, 3)], ..Faults::default() });
    let pool = small(2 * PART)
        .max_size(4 * PART)
        .registrars(registrars(&fakes))
        .build()
        .expect("little memory");
    let before = resident(&pool);
    let error = pool.shrink_to(1).unwrap_err();
    assert!(
        matches!(
            &error,
            PoolError::Register(inner)
                if matches!(**inner, RegisterError::DeregisterFailed { .. })
        ),
        "{error}"
    );
    assert_eq!((pool.capacity(), live(&fakes), resident(&pool)), (PART as u64, 2, before));
    // The key is deregistered before these pages are used again.
    pool.grow_to(2 * PART as u64).expect("the key is deregistered now");
    assert_eq!(live(&fakes), 2);
    let blocks: Vec<Block> = pool.allocate_batch(PART, 2).expect("all of it");
    assert!(blocks.iter().all(|block| block.keys().is_ok_and(|keys| keys.len() == 1)));
    drop((pool, blocks));
    assert_eq!(live(&fakes), 0);
}

#[test]
fn without_registrars_the_pool_resizes_by_pages() {
    let pool = small(MIB).max_size(64 * MIB).build().expect("little memory");
    let report = pool.report();
    assert_eq!(report.boundary_bytes, None);
    let block = pool.allocate(5000).expect("room");
    let shrunk = pool.shrink().expect("the end is free");
    assert_eq!(pool.capacity(), block.range().end.next_multiple_of(4096));
    assert_eq!(shrunk.discarded_bytes, MIB as u64 - pool.capacity());
    pool.grow_to(64 * MIB as u64).expect("addresses are there");
    drop(block);
    // No boundary limits the allocation.
    let mut all = pool.allocate(64 * MIB).expect("one piece");
    all.bytes_mut()[64 * MIB - 1] = 1;
    assert_eq!(pool.trim(), ());
}

#[test]
fn blocks_are_used_while_the_end_moves() {
    let fakes = Fake::some(1, PART as u64);
    let pool = small(2 * PART)
        .max_size(16 * PART)
        .registrars(registrars(&fakes))
        .build()
        .expect("little memory");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let (pool, done) = (&pool, &done);
            scope.spawn(move || {
                let mut mine: Vec<Block> = Vec::new();
                // Relaxed: the flag only ends the loop.
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    while let Ok(mut block) = pool.allocate(10_000) {
                        // Every byte is mapped and has a key.
                        block.bytes_mut().fill(thread);
                        assert_eq!(block.keys().expect("registered").len(), 1);
                        mine.push(block);
                        if mine.len() > 60 {
                            break;
                        }
                    }
                    assert!(mine.iter().all(|block| block.bytes()[9_999] == thread));
                    mine.clear();
                }
            });
        }
        let (mut grown, mut shrunk) = (0, 0);
        for round in 0..300u64 {
            let wanted = (2 + round * 7 % 15) * PART as u64;
            if wanted >= pool.capacity() {
                pool.grow_to(wanted).expect("addresses are there");
                grown += 1;
            } else if pool.shrink_to(wanted).is_ok() {
                shrunk += 1;
            }
            assert_eq!(live(&fakes) as u64 * PART as u64, pool.capacity());
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        println!("grown {grown} times, shrunk {shrunk} times");
        assert!(grown > 0);
    });
    pool.shrink_to(0).expect("all is free");
    assert_eq!(live(&fakes), 1);
    pool.check().expect("sound");
}
