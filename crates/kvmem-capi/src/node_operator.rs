//! *Operator*: calls of operators on a node, which the server answers to its own user and to root.

use std::ffi::c_char;

use kvmem_node::format::{MAX_KEY, MAX_NAMESPACE_NAME};
use kvmem_node::{ClientError, Listed, Miss, MissReason, NodeClient, Resized, SessionListed};

use crate::argument::{Handle, In, Out};
use crate::node_client::kvmem_node_client;
use crate::status::*;

/// Bytes of the name of a namespace in a structure, with the NUL behind it.
const NAME_BYTES: usize = 64;

const _: () = assert!(MAX_NAMESPACE_NAME < NAME_BYTES && MAX_KEY == 64);

/// A value of a node, for operators.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_node_listed {
    /// The name of its namespace, with a NUL behind it.
    pub namespace_name: [c_char; 64],
    /// The key. The bytes after it are 0.
    pub key: [u8; 64],
    /// Number of bytes of the key.
    pub key_bytes: u64,
    /// Bytes of the value.
    pub bytes: u64,
    /// Milliseconds since it was last acquired or stored.
    pub idle_ms: u64,
    /// Clients that have it pinned, and the server itself.
    pub pins: u32,
    /// Its priority; values of priority 0 are evicted first.
    pub priority: u32,
}

/// A client of a node, for operators.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_node_session {
    /// The name of its namespace, with a NUL behind it.
    pub namespace_name: [c_char; 64],
    /// Values that it has pinned.
    pub pins: u64,
    /// Its reservations.
    pub reservations: u64,
    /// Milliseconds since its last message.
    pub silent_ms: u64,
    /// The process; 0: its number is not visible to the server.
    pub pid: u32,
    /// 1: it is connected now. 0: it has not returned since the server started again, or has closed
    /// its connection without saying that it writes no more.
    pub is_connected: u32,
}

/// A miss: no value of the key was ever stored, as far as the server knows.
pub const KVMEM_NODE_MISS_NEVER_STORED: u32 = 0;
/// A miss: the value was evicted for others.
pub const KVMEM_NODE_MISS_EVICTED: u32 = 1;
/// A miss: the time of the value was over.
pub const KVMEM_NODE_MISS_EXPIRED: u32 = 2;
/// A miss: a client or an operator removed the value.
pub const KVMEM_NODE_MISS_REMOVED: u32 = 3;
/// A miss: the bytes of the value did not have their checksum.
pub const KVMEM_NODE_MISS_DAMAGED: u32 = 4;
/// A miss: the value is in the tier, which is away or detached.
pub const KVMEM_NODE_MISS_TIER_AWAY: u32 = 5;
/// A miss: the value was evicted to the tier, which has let it go since.
pub const KVMEM_NODE_MISS_TIER_LOST: u32 = 6;
/// A miss: the tier has the value and did not bring it.
pub const KVMEM_NODE_MISS_NOT_FETCHED: u32 = 7;

/// A key that was acquired and had no value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_node_miss {
    /// The name of its namespace, with a NUL behind it.
    pub namespace_name: [c_char; 64],
    /// The name of the namespace for whose block the value was evicted, with a NUL behind it; "":
    /// for none.
    pub evicted_for: [c_char; 64],
    /// The key. The bytes after it are 0.
    pub key: [u8; 64],
    /// Number of bytes of the key.
    pub key_bytes: u64,
    /// Milliseconds since the miss.
    pub ago_ms: u64,
    /// Seconds between the moment when the value left the memory and the miss; UINT64_MAX: the
    /// server does not know a value of the key.
    pub gone_s: u64,
    /// Why there was no value: KVMEM_NODE_MISS_NEVER_STORED, KVMEM_NODE_MISS_EVICTED,
    /// KVMEM_NODE_MISS_EXPIRED, KVMEM_NODE_MISS_REMOVED, KVMEM_NODE_MISS_DAMAGED,
    /// KVMEM_NODE_MISS_TIER_AWAY, KVMEM_NODE_MISS_TIER_LOST or KVMEM_NODE_MISS_NOT_FETCHED.
    pub reason: u32,
    /// The priority of the value; UINT32_MAX: the server does not know a value of the key.
    pub priority: u32,
}

