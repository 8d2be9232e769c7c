//! Limits of pins, values that only the tier has, and pins that are exchanged.

use super::super::{BlockHandle, Located, NamespaceLimits};
use super::*;
use crate::error::Quota;

const KEYS: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];

/// A node with these limits, with four values that take 4096 bytes each.
fn filled(options: NodeOptions) -> Node {
    let mut node = Node::create(shared(BYTES), options).expect("the options are possible");
    let session = begin(&mut node, 7);
    KEYS.iter().for_each(|key| insert(&mut node, session, key, 100));
    node
}

fn pins(
    node: &mut Node,
    session: SessionIndex,
    keys: &[&[u8]],
) -> Result<Vec<BlockHandle>, CallError> {
    let granted = node.acquire(session, keys, false, 5)?;
    node.check().expect("the invariants hold");
    Ok(granted.into_iter().map(|it| it.expect("it has a value").handle).collect())
}

fn exceeds(what: Quota, value: u64, limit: u64) -> Result<Vec<BlockHandle>, CallError> {
    Err(CallError::Quota { what, value, limit })
}

#[test]
fn a_session_pins_as_many_bytes_as_its_limit_says() {
    let mut node = filled(NodeOptions { max_pinned_bytes_per_session: 8192, ..options() });
    let session = begin(&mut node, 1);
    let too_many = exceeds(Quota::SessionPinnedBytes, 3 * 4096, 8192);
    assert_eq!(pins(&mut node, session, &KEYS[..3]), too_many);
    // The call has pinned nothing: two values have room.
    let held = pins(&mut node, session, &KEYS[..2]).expect("it is the limit");
    assert_eq!(pins(&mut node, session, &KEYS[2..3]), too_many);
    // A value that is pinned already counts once.
    let again = pins(&mut node, session, &KEYS[..1]).expect("it is pinned");
    node.release(session, &[held[0], again[0]]).expect("these are pins");
    pins(&mut node, session, &KEYS[2..3]).expect("there is room again");
}

#[test]
fn a_namespace_pins_as_much_as_its_limits_say() {
    let limited = |max_pins, max_pinned_bytes| {
        let limits = NamespaceLimits { max_pins, max_pinned_bytes, ..NamespaceLimits::default() };
        filled(NodeOptions { default_limits: limits, ..options() })
    };
    for (mut node, error) in [
        (limited(2, u64::MAX), exceeds(Quota::NamespacePins, 3, 2)),
        (limited(u64::MAX, 8192), exceeds(Quota::NamespacePinnedBytes, 3 * 4096, 8192)),
    ] {
        let [one, other] = [1, 2].map(|pid| begin(&mut node, pid));
        pins(&mut node, one, &KEYS[..2]).expect("it is the limit");
        assert_eq!(pins(&mut node, one, &KEYS[2..3]), error);
        // A value that another session has pinned counts once.
        let held = pins(&mut node, other, &KEYS[1..2]).expect("it is pinned");
        assert_eq!(pins(&mut node, other, &KEYS[2..3]), error);
        node.end_session(one);
        node.release_ended(10);
        pins(&mut node, other, &KEYS[2..3]).expect("one pin has ended");
        node.release(other, &held).expect("it is a pin");
    }
}

#[test]
fn keys_without_bytes_and_keys_that_are_too_long_are_errors() {
    let mut node = filled(options());
    let session = begin(&mut node, 1);
    let longest = [7; crate::format::MAX_KEY];
    for key in [&longest[..], &[1]] {
        assert_eq!(node.acquire(session, &[key], false, 5).map(|it| it.len()), Ok(1));
        assert_eq!(node.locate(session, &[key], 5), Ok(vec![Located::default()]));
    }
    for key in [&[7; crate::format::MAX_KEY + 1][..], &[]] {
        let error = CallError::BadKey { len: key.len(), limit: crate::format::MAX_KEY };
        assert_eq!(node.acquire(session, &[b"a", key], false, 5).err(), Some(error.clone()));
        assert_eq!(node.locate(session, &[b"a", key], 5), Err(error));
    }
}

