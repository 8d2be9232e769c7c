//! Random sequences of operations by several threads, compared with a model after every step.

use kvmem_testkit::driver::Tally;
use kvmem_testkit::slabs::op::{SlabConfig, SlabOp};
use kvmem_testkit::slabs::run;
use kvmem_testkit::slabs::strategy::{config, ops};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseResult, TestRunner};

use crate::random::cases;

fn check(config: &SlabConfig, ops: &[SlabOp]) -> TestCaseResult {
    run(config, ops).map(drop).map_err(|failure| TestCaseError::fail(format!("{failure:#}")))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..cases(100)
    })]

    #[test]
    fn default_settings(ops in ops(150)) {
        check(&SlabConfig::PLAIN, &ops)?;
    }

    #[test]
    fn with_any_settings(config in config(), ops in ops(100)) {
        check(&config, &ops)?;
    }
}

/// Checks that the sequences above exercise each operation.
#[test]
fn the_sequences_reach_everything() {
    let mut runner = TestRunner::deterministic();
    let mut all = Tally::default();
    let strategy = (config(), ops(100));
    for _ in 0..100 {
        let (config, ops) = strategy.new_tree(&mut runner).unwrap().current();
        all.add(&run(&config, &ops).unwrap_or_else(|failure| panic!("{failure:#}")));
    }
    let expected = [
        "alloc",
        "alloc: too large",
        "alloc: no bytes",
        "alloc_zeroed",
        "copy",
        "alloc_batch",
        "free",
        "free of several",
        "free_chain of several",
        "trim",
        "trim from outside",
        "tick gives back",
        "tick with no thread left",
        "a thread ends",
        "look",
        "replace",
    ];
    let missed: Vec<_> = expected.into_iter().filter(|what| all.of(what) < 10).collect();
    assert!(missed.is_empty(), "seldom or never: {missed:?}, of\n{all}");
}
