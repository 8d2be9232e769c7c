//! Random sequences of every public operation, compared with the interval oracle after every step.

use kvmem_testkit::strategy::{Scale, config, mixed_ops, ops};
use proptest::prelude::*;

use crate::random::{cases, check, reach_everything};

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn small_spaces(config in config(Scale::Small), ops in ops(120)) {
        check(&config, &ops)?;
    }

    #[test]
    fn medium_spaces(config in config(Scale::Medium), ops in ops(120)) {
        check(&config, &ops)?;
    }

    #[test]
    fn huge_spaces(config in config(Scale::Huge), ops in ops(120)) {
        check(&config, &ops)?;
    }

    #[test]
    fn crumbs_beside_bulk(config in config(Scale::Medium), ops in mixed_ops(200)) {
        check(&config, &ops)?;
    }
}

/// The sequences above reach every operation and outcome that they should.
#[test]
fn the_sequences_reach_everything() {
    let kinds = [
        (config(Scale::Small).boxed(), ops(120).boxed()),
        (config(Scale::Medium).boxed(), ops(120).boxed()),
        (config(Scale::Medium).boxed(), mixed_ops(200).boxed()),
    ];
    reach_everything(kinds, 60, &[]);
}
