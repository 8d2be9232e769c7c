//! Draining: which values a tier gets before a server ends, and in which order.

use super::*;

/// The values that were used last are stored first, pinned ones too, some at a time; those that
/// were removed meanwhile, and what came into their entries and is stored, are left out.
#[test]
fn the_values_that_were_used_last_are_drained_first() {
    let tier = KeyTier::storing();
    let mut node = node();
    let session = begin(&mut node, 7);
    for key in 0..40 {
        insert(&mut node, session, &[key], 4096);
    }
    assert_eq!(node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), Some(false));
    for (key, now) in [(3, 8), (20, 9), (5, 10)] {
        assert!(node.acquire(session, &[&[key]], false, now).expect("a call")[0].is_some());
    }
    let (mut left, bytes) = node.to_drain();
    assert_eq!((left.len(), bytes), (40, 40 * 4096));
    assert_eq!(node.remove(session, &[&[20]]), Ok(1));
    let mut drained = Vec::new();
    let mut rounds = 0;
    while !left.is_empty() {
        let begun = node.drain(&mut left);
        assert_eq!(node.drain(&mut left), 0, "no more at a time");
        rounds += 1;
        let mut stored = 0;
        for job in node.take_jobs() {
            if let TierJob::Store(values) = job {
                drained.extend(values.iter().map(|value| *value.key.last().expect("a key")));
                stored += values.iter().map(|value| value.len).sum::<u64>();
                let values = values.into_iter().map(|value| (value, Offered::Stored)).collect();
                node.tier_done(TierDone::Stored(values), 11);
            }
        }
        assert_eq!(stored, begun);
        node.check().expect("the invariants hold");
    }
    assert!(rounds > 1, "memory is larger than what is stored at a time");
    assert_eq!((drained.len(), &drained[..2]), (39, &[5, 3][..]));
    assert_eq!(node.to_drain(), (Vec::new(), 0));
}
