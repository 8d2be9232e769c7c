//! Pools of blocks: every system call of every layer fails in turn, and nothing leaks.

use std::time::Duration;

use kvmem::arena::{Backing, Call, Errno, Ladder, PageSize, Populate};
use kvmem::fault;
use kvmem::pool::{Access, AttachedPool, Pool, PoolBuilder, PoolError};
use kvmem::register::{IoUring, Mlock, Policy};

use super::faults::assert_clean;
use super::{MIB, alone, descriptors, maps};

const PART: usize = 512 << 10;
const LONG: Duration = Duration::from_secs(60);

fn builder() -> PoolBuilder {
    Pool::builder(2 * PART)
        .max_size(3 * PART)
        .ladder(Ladder::new([PageSize::Base]))
        .populate(Populate::threads(2))
        .boundary(PART as u64)
        .policy(Policy::Sequential)
        .registrar(Mlock::default())
}

/// Uses every operation of a pool; returns the first error.
fn use_it(pool: Pool) -> Result<(), PoolError> {
    let mut blocks = pool.allocate_batch(PART / 2, 2)?;
    for block in &mut blocks {
        block.bytes_mut().fill(1);
        assert_eq!(block.keys()?.len(), pool.devices().len());
    }
    pool.grow_to(3 * PART as u64)?;
    drop(pool.allocate(PART)?);
    blocks.truncate(1);
    pool.trim();
    pool.shrink()?;
    pool.check().expect("sound");
    drop(pool);
    assert!(blocks[0].bytes().iter().all(|byte| *byte == 1));
    Ok(())
}

fn at_once() -> Result<(), PoolError> {
    use_it(builder().build()?)
}

fn with_a_ring() -> Result<(), PoolError> {
    // If no ring can be created, the pool is built without one.
    let builder = match IoUring::new(0) {
        Ok(ring) => builder().registrar(ring),
        Err(_) => builder(),
    };
    use_it(builder.build()?)
}

fn shared() -> Result<(), PoolError> {
    let pool = builder().backing(Backing::Shared).build()?;
    let mut block = pool.allocate(100)?;
    block.bytes_mut().fill(5);
    let seen = AttachedPool::attach(pool.share_read_only()?, Access::ReadOnly)?;
    // SAFETY: no thread writes to the block meanwhile.
    assert_eq!(unsafe { seen.bytes(block.reference()?) }?, [5; 100]);
    use_it(pool)
}

fn part_by_part() -> Result<(), PoolError> {
    let pool = builder().in_background(true).build()?;
    let ready = pool.wait_ready(u64::MAX, LONG);
    assert!(!pool.is_initializing());
    let report = pool.report();
    assert_eq!(ready + report.quarantined_bytes(), pool.capacity(), "{report}");
    // Every ready byte can be allocated, and no other byte.
    let blocks: Vec<_> = std::iter::from_fn(|| pool.allocate(PART).ok()).collect();
    assert_eq!((blocks.len() * PART) as u64, ready);
    for block in &blocks {
        assert!(report.quarantined.iter().all(|bad| bad.range.start != block.offset()));
        assert_eq!(block.keys()?.len(), 1);
    }
    drop(blocks);
    if ready == pool.capacity() { use_it(pool) } else { Ok(()) }
}