/// Memory has `a` to `d`, of which `d` expires; the tier has `x` and is to remove `y`.
#[test]
fn values_are_located_where_they_are() {
    let mut node = filled(options());
    let tier = KeyTier::with(b"x");
    let session = begin(&mut node, 1);
    let handle = node.reserve(session, &[100]).expect("there is space")[0].handle;
    let item = CommitItem { key: b"late", ttl_ms: 10, ..item_of(handle) };
    node.commit(session, &[item], 5).expect("its own");
    node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()).expect("it is new");
    tier.keys.lock().expect("no panic").push(b"\x05modelx".to_vec());
    let keys: [&[u8]; 4] = [b"a", b"x", b"none", b"late"];
    let in_memory = Located { in_memory: true, in_tier: false };
    let in_tier = Located { in_memory: false, in_tier: true };
    for (now, late) in [(14, in_memory), (15, Located::default())] {
        let located = node.locate(session, &keys, now);
        assert_eq!(located, Ok(vec![in_memory, in_tier, Located::default(), late]), "at {now}");
        assert_eq!(node.has_all(session, &[b"a", b"late"], now), late.in_memory);
        assert_eq!(
            node.lookup(session, &[b"a", b"x", b"late", b"b"], now),
            if now < 15 { 4 } else { 2 }
        );
    }
    assert!(node.has_all(session, &KEYS, 5) && !node.has_all(session, &[b"a", b"x"], 5));
    // What memory lacks is fetched; with a prefix only up to the first key without a value.
    let (found, pending) = node.try_acquire(session, &keys[..3], true, 5).expect("keys");
    let has: Vec<bool> = found.iter().map(Option::is_some).collect();
    assert_eq!((has, pending), (vec![true, false, false], vec![1]));
    let (found, pending) =
        node.try_acquire(session, &[b"none", b"a", b"x"], false, 5).expect("keys");
    let has: Vec<bool> = found.iter().map(Option::is_some).collect();
    assert_eq!((has, pending), (vec![false, true, false], vec![2]));
}

#[test]
fn pins_of_an_earlier_epoch_are_not_released_and_reservations_are() {
    let mut node = filled(options());
    let session = begin(&mut node, 1);
    let pin = pins(&mut node, session, &KEYS[..1]).expect("it has a value")[0];
    let reserved = node.reserve(session, &[64]).expect("there is space")[0].handle;
    let epoch = node.epoch_of(session);
    assert_eq!(node.release_of(session, epoch + 1, &[pin, reserved]), Ok(()));
    assert_eq!((node.stats().reservations, node.stats().pinned), (0, 1));
    assert_eq!(node.release_of(session, epoch, &[pin]), Ok(()));
    assert_eq!(node.stats().pinned, 0);
    let BlockHandle { slot, generation } = pin;
    assert_eq!(node.release_of(session, epoch, &[pin]), Err(CallError::Stale { slot, generation }));
}

#[test]
fn an_exchange_releases_first_only_if_the_limits_demand_it() {
    let mut node = filled(NodeOptions { max_pinned_bytes_per_session: 8192, ..options() });
    let session = begin(&mut node, 1);
    let epoch = node.epoch_of(session);
    let first = pins(&mut node, session, &KEYS[..1]).expect("it has a value");
    let (second, left) = node.exchange(session, (epoch, &first), &KEYS[1..2], false, 5);
    assert!(second.expect("there is room")[0].is_some() && left, "the caller releases it");
    let (third, left) = node.exchange(session, (epoch, &first), &KEYS[2..3], false, 5);
    assert!(third.expect("there is room now")[0].is_some() && !left);
    let (fourth, left) = node.exchange(session, (epoch, &[]), &KEYS[3..], false, 5);
    assert!(matches!(fourth, Err(CallError::Quota { .. })) && !left);
    node.check().expect("the invariants hold");
}