pub(crate) fn name_of(name: &str) -> [c_char; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    // A server sends no longer name; this library does not depend on it.
    for (to, from) in bytes[..NAME_BYTES - 1].iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    bytes
}

/// Returns a key with zeros behind it, and its length.
fn key_of(bytes: &[u8]) -> ([u8; MAX_KEY], u64) {
    let mut key = [0; MAX_KEY];
    let len = bytes.len().min(MAX_KEY);
    key[..len].copy_from_slice(&bytes[..len]);
    (key, len as u64)
}

impl From<Listed> for kvmem_node_listed {
    fn from(value: Listed) -> Self {
        let (key, key_bytes) = key_of(&value.key);
        kvmem_node_listed {
            namespace_name: name_of(&value.namespace),
            key,
            key_bytes,
            bytes: value.len,
            idle_ms: value.idle_ms,
            pins: value.pins,
            priority: value.priority.into(),
        }
    }
}

impl From<Miss> for kvmem_node_miss {
    fn from(miss: Miss) -> Self {
        let (key, key_bytes) = key_of(&miss.key);
        kvmem_node_miss {
            namespace_name: name_of(&miss.namespace),
            evicted_for: name_of(miss.evicted_for.as_deref().unwrap_or("")),
            key,
            key_bytes,
            ago_ms: miss.ago_ms,
            gone_s: miss.gone_s.map_or(u64::MAX, u64::from),
            reason: match miss.reason {
                MissReason::NeverStored => KVMEM_NODE_MISS_NEVER_STORED,
                MissReason::Evicted => KVMEM_NODE_MISS_EVICTED,
                MissReason::Expired => KVMEM_NODE_MISS_EXPIRED,
                MissReason::Removed => KVMEM_NODE_MISS_REMOVED,
                MissReason::Damaged => KVMEM_NODE_MISS_DAMAGED,
                MissReason::TierAway => KVMEM_NODE_MISS_TIER_AWAY,
                MissReason::TierLost => KVMEM_NODE_MISS_TIER_LOST,
                MissReason::NotFetched => KVMEM_NODE_MISS_NOT_FETCHED,
            },
            priority: miss.priority.map_or(u32::MAX, u32::from),
        }
    }
}

impl From<SessionListed> for kvmem_node_session {
    fn from(session: SessionListed) -> Self {
        kvmem_node_session {
            namespace_name: name_of(&session.namespace),
            pins: session.pins,
            reservations: session.reservations,
            silent_ms: session.silent_ms,
            pid: session.pid,
            is_connected: session.connected.into(),
        }
    }
}

/// The size of the memory of a node after a call that changes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_node_resized {
    /// Bytes for values and reservations now.
    pub size_bytes: u64,
    /// Bytes that were requested, in whole pages. The server goes on until the memory has them.
    pub wanted_bytes: u64,
    /// Bytes behind that end that are pinned, reserved, or being stored or verified.
    pub held_bytes: u64,
    /// Clients that have registered the memory with devices, or may have: while there are any, the
    /// memory does not shrink.
    pub registered_clients: u64,
}

impl From<Resized> for kvmem_node_resized {
    fn from(resized: Resized) -> Self {
        let Resized { size, wanted, held_bytes, registered_clients } = resized;
        kvmem_node_resized {
            size_bytes: size,
            wanted_bytes: wanted,
            held_bytes,
            registered_clients,
        }
    }
}

