//! Building overlaps populating and registering, in virtual time: no test touches the memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvmem::arena::{
    ArenaError, Backing, Call, CancelToken, Errno, PageSize, Populate, Populated, ProgressOptions,
    Region,
};
use kvmem::pool::{Pool, PoolBuilder, PoolError};
use kvmem::register::{Platform, Policy, RegisterError};
use kvmem_testkit::simulated::{
    Action, CallCosts, Costs, Fault, NicLimits, PopulateCosts, SimulatedMachine,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A machine with 16 cores whose registrars take chunks of `chunk` bytes.
fn machine(nics: usize, chunk: u64, ms_per_gib: f64, gib_per_s: f64) -> SimulatedMachine {
    let register = CallCosts { ms_per_gib, ..CallCosts::default() };
    let populate = PopulateCosts { gib_per_s: gib_per_s / 4.0, max_gib_per_s: gib_per_s };
    let costs = Costs { register, populate, ..Costs::default() };
    let limits = NicLimits { max_bytes: chunk, ..NicLimits::default() };
    SimulatedMachine::builder().cores(16).nics(nics).costs(costs).limits(limits).build()
}

fn builder(machine: &SimulatedMachine, bytes: u64) -> PoolBuilder {
    Pool::builder(bytes as usize)
        .ladder(PageSize::Thp)
        .registrars(machine.nics())
        .platform(machine.platform())
}

/// Builds a pool; returns it with the virtual seconds that building took.
fn build(machine: &SimulatedMachine, builder: PoolBuilder) -> Result<(Pool, f64), PoolError> {
    let start = machine.platform().now();
    let pool = builder.build()?;
    Ok((pool, (machine.platform().now() - start).as_secs_f64()))
}

/// Checks that the first chunk was registered before the last one was populated.
fn assert_overlap(machine: &SimulatedMachine) {
    let log = machine.take_log();
    let of = |action: Action| log.iter().filter(move |call| call.action == action);
    let first = of(Action::Register).map(|call| call.start_ns).min().expect("registered");
    let last = of(Action::Populate).map(|call| call.end_ns).max().expect("populated");
    assert!(first < last, "first registered at {first} ns, last populated at {last} ns");
    assert_eq!(machine.counts().max_untouched_in_flight, 0, "populated before registered");
}

#[test]
fn building_takes_little_longer_than_the_slower_of_both() {
    // Pages that are populated 2 times as fast, as fast, and half as fast as they are registered.
    for (ms_per_gib, gib_per_s) in [(20.0, 100.0), (20.0, 50.0), (37.0, 13.5)] {
        for (gib, chunk, policy) in [
            (32, GIB, Policy::Auto),
            (96, GIB, Policy::Sequential),
            (64, 256 * MIB, Policy::Auto),
            (32, 16 * MIB, Policy::Auto),
            (40, 10 * GIB, Policy::Auto),
        ] {
            let machine = machine(1, chunk, ms_per_gib, gib_per_s);
            let (pool, seconds) =
                build(&machine, builder(&machine, gib * GIB).policy(policy)).expect("no limit");
            let chunks = (gib * GIB / chunk) as f64;
            let populating = gib as f64 / gib_per_s;
            let registering = gib as f64 * ms_per_gib / 1e3 + chunks * 20e-6;
            // With 4 chunks, a quarter of the shorter one overlaps with nothing.
            let wanted = if chunks < 30.0 { 1.26 } else { 1.15 };
            let longer = populating.max(registering);
            assert!(
                seconds <= wanted * longer,
                "{gib} GiB in chunks of {chunk}: {seconds} s, longer {longer} s"
            );
            assert_overlap(&machine);
            let report = pool.report();
            let outcome = report.registered.expect("registered");
            assert_eq!((outcome.policy, outcome.keys as f64), (policy, chunks));
            assert_eq!((outcome.populated.bytes, report.populated), (gib * GIB, None));
            assert!((outcome.seconds - seconds).abs() < 1e-6, "{outcome}");
            assert!((outcome.populated.seconds - populating).abs() < 1e-3, "{outcome}");
            assert!(outcome.register_seconds >= registering * 0.99, "{outcome}");
            drop(pool);
            assert_eq!(machine.live_keys(), 0);
        }
    }
}

#[test]
fn several_registrars_are_compared_on_the_first_parts() {
    let machine = machine(4, 256 * MIB, 20.0, 50.0);
    let (pool, seconds) = build(&machine, builder(&machine, 64 * GIB)).expect("no limit");
    let outcome = pool.report().registered.expect("registered");
    assert!(outcome.calibration.is_some() && outcome.threads > 1, "{outcome}");
    assert!(seconds <= 1.15 * 64.0 / 50.0, "{seconds} s: {outcome}");
    assert_eq!(machine.counts().registers, 4 * 256, "nothing was registered twice");
    assert_overlap(&machine);
}

#[test]
fn shared_and_growing_pools_overlap_too() {
    // A machine remembers which addresses are resident.
    let new_machine = || machine(1, GIB, 37.0, 27.0);
    let machine = new_machine();
    let shared = builder(&machine, 32 * GIB).ladder(PageSize::Base).backing(Backing::Shared);
    let (pool, seconds) = build(&machine, shared).expect("addresses");
    assert!(seconds <= 1.15 * 1.2, "{seconds} s");
    assert_overlap(&machine);
    drop(pool);
    let machine = new_machine();
    let growing = builder(&machine, 32 * GIB).max_size(64 * GIB as usize);
    let (pool, seconds) = build(&machine, growing).expect("addresses");
    assert!(seconds <= 1.15 * 1.2, "{seconds} s");
    assert_overlap(&machine);
    let start = machine.platform().now();
    pool.grow_to(64 * GIB).expect("addresses");
    let seconds = (machine.platform().now() - start).as_secs_f64();
    assert!(seconds <= 1.15 * 1.2, "{seconds} s");
    assert_overlap(&machine);
    let outcome = pool.report().registered.expect("registered");
    assert_eq!((outcome.keys, outcome.populated.bytes), (64, 64 * GIB));
}

/// A machine whose `nth` call of populating fails, counted from 0. It counts these calls.
#[derive(Debug)]
struct Faulty {
    machine: Arc<dyn Platform>,
    nth: u64,
    calls: AtomicU64,
}

impl Platform for Faulty {
    fn cores(&self) -> usize {
        self.machine.cores()
    }

    fn now(&self) -> Duration {
        self.machine.now()
    }

    fn resident_bytes(&self, region: &Region, range: Range<usize>) -> Result<u64, ArenaError> {
        self.machine.resident_bytes(region, range)
    }

    fn populate(
        &self,
        region: &Region,
        range: Range<usize>,
        how: Populate,
        watch: &ProgressOptions,
    ) -> Result<Populated, ArenaError> {
        // Relaxed: a count.
        if self.calls.fetch_add(1, Ordering::Relaxed) == self.nth {
            let (call, errno) = (Call::PopulateWrite, Errno::EHWPOISON);
            return Err(ArenaError::Populate { range, call, errno, limit: None, remedy: "" });
        }
        self.machine.populate(region, range, how, watch)
    }

    fn headroom(&self, bytes: u64) -> Result<(), ArenaError> {
        self.machine.headroom(bytes)
    }

    fn gather(&self, threads: usize) {
        self.machine.gather(threads);
    }

    fn enter(&self, thread: usize) {
        self.machine.enter(thread);
    }

    fn leave(&self) {
        self.machine.leave();
    }
}

/// Builds a pool of 8 GiB on a machine whose `nth` call of populating fails; returns the calls.
fn build_faulty(machine: &SimulatedMachine, nth: u64) -> (Result<Pool, PoolError>, u64) {
    let calls = AtomicU64::new(0);
    let faulty = Arc::new(Faulty { machine: machine.platform(), nth, calls });
    let built = builder(machine, 8 * GIB).platform(faulty.clone()).build();
    // Relaxed: a count.
    (built, faulty.calls.load(Ordering::Relaxed))
}

#[test]
fn parts_are_populated_together() {
    let machine = machine(1, 16 * MIB, 20.0, 50.0);
    let (built, calls) = build_faulty(&machine, u64::MAX);
    assert_eq!((built.expect("no fault").report().part_bytes, calls), (16 * MIB, 32));
}

#[test]
fn a_failure_at_any_chunk_leaves_nothing() {
    for nth in 0..32 {
        let machine = machine(2, 256 * MIB, 20.0, 50.0);
        machine.nic(1).expect("two").inject(Fault::register(nth));
        let error = builder(&machine, 8 * GIB).build().unwrap_err();
        let PoolError::Register(inner) = &error else { panic!("{error}") };
        assert!(matches!(**inner, RegisterError::ChunkFailed { .. }), "{error}");
        assert_eq!(machine.live_keys(), 0, "chunk {nth}");
    }
    let machine = || machine(2, 256 * MIB, 20.0, 50.0);
    let (built, calls) = build_faulty(&machine(), u64::MAX);
    drop(built.expect("no fault"));
    assert!(calls > 16, "{calls} steps");
    for nth in 0..calls {
        let machine = machine();
        let (built, made) = build_faulty(&machine, nth);
        let error = built.unwrap_err();
        let PoolError::Memory(inner) = &error else { panic!("{error}") };
        let ArenaError::Populate { range, .. } = &**inner else { panic!("{error}") };
        assert!(nth == 0 || range.start > 0, "offsets in the pool: {error}");
        assert_eq!((made, machine.live_keys()), (nth + 1, 0), "{error}");
    }
}

#[test]
fn too_little_memory_is_reported_before_anything_is_populated() {
    let limits = NicLimits { max_bytes: GIB, ..NicLimits::default() };
    let machine = SimulatedMachine::builder().cores(16).nics(1).limits(limits);
    let machine = machine.memory_bytes(10 * GIB).build();
    let error = builder(&machine, 32 * GIB).build().unwrap_err();
    let PoolError::Memory(inner) = &error else { panic!("{error}") };
    assert!(matches!(**inner, ArenaError::NoHeadroom { need, .. } if need == 32 * GIB), "{error}");
    assert_eq!((machine.counts().registers, machine.platform().now()), (0, Duration::ZERO));
}

#[test]
fn listeners_see_both_and_cancel_both() {
    let machine = || machine(2, GIB, 20.0, 50.0);
    let (populated, registered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (to_populate, to_register) = (Arc::clone(&populated), Arc::clone(&registered));
    // Relaxed, everywhere: the run calls one listener at a time, and ends before the last reading.
    let pool = builder(&machine(), 32 * GIB)
        .on_populate(move |progress| {
            assert_eq!(progress.total_bytes, 32 * GIB);
            let before = to_populate.swap(progress.done_bytes, Ordering::Relaxed);
            assert!(before < progress.done_bytes);
        })
        .on_register(move |progress| {
            assert_eq!(progress.total_bytes, 64 * GIB);
            let before = to_register.swap(progress.done_bytes, Ordering::Relaxed);
            assert!(before < progress.done_bytes && progress.ready_bytes <= 32 * GIB);
        })
        .build()
        .expect("no limit");
    let done = |count: &AtomicU64| count.load(Ordering::Relaxed);
    assert_eq!((done(&populated), done(&registered)), (32 * GIB, 64 * GIB));
    drop(pool);
    for populating in [false, true] {
        let (token, machine) = (CancelToken::new(), machine());
        let builder = builder(&machine, 32 * GIB).cancel(token.clone());
        let builder = if populating {
            builder.on_populate(move |progress| {
                if progress.done_bytes > 4 * GIB {
                    token.cancel();
                }
            })
        } else {
            builder.on_register(move |progress| {
                if progress.ready_bytes > 4 * GIB {
                    token.cancel();
                }
            })
        };
        let error = builder.build().unwrap_err();
        let PoolError::Register(inner) = &error else { panic!("{error}") };
        let RegisterError::Cancelled { done, total } = **inner else { panic!("{error}") };
        assert!(done < 24 * GIB && total == 64 * GIB, "{error}");
        assert_eq!(machine.live_keys(), 0);
    }
}
