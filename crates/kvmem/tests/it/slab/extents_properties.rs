//! Random sequences of every public operation on a cached space, compared with the interval oracle
//! after every step.

use kvmem_testkit::strategy::{Scale, cached_config, ops, paged_ops};
use proptest::prelude::*;

use crate::random::{cases, check, reach_everything};

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

/// Checks that the sequences above exercise each operation, with success and failure.
#[test]
fn the_sequences_reach_everything() {
    let kinds = [
        (cached_config(Scale::Small).boxed(), ops(120).boxed()),
        (cached_config(Scale::Medium).boxed(), ops(120).boxed()),
        (cached_config(Scale::Medium).boxed(), paged_ops(200).boxed()),
    ];
    reach_everything(kinds, 40, &["something is cached", "reclaims"]);
}