/// Lists at most `capacity` values from entry `from` on, in `out_values`, for operators.
/// `out_count` receives how many there are, and `out_next` the entry to go on with; UINT64_MAX:
/// there are no more. The first call begins with entry 0. A call returns at most 512.
///
/// Fails with KVMEM_ERR_UNSUPPORTED unless the process is of the server's user or of root. So do
/// the other calls of operators.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_operator_list(
    client: Handle<kvmem_node_client>,
    from: u64,
    out_values: Out<kvmem_node_listed>,
    capacity: u64,
    out_count: Out<u64>,
    out_next: Out<u64>,
) -> kvmem_status {
    list(client, from, out_values, capacity, out_count, out_next, list_all)
}

/// Lists at most `capacity` values of the client's own namespace, from entry `from` on, in
/// `out_values`: those in memory, and those in the tier that the server has stored there or
/// fetched, which have no pins, priority and time of use. `out_count` receives how many there are,
/// which may be 0 before the end, and `out_next` the entry to go on with; UINT64_MAX: there are no
/// more. The first call begins with entry 0. A call returns at most 512. Any client may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_list_namespace(
    client: Handle<kvmem_node_client>,
    from: u64,
    out_values: Out<kvmem_node_listed>,
    capacity: u64,
    out_count: Out<u64>,
    out_next: Out<u64>,
) -> kvmem_status {
    list(client, from, out_values, capacity, out_count, out_next, NodeClient::list_namespace)
}

fn list_all(client: &NodeClient, from: u32, max: u32) -> Result<ListedPage, ClientError> {
    client.as_operator().list(from, max)
}

/// Values, and the entry to go on with.
type ListedPage = (Vec<Listed>, Option<u32>);

/// Lists values by a call of the client.
fn list(
    client: Handle<kvmem_node_client>,
    from: u64,
    out_values: Out<kvmem_node_listed>,
    capacity: u64,
    out_count: Out<u64>,
    out_next: Out<u64>,
    by: fn(&NodeClient, u32, u32) -> Result<ListedPage, ClientError>,
) -> kvmem_status {
    client.on(|client| {
        let list = out_values.list(capacity, "out_values", &out_count)?;
        let next_entry = out_next.get("out_next")?;
        let (values, next) = match u32::try_from(from) {
            Ok(from) => by(client, from, list.max)?,
            Err(_) => (Vec::new(), None),
        };
        list.put(values);
        next_entry.put(next.map_or(u64::MAX, u64::from));
        Ok(())
    })
}

/// Lists the clients of the server, at most `capacity`, in `out_sessions`, for operators.
/// `out_count` receives how many were written. A server has at most 256.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_operator_sessions(
    client: Handle<kvmem_node_client>,
    out_sessions: Out<kvmem_node_session>,
    capacity: u64,
    out_count: Out<u64>,
) -> kvmem_status {
    client.on(|client| {
        let list = out_sessions.list(capacity, "out_sessions", &out_count)?;
        list.put(client.as_operator().sessions()?);
        Ok(())
    })
}

/// Lists the last misses of the client's own namespace, at most `capacity`, in `out_misses`, the
/// last one first. `out_count` receives how many were written. Of each call the server remembers
/// the first key without a value, and of all calls the last 256. Any client may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_misses(
    client: Handle<kvmem_node_client>,
    out_misses: Out<kvmem_node_miss>,
    capacity: u64,
    out_count: Out<u64>,
) -> kvmem_status {
    list_misses(client, out_misses, capacity, out_count, NodeClient::misses)
}

/// Lists the last misses of all namespaces, as kvmem_node_client_misses those of one, for
/// operators.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_operator_misses(
    client: Handle<kvmem_node_client>,
    out_misses: Out<kvmem_node_miss>,
    capacity: u64,
    out_count: Out<u64>,
) -> kvmem_status {
    list_misses(client, out_misses, capacity, out_count, |client, max| {
        client.as_operator().misses(max)
    })
}

fn list_misses(
    client: Handle<kvmem_node_client>,
    out_misses: Out<kvmem_node_miss>,
    capacity: u64,
    out_count: Out<u64>,
    by: fn(&NodeClient, u32) -> Result<Vec<Miss>, ClientError>,
) -> kvmem_status {
    client.on(|client| {
        let list = out_misses.list(capacity, "out_misses", &out_count)?;
        let misses = by(client, list.max)?;
        list.put(misses);
        Ok(())
    })
}

