//! *Node statistics* and *events*: what a node holds, and what came and went.

use std::time::Duration;

use kvmem::tier::TierState;
use kvmem_node::format::MAX_KEY;
use kvmem_node::{EventKind, Events};

use crate::argument::{Handle, Out};
use crate::node_client::kvmem_node_client;
use crate::node_operator::name_of;
use crate::stats::{kvmem_node_namespace_stats, kvmem_node_stats};
use crate::status::*;

/// The state of a tier: the node has none.
pub const KVMEM_NODE_TIER_NONE: u32 = 0;
/// The state of a tier: it stores and finds values.
pub const KVMEM_NODE_TIER_WORKING: u32 = 1;
/// The state of a tier: it finds what it has and stores nothing, because its device failed.
pub const KVMEM_NODE_TIER_READ_ONLY: u32 = 2;
/// The state of a tier: it neither stores nor finds values now, and may do both later.
pub const KVMEM_NODE_TIER_AWAY: u32 = 3;

const _: () = {
    assert!(KVMEM_NODE_TIER_NONE == TierState::None as u32);
    assert!(KVMEM_NODE_TIER_WORKING == TierState::Working as u32);
    assert!(KVMEM_NODE_TIER_READ_ONLY == TierState::ReadOnly as u32);
    assert!(KVMEM_NODE_TIER_AWAY == TierState::Away as u32);
};

/// Reads the statistics from the server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_get_stats(
    client: Handle<kvmem_node_client>,
    out_stats: Out<kvmem_node_stats>,
) -> kvmem_status {
    client.on(|client| {
        let figures = out_stats.get("out_stats")?;
        figures.put(kvmem_node_stats::new(&client.stats()?));
        Ok(())
    })
}

/// Reads the statistics of all namespaces, at most `capacity`, into `out_namespaces`. The position
/// of each is its number, and those that the client may not use have no figures. `out_count`
/// receives how many were written. A server has at most 256. `max_bytes` is UINT64_MAX if a
/// namespace has no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_namespaces(
    client: Handle<kvmem_node_client>,
    out_namespaces: Out<kvmem_node_namespace_stats>,
    capacity: u64,
    out_count: Out<u64>,
) -> kvmem_status {
    client.on(|client| {
        let list = out_namespaces.list(capacity, "out_namespaces", &out_count)?;
        let namespaces = client.stats()?.namespaces;
        let stats = |it| kvmem_node_namespace_stats::new(it, name_of(&it.name));
        list.put(namespaces.iter().map(stats).collect::<Vec<_>>());
        Ok(())
    })
}

/// An event: the value can be found under its key.
pub const KVMEM_NODE_EVENT_STORED: u32 = 0;
/// An event: another value came under the key.
pub const KVMEM_NODE_EVENT_REPLACED: u32 = 1;
/// An event: a client or an operator removed the value.
pub const KVMEM_NODE_EVENT_REMOVED: u32 = 2;
/// An event: the value was evicted, or its time was over.
pub const KVMEM_NODE_EVENT_EVICTED: u32 = 3;
/// An event: the value was removed because its bytes did not have their checksum.
pub const KVMEM_NODE_EVENT_DAMAGED: u32 = 4;
/// An event without a key: the tier has let values go whose keys it does not know.
/// kvmem_node_client_locate tells which are left.
pub const KVMEM_NODE_EVENT_TIER_EVICTED: u32 = 5;
/// The namespace of events that concern all of them.
pub const KVMEM_NODE_NO_NAMESPACE: u32 = 65535;

const _: () = assert!(KVMEM_NODE_NO_NAMESPACE == kvmem_node::NO_NAMESPACE as u32);

/// Something that happened to a value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_node_event {
    /// Counts all events of the server since it started.
    pub number: u64,
    /// KVMEM_NODE_EVENT_STORED, KVMEM_NODE_EVENT_REPLACED, KVMEM_NODE_EVENT_REMOVED,
    /// KVMEM_NODE_EVENT_EVICTED or KVMEM_NODE_EVENT_DAMAGED.
    pub kind: u32,
    /// The number of the key's namespace.
    pub namespace_number: u32,
    /// Number of bytes of the key.
    pub key_bytes: u64,
    /// The key. The bytes after it are 0.
    pub key: [u8; 64],
}

const _: () = assert!(MAX_KEY == 64);

impl From<kvmem_node::Event> for kvmem_node_event {
    fn from(event: kvmem_node::Event) -> Self {
        let mut key = [0; MAX_KEY];
        let len = event.key.len().min(MAX_KEY);
        key[..len].copy_from_slice(&event.key[..len]);
        kvmem_node_event {
            number: event.number,
            kind: match event.kind {
                EventKind::Stored => KVMEM_NODE_EVENT_STORED,
                EventKind::Replaced => KVMEM_NODE_EVENT_REPLACED,
                EventKind::Removed => KVMEM_NODE_EVENT_REMOVED,
                EventKind::Evicted => KVMEM_NODE_EVENT_EVICTED,
                EventKind::Damaged => KVMEM_NODE_EVENT_DAMAGED,
                EventKind::TierEvicted => KVMEM_NODE_EVENT_TIER_EVICTED,
            },
            namespace_number: event.namespace.into(),
            key_bytes: len as u64,
            key,
        }
    }
}

/// Returns at most `capacity` events from number `from` on, in `out_events`: for routers that send
/// a request where its prefix is. Waits for the first one for at most `wait_ms` milliseconds.
/// `out_count` receives how many there are, and `out_next` the number to go on with. 0 is the
/// number of the oldest event that the server has, and 2^63 and above are that of the next one. For
/// any other `from`, events were lost if `out_next` is not `from + out_count`: the server keeps the
/// latest ones, and a server that has restarted has none of those before and other numbers. The
/// call returns at once then. A call returns at most 512.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_events(
    client: Handle<kvmem_node_client>,
    from: u64,
    wait_ms: u64,
    out_events: Out<kvmem_node_event>,
    capacity: u64,
    out_count: Out<u64>,
    out_next: Out<u64>,
) -> kvmem_status {
    client.on(|client| {
        let list = out_events.list(capacity, "out_events", &out_count)?;
        let next_number = out_next.get("out_next")?;
        let Events { events, next, .. } =
            client.events(from, list.max, Duration::from_millis(wait_ms))?;
        list.put(events);
        next_number.put(next);
        Ok(())
    })
}
