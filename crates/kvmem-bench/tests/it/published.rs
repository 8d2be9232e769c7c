//! The models reproduce the published figures. The benchmark compares all of them; these tests
//! compare the rows for which a short loop is enough.

use kvmem_bench::contender::best_fit::BestFit;
use std::cell::RefCell;

use kvmem_bench::contender::binned::{Binned, BinnedUnrounded};
use kvmem_bench::contender::null::Null;
use kvmem_bench::contender::{Contender, ContenderId, CreateError, Space};
use kvmem_bench::loops::shift::ShiftPlan;
use kvmem_bench::loops::{bimodal, paired, random, scatter, shift, uniform};
use kvmem_bench::published;
use kvmem_bench::stats::mean;
use kvmem_testkit::workload::{Bimodal, Lifetimes, Sizes};

const SEED: u64 = 1;

#[track_caller]
fn near(value: f64, want: f64, off: f64) {
    assert!((value - want).abs() <= off, "{value} is not within {off} of {want}");
}

/// Returns the sizes of rows in which a short run is as good as a long one.
fn few_live() -> impl Iterator<Item = u64> {
    uniform::sizes().into_iter().filter(|&size| uniform::pool_for(size) / size <= 5_000)
}

#[test]
fn rounded_uniform_rows_are_exact() {
    for size in few_live() {
        let out = uniform::run::<Binned>(SEED, size, uniform::pool_for(size), 3_000).unwrap();
        let want = published::uniform(ContenderId::Binned, size).unwrap();
        near(out.util_avg, want.util_avg, 1e-6);
        near(out.util_min, want.util_min, 1e-6);
    }
}

#[test]
fn unrounded_uniform_rows_agree() {
    for size in few_live().filter(|&size| size < 40_000_000 && size > 1_500_000) {
        let out =
            uniform::run::<BinnedUnrounded>(SEED, size, uniform::pool_for(size), 60_000).unwrap();
        let want = published::uniform(ContenderId::BinnedUnrounded, size).unwrap();
        near(out.util_avg, want.util_avg, 0.002);
    }
}

#[test]
fn random_agrees_with_and_without_rounding() {
    fn check<C: Contender>() {
        let out = random::run::<C>(SEED, &random::sizes(), random::POOL, 150_000).unwrap();
        let want = published::random(C::ID);
        near(out.util.avg, want.util.avg, 0.002);
        near(out.util.p50, want.util.p50, 0.002);
        near(out.util.p90, want.util.p90, 0.003);
    }
    check::<Binned>();
    check::<BinnedUnrounded>();
}

/// A sixteenth of the published pool in the same units gives the same figures with a sixteenth of
/// the rounds.
#[test]
fn paired_agrees() {
    let rounds = (paired::ROUNDS.0 / 16, paired::ROUNDS.1 / 16);
    let out = paired::run::<Binned>(SEED, paired::POOL / 16, rounds.0, rounds.1).unwrap();
    near(out.util.avg, published::PAIRED_ROUNDED.util.avg, 0.002);
}

#[test]
fn no_allocator_exceeds_the_bound_and_the_bare_loop_reaches_it() {
    for size in [131_089, 8_388_625, 36_909_875] {
        let pool = uniform::pool_for(size);
        let bound = uniform::bound(size, pool);
        for (min, avg) in [
            uniform::run::<Null>(SEED, size, pool, 1000)
                .map(|out| (out.util_min, out.util_avg))
                .unwrap(),
            uniform::run::<BestFit>(SEED, size, pool, 1000)
                .map(|out| (out.util_min, out.util_avg))
                .unwrap(),
        ] {
            near(min, bound, 1e-12);
            near(avg, bound, 1e-12);
        }
    }
}

/// Checks the known figures of the published allocator and of exact best fit in the workloads whose
/// parameters were chosen here.
#[test]
fn calibrated_workloads_stay_calibrated() {
    fn mix<C: Contender>() -> f64 {
        let run =
            |sizes: &Sizes| random::run::<C>(SEED, sizes, random::POOL, 20_000).unwrap().util.avg;
        mean(&random::mixes().map(|(_, sizes)| run(&sizes))).unwrap()
    }
    near(mix::<Binned>(), 0.844, 0.003);
    near(mix::<BestFit>(), 0.867, 0.003);
    near(mix::<Null>(), 0.992, 0.001);

    fn shift<C: Contender>() -> f64 {
        // The turnovers after the first of the late ones do not count here.
        let plan = |ratio| ShiftPlan { after: 10.1, ..ShiftPlan::standard(ratio) };
        let run = |ratio| shift::run::<C>(SEED, plan(ratio)).unwrap().early;
        mean(&shift::RATIOS.map(run)).unwrap()
    }
    near(shift::<Binned>(), 0.856, 0.004);
    near(shift::<BestFit>(), 0.887, 0.004);

    fn scatter<C: Contender>(ranges: usize) -> f64 {
        scatter::run::<C>(SEED, &random::sizes(), random::POOL, 10_000, ranges).unwrap().util.avg
    }
    near(scatter::<BestFit>(2), 0.947, 0.003);
    near(scatter::<BestFit>(4), 0.973, 0.003);
}

#[test]
fn live_fractions_are_found() {
    let run = Bimodal::new(SEED, 1, Lifetimes::Object, 2_000);
    // An allocator that could move objects loses nothing.
    let best = bimodal::highest::<Null>(&run).unwrap();
    assert_eq!((best.no_failure, best.few_failures), (1.0, 1.0));
    let binned = bimodal::highest::<Binned>(&run).unwrap();
    assert!(binned.no_failure <= binned.few_failures && binned.few_failures < 0.85, "{binned:?}");
    let pool = |fraction: f64| bimodal::pool_for(&run, (fraction * 100.0).round() as u64);
    let failures = |fraction| bimodal::replay::<Binned>(&run, pool(fraction), |_| false).unwrap();
    let at_highest = failures(binned.no_failure);
    assert_eq!((at_highest.payloads, at_highest.metadata), (0, 0));
    let above = failures(binned.no_failure + 0.01);
    assert!(above.payloads + above.metadata > 0);
    assert!(bimodal::fail_rate::<Binned>(&run, pool(0.95)).unwrap() > 1e-3);
}

thread_local! {
    /// Sizes served by [`Recorded`], in order.
    static SERVED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// A contender that records every successful request.
struct Recorded<C>(C);

impl<C: Contender> Contender for Recorded<C> {
    const ID: ContenderId = C::ID;
    type Handle = C::Handle;

    fn create(space: Space) -> Result<Self, CreateError> {
        C::create(space).map(Self)
    }

    fn allocate(&self, size: u64) -> Option<C::Handle> {
        let held = self.0.allocate(size)?;
        SERVED.with_borrow_mut(|served| served.push(size));
        Some(held)
    }
}

/// Contenders that fail and evict at different times get the same sequence of sizes, in every
/// run.
#[test]
fn requests_do_not_depend_on_the_contender() {
    fn served<C: Contender>(seed: u64) -> (Vec<u64>, f64) {
        let out = random::run::<Recorded<C>>(seed, &random::sizes(), random::POOL, 2_000).unwrap();
        (SERVED.take(), out.util.avg)
    }
    let (binned, util) = served::<Binned>(SEED);
    let (best_fit, better) = served::<BestFit>(SEED);
    assert_eq!(binned, best_fit);
    assert_ne!(util, better);
    assert_eq!((binned, util), served::<Binned>(SEED));
    assert_ne!(best_fit, served::<BestFit>(SEED + 1).0);
}