type Scenario = (&'static str, fn() -> Result<(), PoolError>);

#[test]
fn any_call_may_fail_and_nothing_leaks() {
    let _alone = alone();
    let scenarios: [Scenario; 4] = [
        ("at once", at_once),
        ("ring", with_a_ring),
        ("shared", shared),
        ("part by part", part_by_part),
    ];
    if let Err(why) = at_once() {
        return println!("skipped: {why}");
    }
    for _ in 0..10 {
        for (_, scenario) in scenarios {
            let _ = scenario();
        }
    }
    let (mut failed, mut reported) = (0, 0);
    for (name, scenario) in scenarios {
        let counted = fault::count();
        let outcome = scenario();
        let made: Vec<(Call, u64)> =
            Call::ALL.iter().map(|call| (*call, counted.made(*call))).collect();
        drop(counted);
        assert_eq!(outcome, Ok(()), "{name}");
        let before = (maps(), descriptors());
        drop(scenario());
        assert_clean(&before, name);
        for (call, times) in made {
            for nth in 1..=times.min(24) {
                let what = format!("{name}: call {nth} of {call} fails");
                let guard = fault::fail(call, nth, Errno::ENOMEM);
                let outcome = scenario();
                failed += guard.failed();
                drop(guard);
                if let Err(error) = &outcome {
                    assert!(!error.to_string().is_empty());
                    reported += 1;
                }
                assert_clean(&before, &what);
            }
            // Keys that cannot be deregistered and ranges that cannot be unmapped stay. Tests of
            // the layers below cover them.
            let stays = [Call::Unmap, Call::Unlock, Call::RingEmpty];
            if times > 0 && !stays.contains(&call) {
                let guard = fault::fail_all(call, Errno::EPERM);
                let _ = scenario();
                drop(guard);
                assert_clean(&before, &format!("{name}: every {call} fails"));
            }
        }
    }
    println!("{failed} calls failed, {reported} of them were reported");
    assert!(
        failed > 100 && reported > 50,
        "{failed} calls failed, {reported} of them were reported"
    );
}

#[test]
fn broken_pages_are_quarantined() {
    let _alone = alone();
    // Each part makes two calls: a probe whether the kernel supports the request, and the request.
    let guard = fault::count().and(Call::PopulateWrite, 4, 1, Errno::EHWPOISON);
    let built = Pool::builder(4 * PART)
        .ladder(PageSize::Base)
        .populate(Populate::threads(1))
        .boundary(PART as u64)
        .quarantine(true)
        .build();
    drop(guard);
    let pool = built.expect("most of it");
    let report = pool.report();
    let [bad] = &report.quarantined[..] else { panic!("{report}") };
    assert_eq!(bad.range.end - bad.range.start, PART as u64);
    assert!(bad.why.contains("EHWPOISON"), "{}", bad.why);
    assert_eq!(pool.ready_bytes(), 3 * PART as u64);
    let rest = pool.allocate_batch(PART, 3).expect("the rest");
    assert!(rest.iter().all(|block| block.offset() != bad.range.start));
    assert!(pool.allocate(1).is_err());
}

#[test]
fn a_pool_of_several_kinds_of_pages_is_populated_by_registering() {
    let _alone = alone();
    let pages = match super::pools::Pool::with_free(PageSize::Huge2M, 3) {
        Ok(pages) => pages,
        Err(why) => return println!("skipped: {why}"),
    };
    let builder = || {
        Pool::builder(10 * MIB)
            .ladder(Ladder::new([PageSize::Huge2M, PageSize::Base]))
            .boundary(2 * MIB as u64)
            .registrar(Mlock::default())
    };
    let error = builder().strict(true).build().unwrap_err();
    assert!(matches!(&error, PoolError::Memory(_)), "{error}");
    let pool = match builder().build() {
        Ok(pool) => pool,
        Err(PoolError::Register(why)) => return println!("skipped: {why}"),
        Err(error) => panic!("{error}"),
    };
    let report = pool.report();
    let [first, rest] = &report.receipt.ranges[..] else { panic!("{report}") };
    assert_eq!((first.obtained, first.range.len()), (PageSize::Huge2M, 6 * MIB));
    assert_eq!((rest.obtained, rest.fallbacks.len()), (PageSize::Base, 1));
    assert_eq!(report.receipt.resident_bytes(), 10 * MIB as u64);
    let registered = report.registered.as_ref().expect("it has a registrar");
    assert_eq!((registered.keys, registered.populated.bytes), (5, 10 * MIB as u64));
    assert!(report.to_string().contains("both together in"), "{report}");
    drop((pool, pages));
}

#[test]
fn a_failed_thread_start_fails_the_build() {
    let _alone = alone();
    drop(builder().in_background(true).build());
    let before = (maps(), descriptors());
    let guard = fault::fail_all(Call::Spawn, Errno::EAGAIN);
    let error = Pool::builder(MIB).ladder(PageSize::Base).in_background(true).build().unwrap_err();
    drop(guard);
    assert_eq!(error, PoolError::NoThread { errno: Errno::EAGAIN });
    assert_clean(&before, "no thread");
}