/// Evicts values of at least `bytes`, in the usual order, for operators: those of the namespace
/// `namespace_name` (may be NULL: of all). `out_evicted` (may be NULL) receives the bytes of the
/// values that were evicted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_operator_evict(
    client: Handle<kvmem_node_client>,
    namespace_name: In<c_char>,
    bytes: u64,
    out_evicted: Out<u64>,
) -> kvmem_status {
    client.on(|client| {
        let namespace = namespace_name.text("namespace_name")?;
        let evicted = client.as_operator().evict(namespace, bytes)?;
        out_evicted.put_if_wanted(evicted);
        Ok(())
    })
}

/// Removes all values of the namespace `namespace_name` (may be NULL: of all), for operators.
/// Pinned ones keep their bytes until the last pin is released. `out_removed` (may be NULL)
/// receives how many there were. Fails with KVMEM_ERR_UNSUPPORTED for one namespace of a server
/// with a tier, which cannot tell its values from others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_operator_clear(
    client: Handle<kvmem_node_client>,
    namespace_name: In<c_char>,
    out_removed: Out<u64>,
) -> kvmem_status {
    client.on(|client| {
        let namespace = namespace_name.text("namespace_name")?;
        let removed = client.as_operator().clear(namespace)?;
        out_removed.put_if_wanted(removed as u64);
        Ok(())
    })
}

/// Changes the bytes of the memory that are used, for operators: up to the length of its file,
/// which the server's option --max sets. A smaller memory evicts values in the usual order, moves
/// others to its front, and gives its pages back to the kernel. `out_resized` receives how far the
/// server came: blocks that are pinned or reserved stay, and it goes on when they are free.
///
/// Fails with KVMEM_ERR_INVALID_ARGUMENT for a size that the memory cannot have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_operator_resize(
    client: Handle<kvmem_node_client>,
    bytes: u64,
    out_resized: Out<kvmem_node_resized>,
) -> kvmem_status {
    client.on(|client| {
        let out = out_resized.get("out_resized")?;
        out.put(client.as_operator().resize(bytes)?.into());
        Ok(())
    })
}

/// Evicts values of at least `bytes` from the client's own namespace, in the usual order.
/// `out_evicted` (may be NULL) receives the bytes of the values that were evicted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_evict(
    client: Handle<kvmem_node_client>,
    bytes: u64,
    out_evicted: Out<u64>,
) -> kvmem_status {
    client.on(|client| {
        let evicted = client.evict(bytes)?;
        out_evicted.put_if_wanted(evicted);
        Ok(())
    })
}

/// Removes all values of the client's own namespace. Pinned ones keep their bytes until the last
/// pin is released. `out_removed` (may be NULL) receives how many there were. Fails with
/// KVMEM_ERR_UNSUPPORTED if the server has a tier, which cannot tell the values of a namespace from
/// others: kvmem_node_operator_clear removes all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_clear(
    client: Handle<kvmem_node_client>,
    out_removed: Out<u64>,
) -> kvmem_status {
    client.on(|client| {
        let removed = client.clear()?;
        out_removed.put_if_wanted(removed as u64);
        Ok(())
    })
}

/// Ends the pins of a process that is connected, for operators who know that it no longer reads:
/// kvmem_node_pins_is_valid tells it at once. `out_reclaimed` (may be NULL) receives how many
/// values it had pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_operator_reclaim_pins(
    client: Handle<kvmem_node_client>,
    pid: u32,
    out_reclaimed: Out<u64>,
) -> kvmem_status {
    client.on(|client| {
        let reclaimed = client.as_operator().reclaim_pins(pid)?;
        out_reclaimed.put_if_wanted(reclaimed as u64);
        Ok(())
    })
}
