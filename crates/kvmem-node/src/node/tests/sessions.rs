//! Sessions that resume, are fenced, are reclaimed, and are abandoned.

use super::*;

fn pins(node: &mut Node, session: SessionIndex, keys: &[&[u8]]) -> Vec<BlockHandle> {
    let found = node.acquire(session, keys, false, 5).expect("a call");
    found.into_iter().map(|it| it.expect("it has a value").handle).collect()
}

/// The client returns to the next server: what it names it has, and nothing else. It may return
/// several times, and counts only what it names the last time.
#[test]
fn a_client_that_returns_has_what_it_names() {
    let mut node = node();
    let session = begin(&mut node, 7);
    [b"a", b"b", b"c"].iter().for_each(|key| insert(&mut node, session, *key, 100));
    let held = pins(&mut node, session, &[b"a", b"b", b"c"]);
    let reserved = node.reserve(session, &[64, 64]).expect("there is space");
    let reserved: Vec<BlockHandle> = reserved.iter().map(|it| it.handle).collect();
    let (mut node, _) = next_server(&node, true);
    assert_eq!((node.orphans(), node.handles_of(session)), (vec![session], (3, 2)));
    // The first connection breaks before the client has named all.
    node.begin_resuming(session);
    assert!(node.name_handles(session, &[(held[2], 1)], &reserved[1..]));
    node.begin_resuming(session);
    assert!(node.name_handles(session, &[(held[0], 2), (held[1], 1)], &reserved[..1]));
    let epoch = node.epoch_of(session);
    node.resume(session);
    node.release_ended(100);
    node.check().expect("the invariants hold");
    assert_eq!((node.orphans(), node.handles_of(session)), (Vec::new(), (2, 1)));
    assert_ne!(node.epoch_of(session), epoch, "late releases are of the epoch before");
    // The first value has two pins.
    assert_eq!(node.release(session, &[held[0], held[0], held[1]]), Ok(()));
    assert!(node.release(session, &held[2..]).is_err(), "it was not named");
    let item = CommitItem { key: b"d", ..item_of(reserved[0]) };
    assert!(node.commit(session, &[item], 6).is_ok());
    let item = CommitItem { key: b"e", ..item_of(reserved[1]) };
    assert!(node.commit(session, &[item], 6).is_err(), "it was not named");
}

#[test]
fn a_client_that_names_pins_it_lacks_has_lost_them() {
    let mut node = node();
    let [session, other] = [7, 8].map(|pid| begin(&mut node, pid));
    [b"a", b"b"].iter().for_each(|key| insert(&mut node, session, *key, 100));
    let own = pins(&mut node, session, &[b"a"])[0];
    let others = pins(&mut node, other, &[b"b"])[0];
    let stale = BlockHandle { generation: own.generation + 1, ..own };
    let ended = pins(&mut node, session, &[b"b"])[0];
    node.begin_resuming(session);
    node.release(session, &[ended]).expect("a pin");
    for (named, are_own) in [
        (&[(own, 1)][..], true),
        (&[], true),
        (&[(own, 0)], true),
        (&[(others, 1)], false),
        (&[(stale, 1)], false),
        (&[(stale, 1), (own, 1)], false),
        (&[(own, 1), (others, 0)], false),
    ] {
        assert_eq!(node.name_handles(session, named, &[]), are_own, "{named:?}");
    }
}

#[test]
fn fenced_reservations_are_not_committed() {
    let mut node = node();
    let session = begin(&mut node, 7);
    assert_eq!(node.fence(session), 0);
    let first = node.reserve(session, &[64, 64]).expect("there is space");
    assert_eq!((node.fence(session), node.fence(session)), (2, 0));
    let later = node.reserve(session, &[64]).expect("there is space")[0].handle;
    let commit = |node: &mut Node, handle| {
        let item = CommitItem { key: b"key", ..item_of(handle) };
        node.commit(session, &[item], 5).map(drop)
    };
    assert_eq!(commit(&mut node, first[0].handle), Err(CallError::Fenced));
    assert_eq!(commit(&mut node, later), Ok(()));
    let handle = node.reserve(session, &[64]).expect("there is space")[0].handle;
    assert_eq!((node.fence(session), node.stats().fenced_total), (1, 3));
    assert_eq!(commit(&mut node, handle), Err(CallError::Fenced));
    // A fenced one can be released.
    let all = [first[0].handle, first[1].handle, handle];
    assert_eq!(node.release(session, &all), Ok(()));
    assert_eq!(node.handles_of(session), (0, 0));
    node.check().expect("the invariants hold");
}

#[test]
fn an_operator_reclaims_pins_and_no_reservations() {
    let mut node = node();
    let session = begin(&mut node, 7);
    [b"a", b"b"].iter().for_each(|key| insert(&mut node, session, *key, 100));
    node.reserve(session, &[64]).expect("there is space");
    let (epoch, word) = (node.epoch_of(session), node.pin_word_of(session));
    assert_eq!(node.reclaim_pins(session), 0);
    assert_eq!((node.epoch_of(session), node.pin_word_of(session)), (epoch, word));
    pins(&mut node, session, &[b"a", b"b"]);
    assert_eq!(node.reclaim_pins(session), 2);
    assert_eq!((node.epoch_of(session), node.pin_word_of(session)), (epoch + 1, word + 1));
    node.release_ended(10);
    assert_eq!((node.handles_of(session), node.stats().pinned), ((0, 1), 0));
    node.check().expect("the invariants hold");
}

#[test]
fn a_session_without_grants_is_abandoned_after_its_time() {
    let mut node = node();
    let session = begin(&mut node, 7);
    insert(&mut node, session, b"a", 100);
    assert!(!node.is_abandoned(session, 10, u64::MAX), "it has a connection");
    let pin = pins(&mut node, session, &[b"a"]);
    node.orphan(session);
    assert!(!node.is_abandoned(session, 10, u64::MAX), "it has a pin");
    node.release(session, &pin).expect("a pin");
    let reserved = node.reserve(session, &[64]).expect("there is space")[0].handle;
    assert!(!node.is_abandoned(session, 10, u64::MAX), "it has a reservation");
    node.release(session, &[reserved]).expect("it is reserved");
    let (pid, of) = (node.pid_of(session), node.orphan_processes());
    assert_eq!((pid, of), (7, vec![(session, 7, 0)]));
    assert_eq!((node.sessions_of_user(0), node.sessions_of_user(1)), (1, 0));
    assert!(!node.is_abandoned(session, u64::MAX, u64::MAX));
    assert!(!node.is_abandoned(session, 0, 0) && node.is_abandoned(session, 10, u64::MAX));
    let resumable = node.find_resumable(node.sessions.get(session).token, 0);
    assert_eq!(resumable, Some(session));
    assert_eq!(node.find_resumable(node.sessions.get(session).token, 1), None, "another user");
}
