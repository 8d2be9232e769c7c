//! Sessions that resume, are fenced, are reclaimed, and are abandoned.

use super::*;
use crate::error::Quota;

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

/// Pins and reservations that are over stay until they are released, and are the client's no more.
#[test]
fn grants_that_are_over_are_not_the_clients_any_more() {
    let options = NodeOptions { max_blocks: Some(1000), align: 64, ..options() };
    let mut node = Node::create(shared(BYTES), options).expect("the options are possible");
    let session = begin(&mut node, 7);
    let keys: Vec<[u8; 2]> = (0..300_u16).map(u16::to_be_bytes).collect();
    let keys: Vec<&[u8]> = keys.iter().map(<[u8; 2]>::as_slice).collect();
    keys.iter().for_each(|key| insert(&mut node, session, key, 64));
    let pinned = pins(&mut node, session, &keys);
    assert_eq!(node.reclaim_pins(session), 300);
    let is_left = |it: &BlockHandle| node.sessions.get(session).pins.contains_key(&it.slot);
    let left: Vec<BlockHandle> = pinned.into_iter().filter(is_left).collect();
    assert_eq!(left.len(), 300 - 256);
    assert!(!node.name_handles(session, &[(left[0], 1)], &[]), "it is over");
    node.release_ended(100);
    let reserved = node.reserve(session, &[64; 300]).expect("there is space");
    node.begin_resuming(session);
    node.resume(session);
    let live = |it: &&super::super::Granted| node.live(it.handle).is_ok();
    let left: Vec<BlockHandle> = reserved.iter().filter(live).map(|it| it.handle).collect();
    assert_eq!(left.len(), 300 - 256);
    let BlockHandle { slot, generation } = left[0];
    let item = CommitItem { key: b"new", ..item_of(left[0]) };
    assert_eq!(node.commit(session, &[item], 6), Err(CallError::Stale { slot, generation }));
    node.release_ended(100);
    node.check().expect("the invariants hold");
}

/// A client that names a pin without counting it still has it when it names it again.
#[test]
fn a_pin_that_is_named_without_a_count_stays() {
    let mut node = node();
    let session = begin(&mut node, 7);
    insert(&mut node, session, b"a", 100);
    let own = pins(&mut node, session, &[b"a"])[0];
    node.begin_resuming(session);
    assert!(node.name_handles(session, &[(own, 0)], &[]));
    assert!(node.name_handles(session, &[(own, 1)], &[]));
    node.resume(session);
    node.release(session, &[own]).expect("it is its own");
}

/// A reader may come before the namespace does: it has it when it is made, also after a restart.
#[test]
fn a_reader_gets_its_namespace_when_it_is_made() {
    let mut node = node();
    let writer = begin_in(&mut node, "model");
    insert(&mut node, writer, b"a", 100);
    let new = NewSession { read_only: true, ..session_of(1, 0) };
    let (reader, _) = node.begin_reading(new, "later").expect("there are few");
    assert_eq!(node.namespace_name(reader), "later");
    let made = begin_in(&mut node, "later");
    insert(&mut node, made, b"b", 100);
    let numbers = [writer, reader, made].map(|session| node.namespace_number(session));
    assert_eq!(numbers, [0, 1, 1]);
    let (next, _) = next_server(&node, true);
    for node in [&node, &next] {
        assert_eq!(node.namespace_name(reader), "later");
        assert_eq!(node.lookup(reader, &[b"b"], 5), 1);
        assert_eq!(node.namespace_number(reader), 1);
    }
    // What devices have registered no file says: a client that writes may have.
    assert_eq!(next.resized().registered_clients, 2);
    assert!(next.is_read_only(reader) && !next.is_read_only(writer));
}

/// The client has a lock, and the kernel knows whether a process still has it.
#[test]
fn a_client_may_live_as_long_as_its_lock() {
    let mut node = node();
    let [session, other] = [7, 8].map(|pid| begin(&mut node, pid));
    let lock = node.open_session_file(session).expect("there are descriptors");
    assert!(node.may_live(session) && !node.may_live(other));
    drop(lock);
    assert!(!node.may_live(session));
}

/// Memory that devices of a silent client may use stays, if the server may give some back.
#[test]
fn a_session_with_registered_memory_is_not_abandoned_if_the_memory_is_elastic() {
    for (registers, is_elastic) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut node = node();
        let session = begin(&mut node, 7);
        node.set_registers(session, registers);
        node.orphan(session);
        if is_elastic {
            node.resize(BYTES as u64 / 2);
        }
        let is_abandoned = node.is_abandoned(session, 10, u64::MAX);
        assert_eq!(is_abandoned, !(registers && is_elastic), "{registers} {is_elastic}");
    }
}

/// A recovery does not know who has limits. The server says so, and what is pinned counts then.
#[test]
fn limits_of_users_hold_for_pins_of_before() {
    let mut node = node();
    let session = begin(&mut node, 7);
    for key in 0..48 {
        insert(&mut node, session, &[key], 64);
    }
    let keys: Vec<[u8; 1]> = (0..48).map(|key| [key]).collect();
    let keys: Vec<&[u8]> = keys.iter().map(<[u8; 1]>::as_slice).collect();
    pins(&mut node, session, &keys[..40]);
    node.limit_users(|uid| uid == 0);
    node.check().expect("the invariants hold");
    let error = node.acquire(session, &keys[40..41], false, 5).expect_err("it has many");
    assert!(matches!(error, CallError::Quota { what: Quota::UserPins, value: 41, .. }), "{error}");
    node.limit_users(|uid| uid == 1);
    node.check().expect("the invariants hold");
    pins(&mut node, session, &keys[40..41]);
}

/// All sessions of a limited user pin at most half of the entries, and so do all that only read. A
/// value that several of them have counts once.
#[test]
fn users_and_readers_pin_at_most_half_of_the_entries() {
    for readers in [false, true] {
        let mut node = node();
        let writer = begin(&mut node, 1);
        (0..48).for_each(|key| insert(&mut node, writer, &[key], 64));
        let new = NewSession { read_only: readers, is_limited: !readers, ..session_of(7, 0) };
        let [one, other] = [7, 8].map(|pid| {
            let new = NewSession { pid, ..new };
            node.begin_session(new).expect("there are few").0
        });
        let keys: Vec<[u8; 1]> = (0..48).map(|key| [key]).collect();
        let keys: Vec<&[u8]> = keys.iter().map(<[u8; 1]>::as_slice).collect();
        let held = pins(&mut node, one, &keys[..20]);
        let same = pins(&mut node, other, &keys[10..24]);
        node.check().expect("the invariants hold");
        let what = if readers { Quota::ReaderPins } else { Quota::UserPins };
        let full = CallError::Quota { what, value: 25, limit: 24 };
        for session in [one, other] {
            let error = node.acquire(session, &keys[30..31], false, 5);
            assert_eq!(error, Err(full.clone()));
        }
        pins(&mut node, writer, &keys);
        // Of these values the other one has ten.
        node.release(one, &held).expect("these are pins");
        node.check().expect("the invariants hold");
        let more = pins(&mut node, other, &keys[24..34]);
        assert_eq!(node.acquire(one, &keys[40..41], false, 5), Err(full));
        node.release(other, &same).expect("these are pins");
        node.release(other, &more).expect("these are pins");
        pins(&mut node, one, &keys[..24]);
        node.check().expect("the invariants hold");
    }
}
