//! Quotas of connections, sessions and users: each is reached, exceeded, and free again for others.

use std::os::fd::OwnedFd;

use rustix::net::SendFlags;

use super::bounds::{Stepped, acquire, answer_at, for_own_group, send};
use crate::NodeOptions;
use crate::error::{CallError, Quota, TooMany};
use crate::node::BlockHandle;
use crate::protocol::{Answer, Call, Key, MAX_MESSAGE, Response};
use crate::server::ServerOptions;
use crate::server::connection::MAX_WAITING;
use crate::server::quantum::USER_PLACES;
use crate::socket::now_ms;

/// A user that is neither the server's own nor an operator.
const OTHER: u32 = 54_321;

/// Options of a server that other users may connect to.
fn open_to_all() -> ServerOptions {
    ServerOptions { max_connections: 32, max_rings: 8, ..for_own_group() }
}

#[test]
fn one_user_has_a_part_of_the_connections_and_rings() {
    let mut stepped = Stepped::new(open_to_all());
    let mut open = Vec::new();
    while stepped.server.has_place_for(OTHER) {
        open.push(stepped.greet_as(OTHER, "", true).expect("there is place"));
    }
    assert_eq!(open.len(), 32 / USER_PLACES);
    assert!(stepped.server.has_place_for(OTHER + 1));
    let mut rings = |(socket, number): &(OwnedFd, u32)| {
        stepped.exchange(socket, *number, Call::Rings).0.map(drop)
    };
    let passed: Vec<_> = open.iter().map(&mut rings).collect();
    let passed: Vec<bool> = passed.iter().map(Result::is_ok).collect();
    assert_eq!(passed, (0..8).map(|at| at < 8 / USER_PLACES).collect::<Vec<_>>());
    let error = rings(&open[7]).expect_err("the user has its part");
    assert!(matches!(error, CallError::TooMany { what: TooMany::Rings, .. }), "{error}");
    // Others have theirs, up to the limit of all.
    let own: Vec<(OwnedFd, u32)> = (0..7).map(|_| stepped.greet()).collect();
    for (at, (socket, number)) in own.iter().enumerate() {
        let passed = stepped.exchange(socket, *number, Call::Rings).0;
        assert_eq!(passed.is_ok(), at < 8 - 8 / USER_PLACES, "{passed:?}");
    }
}

/// Requests for events that wait are as many as a connection may have. Further ones do not wait.
#[test]
fn few_requests_for_events_wait() {
    let mut stepped = Stepped::new(ServerOptions::default());
    let (socket, number) = stepped.greet();
    for id in 1..=MAX_WAITING as u32 + 3 {
        assert!(send(&socket, id, Call::Events { from: u64::MAX, max: 1, wait_ms: 1 << 30 }));
        stepped.server.quantum(number, now_ms());
    }
    let connection = &stepped.server.connections[&number];
    assert_eq!(connection.waiting.len(), MAX_WAITING);
    for id in 65..=67 {
        let Response { id: found, result } = answer_at(&socket).expect("it was answered at once");
        assert!(found == id && matches!(result, Ok(Answer::Events(_))), "{found}: {result:?}");
    }
    assert!(answer_at(&socket).is_none());
}

/// Pins count as reservations do. A returning client may name as many of both: the answer to a
/// commit may have been lost, and its blocks be pinned since.
#[test]
fn pins_have_the_quota_of_handles() {
    let node = NodeOptions { max_handles_per_session: 3, ..NodeOptions::default() };
    let mut stepped = Stepped::of(ServerOptions::default(), node);
    let (socket, number, welcome) = stepped.greet_again(0);
    for key in [b"a", b"b", b"c"] {
        stepped.insert(&socket, number, key, 64);
    }
    let two = vec![Key(b"a"), Key(b"b")];
    assert!(stepped.exchange(&socket, number, acquire(two.clone())).0.is_ok());
    let error = stepped.exchange(&socket, number, acquire(two)).0.expect_err("four");
    let expected = CallError::Quota { what: Quota::SessionHandles, value: 4, limit: 3 };
    assert_eq!(error, expected);
    assert_eq!(stepped.reserve(&socket, number, vec![1, 1]).expect_err("four"), expected);
    drop(socket);
    stepped.server.quantum(number, now_ms());
    let (socket, number, _) = stepped.greet_again(welcome.token);
    let resume = |pins: u32, reservations: u32| {
        let handle = |slot| BlockHandle { slot, generation: 1 };
        let pins = (0..pins).map(|slot| (handle(slot), 1)).collect();
        Call::Resume { pins, reservations: (0..reservations).map(handle).collect() }
    };
    assert!(stepped.exchange(&socket, number, resume(3, 2)).0.is_ok());
    assert!(stepped.exchange(&socket, number, resume(0, 1)).0.is_ok());
    let expected = CallError::Quota { what: Quota::SessionHandles, value: 7, limit: 6 };
    assert_eq!(stepped.exchange(&socket, number, resume(1, 0)).0.expect_err("seven"), expected);
    stepped.server.node().check().expect("the invariants hold");
}

/// A client that is slow to return may lose its pins after it has named them: the word that it gets
/// then is not theirs.
#[test]
fn a_client_whose_pins_are_reclaimed_while_it_returns_has_lost_them() {
    for is_reclaimed in [false, true] {
        let mut stepped = Stepped::new(ServerOptions::default());
        let (socket, number, welcome) = stepped.greet_again(0);
        stepped.insert(&socket, number, b"a", 64);
        let (answer, _) = stepped.exchange(&socket, number, acquire(vec![Key(b"a")]));
        let Ok(Answer::Pinned { blocks, .. }) = answer else { panic!("{answer:?}") };
        let handle = blocks[0].as_ref().expect("it has a value").handle;
        drop(socket);
        stepped.server.quantum(number, now_ms());
        let (socket, number, _) = stepped.greet_again(welcome.token);
        let call = Call::Resume { pins: vec![(handle, 1)], reservations: Vec::new() };
        assert!(stepped.exchange(&socket, number, call).0.is_ok());
        let session = stepped.server.node().all_sessions()[0];
        if is_reclaimed {
            assert_eq!(stepped.server.node_mut().reclaim_pins(session), 1);
        }
        let (answer, _) = stepped.exchange(&socket, number, Call::ResumeEnd);
        let Ok(Answer::Resumed { pins_resumed, .. }) = answer else { panic!("{answer:?}") };
        assert_eq!(pins_resumed, !is_reclaimed);
    }
}

#[test]
fn a_packet_that_is_too_long_ends_the_connection() {
    let mut stepped = Stepped::new(ServerOptions::default());
    let (socket, number) = stepped.greet();
    let long = vec![0; MAX_MESSAGE + 1];
    rustix::net::send(&socket, &long, SendFlags::DONTWAIT).expect("the socket has space");
    stepped.server.quantum(number, now_ms());
    assert!(!stepped.server.connections.contains_key(&number), "it cannot be decoded");
}
