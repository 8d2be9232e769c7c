//! *Random*: the common parts of tests with random sequences.

use kvmem_testkit::driver::{self, Tally};
use kvmem_testkit::op::{Config, Op};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};

/// Returns a configuration with this number of cases, or the number in `PROPTEST_CASES`.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let config = ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() {
        config
    } else {
        ProptestConfig { cases, ..config }
    }
}

/// Runs a sequence on a space and compares the space with the interval oracle after every step.
pub(crate) fn check(config: &Config, ops: &[Op]) -> TestCaseResult {
    driver::run(config, ops).map(drop).map_err(|failure| TestCaseError::fail(failure.to_string()))
}

/// The outcomes that sequences on any space have to reach.
const REACHED: [&str; 29] = [
    "allocate: granted",
    "allocate: failed",
    "allocate_aligned: granted",
    "allocate_aligned: failed",
    "allocate_batch: granted",
    "allocate_batch: failed",
    "allocate_scattered: granted in one",
    "allocate_scattered: granted in several",
    "allocate_scattered: failed",
    "free",
    "burst",
    "free_run of several",
    "free_run with a stranger",
    "free_range: granted",
    "free_range: failed",
    "shrink: granted",
    "shrink: failed",
    "extend: granted",
    "extend: failed",
    "into_raw",
    "adopt_raw",
    "misuse of a stale handle",
    "misuse of a foreign handle",
    "grow: granted",
    "grow: failed",
    "shrink_to: granted",
    "shrink_to: failed",
    "replace",
    "a change without an allocator",
];

/// Checks that sequences of each kind reach all expected outcomes, and those in `more`; runs `each`
/// sequences per kind.
pub(crate) fn reach_everything(
    kinds: impl IntoIterator<Item = (BoxedStrategy<Config>, BoxedStrategy<Vec<Op>>)>,
    each: usize,
    more: &[&str],
) {
    let mut runner = TestRunner::deterministic();
    let mut all = Tally::default();
    for (config, ops) in kinds {
        for _ in 0..each {
            let config = config.new_tree(&mut runner).unwrap().current();
            let ops = ops.new_tree(&mut runner).unwrap().current();
            all.add(
                &driver::run(&config, &ops)
                    .unwrap_or_else(|failure| panic!("{config:?}: {failure}")),
            );
        }
    }
    let expected = REACHED.iter().chain(more);
    let missed: Vec<_> = expected.filter(|what| all.of(what) < 10).collect();
    assert!(missed.is_empty(), "seldom or never: {missed:?}, of\n{all}");
}
