//! Random sequences of every public operation on a space with caches, compared with the interval oracle after every step.

use kvmem_testkit::driver::{self, Tally};
use kvmem_testkit::op::{Config, Op};
use kvmem_testkit::strategy::{Scale, cached_config, ops, paged_ops};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};

fn check(config: &Config, ops: &[Op]) -> TestCaseResult {
    driver::run(config, ops).map(drop).map_err(|failure| TestCaseError::fail(failure.to_string()))
}

/// So many cases, or what `PROPTEST_CASES` says.
fn cases(cases: u32) -> ProptestConfig {
    let config = ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() { config } else { ProptestConfig { cases, ..config } }
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn small_spaces(config in cached_config(Scale::Small), ops in ops(120)) {
        check(&config, &ops)?;
    }

    #[test]
    fn medium_spaces(config in cached_config(Scale::Medium), ops in ops(120)) {
        check(&config, &ops)?;
    }

    #[test]
    fn huge_spaces(config in cached_config(Scale::Huge), ops in ops(120)) {
        check(&config, &ops)?;
    }

    #[test]
    fn small_spaces_in_pages(config in cached_config(Scale::Small), ops in paged_ops(200)) {
        check(&config, &ops)?;
    }

    #[test]
    fn medium_spaces_in_pages(config in cached_config(Scale::Medium), ops in paged_ops(200)) {
        check(&config, &ops)?;
    }

    #[test]
    fn huge_spaces_in_pages(config in cached_config(Scale::Huge), ops in paged_ops(200)) {
        check(&config, &ops)?;
    }
}

/// That the sequences above reach what they are meant to reach, each way round.
#[test]
fn the_sequences_reach_everything() {
    let mut runner = TestRunner::deterministic();
    let mut all = Tally::default();
    let strategies = [
        (cached_config(Scale::Small).boxed(), ops(120).boxed()),
        (cached_config(Scale::Medium).boxed(), ops(120).boxed()),
        (cached_config(Scale::Medium).boxed(), paged_ops(200).boxed()),
    ];
    for (config, ops) in strategies {
        for _ in 0..40 {
            let config = config.new_tree(&mut runner).unwrap().current();
            let ops = ops.new_tree(&mut runner).unwrap().current();
            all.add(&driver::run(&config, &ops).unwrap_or_else(|failure| panic!("{config:?}: {failure}")));
        }
    }
    let expected = [
        "allocate: granted",
        "allocate: refused",
        "allocate_aligned: granted",
        "allocate_aligned: refused",
        "allocate_batch: granted",
        "allocate_batch: refused",
        "allocate_scattered: granted in one",
        "allocate_scattered: granted in several",
        "allocate_scattered: refused",
        "free",
        "burst",
        "free_run of several",
        "free_run with a stranger",
        "free_range: granted",
        "free_range: refused",
        "shrink: granted",
        "shrink: refused",
        "extend: granted",
        "extend: refused",
        "into_raw",
        "adopt_raw",
        "misuse of a stale handle",
        "misuse of a foreign handle",
        "grow: granted",
        "grow: refused",
        "shrink_to: granted",
        "shrink_to: refused",
        "replace",
        "a change without an allocator",
        "something is cached",
        "reaps",
    ];
    let missed: Vec<_> = expected.into_iter().filter(|what| all.of(what) < 10).collect();
    assert!(missed.is_empty(), "seldom or never: {missed:?}, of\n{all}");
}
