//! *Node client*: one pool of memory for all engines of a machine, from one of them.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use kvmem_node::format::MAX_KEY;
use kvmem_node::{ClientRegistrars, ConnectOptions, Located, MAX_BATCH, NodeClient, ValueOptions};

use crate::argument::{Handle, In, Out, Owned};
use crate::call::guard;
use crate::error::CallError;
use crate::key::kvmem_key;
use crate::kv_cache::kvmem_kv_cache_key;
use crate::node_keys::{batch, kvmem_node_hints, node_key, node_keys};
use crate::options::{self, flag, options};
use crate::promise::ObjectPromise;
use crate::registrars::kvmem_registrars;
use crate::status::*;
use crate::table::object;

/// A connection to the server of a node: `kvmem serve`. The server keeps the values of all engines
/// of a machine in one memory, which outlives them. A client maps this memory once, and reads and
/// writes values in place. Its calls say keys and receive places.
///
/// A call that finds the server ended connects again by itself, for `retry_ms` milliseconds. The
/// mapping and its registrations with devices stay meanwhile, and so do pins and reservations.
/// Owned by the caller: kvmem_node_client_destroy. Any thread, several at once; their calls
/// overlap.
///
/// All clients that map the memory for writing trust each other: each writes to its own
/// reservations and to nothing else.
///
/// In a forked child, every call on a client, pins or a reservation of the parent returns
/// KVMEM_ERR_FORKED, except the calls that destroy or release it. The child connects anew.
pub struct kvmem_node_client {
    _opaque: [u8; 0],
}

object!(kvmem_node_client, NodeClient);

/// The largest size of a key of a node, in bytes. An empty or longer key fails with
/// KVMEM_ERR_INVALID_ARGUMENT; use a hash of it.
pub const KVMEM_NODE_MAX_KEY_BYTES: u64 = 64;
/// The maximum number of keys, sizes or values of one call on a node. More fail with
/// KVMEM_ERR_INVALID_ARGUMENT; make several calls.
pub const KVMEM_NODE_MAX_BATCH: u64 = 1024;

const _: () = assert!(KVMEM_NODE_MAX_KEY_BYTES == MAX_KEY as u64);
const _: () = assert!(KVMEM_NODE_MAX_BATCH == MAX_BATCH as u64);

options! {
    /// Options of a client of a node. Fill them in with kvmem_node_client_options_init first.
    kvmem_node_client_options: kvmem_node_client_options_init;

    /// The namespace of all keys of the client, such as a model or a tenant. NULL (the default):
    /// the one without a name.
    namespace_name: In<c_char> = In::NULL,
    /// How long a call waits for a server that has ended to start again, in milliseconds. 0: the
    /// call fails at once, and the next one connects again. The default is 10000.
    retry_ms: u64 = 10_000,
    /// How long a call waits for the answer of a server that is there, in milliseconds. The call
    /// then fails with KVMEM_ERR_DISCONNECTED, and the server may do it yet. A call takes at most
    /// the sum of this time and of `retry_ms`, and an eighth more. The default is 30000.
    answer_within_ms: u64 = 30_000,
    /// 1: maps the memory for reading only. Calls that write fail with KVMEM_ERR_READ_ONLY then.
    /// The default is 0.
    read_only: u32 = 0,
    /// 1: enters the pages of the memory into the page table when it is mapped. 0 (the default): at
    /// the first access to each page.
    populate: u32 = 0,
    /// 1: calculates the CRC-32C of each value that the client commits. The default is 0.
    checksums: u32 = 0,
    /// 1: verifies each value that is acquired. A damaged value is a miss, and the server removes
    /// it. A value without a checksum is a miss, too: see kvmem_node_client_unverified. The client
    /// writes checksums, also if `checksums` is 0. The default is 0.
    verify: u32 = 0,
    /// 1: makes the calls through rings in shared memory instead of the socket. A call then waits
    /// awake for its answer for some microseconds. A server that has no more rings serves the
    /// client by the socket. The default is 0.
    rings: u32 = 0,
    /// Always 0.
    reserved: u32 = 0,
    /// What the client registers the whole memory with when it connects: all of it with all of
    /// them, or connecting fails as kvmem_registration_create does. The keys stay valid until the
    /// client, its pins and its reservations are gone, also when the server starts again. A client
    /// that is `read_only` has none: KVMEM_ERR_READ_ONLY. NULL (the default): it registers nothing.
    /// The list may be destroyed once the client is connected.
    registrars: Handle<kvmem_registrars> = Handle::NULL,
    /// The users whose servers the client trusts with its values, `server_user_count` of them, at
    /// most 64. NULL (the default): its own user and root. A server that systemd gives the socket
    /// counts as root's. KVMEM_ERR_PERMISSION if the server is another user's.
    server_users: In<u32> = In::NULL,
    /// Number of `server_users`.
    server_user_count: u64 = 0,
}

/// The most users of one list.
const MAX_SERVER_USERS: u64 = 64;

/// Converts the options.
fn connect_options(
    promise: &ObjectPromise,
    wanted: &kvmem_node_client_options,
) -> Result<ConnectOptions, CallError> {
    let registrars = match wanted.registrars.is_null() {
        true => ClientRegistrars::default(),
        false => ClientRegistrars(wanted.registrars.get(promise)?.all()),
    };
    options::check_reserved(wanted.reserved, "reserved")?;
    let namespace = wanted.namespace_name.text("namespace_name")?;
    let count = wanted.server_user_count;
    let server_users = wanted.server_users.short_list(count, MAX_SERVER_USERS, "server_users")?;
    Ok(ConnectOptions {
        namespace: namespace.unwrap_or_default().to_owned(),
        read_only: flag(wanted.read_only, "read_only")?,
        retry_for: Duration::from_millis(wanted.retry_ms),
        answer_within: Duration::from_millis(wanted.answer_within_ms),
        populate: flag(wanted.populate, "populate")?,
        checksums: flag(wanted.checksums, "checksums")?,
        verify: flag(wanted.verify, "verify")?,
        rings: flag(wanted.rings, "rings")?,
        registrars,
        server_users: server_users.to_vec(),
        ..ConnectOptions::default()
    })
}

/// Connects to the server at the socket `path`, and maps its memory. `options` may be NULL.
///
/// Fails with KVMEM_ERR_DISCONNECTED if no server answers for `retry_ms` milliseconds;
/// KVMEM_ERR_PERMISSION if it does not serve this user in this namespace, or does not let it write,
/// or is the server of a user that is not in `server_users`; KVMEM_ERR_LIMIT if it has as many
/// clients or namespaces as it can have; KVMEM_ERR_PROTOCOL if it is of another release; and the
/// errors of mapping memory.
///
/// ```c
/// kvmem_node_client *client;
/// kvmem_node_client_connect("/run/kvmem.sock", NULL, &client);
/// kvmem_kv_cache_key keys[] = {{"prefix 1", 8}, {"prefix 2", 8}};
/// kvmem_node_value values[2];
/// kvmem_node_pins *pins;
/// kvmem_node_client_acquire(client, keys, 2, values, &pins);
/// if (values[0].is_present)
///     read(values[0].data, values[0].bytes);
/// kvmem_node_pins_release(pins);
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_connect(
    path: In<c_char>,
    options: In<kvmem_node_client_options>,
    out_client: Out<*mut kvmem_node_client>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let made = out_client.get("out_client")?;
        let path = path.some_text("path")?;
        let options = connect_options(&promise, &options::read(&options)?)?;
        // SAFETY: the C caller promises by the comment of `kvmem_node_client` that all clients
        // write to their own reservations alone.
        let client = unsafe { NodeClient::connect(path, &options) }?;
        made.insert(client)
    })
}

/// Returns the memory: `out_bytes` bytes at `out_data`, to register it with a GPU or a NIC. The
/// offsets of values and reservations count from its first byte. It stays mapped, and at the same
/// address, until the client and its pins and reservations are gone. Of a client that is
/// `read_only`, it must not be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_memory(
    client: Handle<kvmem_node_client>,
    out_data: Out<*mut c_void>,
    out_bytes: Out<u64>,
) -> kvmem_status {
    client.on(|client| {
        let data = out_data.get("out_data")?;
        let bytes = out_bytes.get("out_bytes")?;
        let (base, len) = client.memory();
        data.put(base.cast_mut().cast());
        bytes.put(len as u64);
        Ok(())
    })
}

/// Returns the number of bytes of which no value crosses a multiple, or is longer. 0: a value may
/// be as long as the memory. A program that registers the memory by itself, in pieces, ends them at
/// multiples: a GPU cannot copy a value that lies in two pieces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_boundary(
    client: Handle<kvmem_node_client>,
    out_bytes: Out<u64>,
) -> kvmem_status {
    client.on(|client| out_bytes.put("out_bytes", client.boundary().unwrap_or(0)))
}

/// Returns the key with which `device` can access all of `[offset, offset + bytes)` of the memory,
/// such as a value that is pinned or reserved. See the option `registrars`.
/// KVMEM_ERR_NO_SUCH_DEVICE if the client has no such registrar; KVMEM_ERR_STRADDLES if the range
/// needs several keys, as one that crosses a multiple of kvmem_node_client_boundary may.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_key(
    client: Handle<kvmem_node_client>,
    device: In<c_char>,
    offset: u64,
    bytes: u64,
    out_key: Out<kvmem_key>,
) -> kvmem_status {
    client.on(|client| {
        let found = out_key.get("out_key")?;
        let device = device.some_text("device")?;
        found.put(client.key_for(device, offset, bytes)?.into());
        Ok(())
    })
}

/// Returns whether the calls go through rings now: 1 or 0. See the option `rings`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_has_rings(
    client: Handle<kvmem_node_client>,
    out_has_rings: Out<u32>,
) -> kvmem_status {
    client.on(|client| out_has_rings.put("out_has_rings", u32::from(client.has_rings())))
}

/// Returns how many values were misses because the client verifies values and these have no
/// checksum: their writers have connected without the option `checksums`. See the option `verify`.
/// O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_unverified(
    client: Handle<kvmem_node_client>,
    out_unverified: Out<u64>,
) -> kvmem_status {
    client.on(|client| out_unverified.put("out_unverified", client.unverified()))
}

/// The value of a key is in the memory of the node.
pub const KVMEM_NODE_IN_MEMORY: u32 = 1;
/// The value of a key is in the tier of the node, as far as that answers without waiting for a
/// network.
pub const KVMEM_NODE_IN_TIER: u32 = 2;

/// Tells where the values of `count` keys are. Each element of `out_places`, an array of `count`
/// elements, receives KVMEM_NODE_IN_MEMORY, KVMEM_NODE_IN_TIER, both or 0. Nothing is pinned or
/// fetched, so the values may go at once. This does not count as a use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_locate(
    client: Handle<kvmem_node_client>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    out_places: Out<u32>,
) -> kvmem_status {
    client.on(|client| {
        let keys = node_keys(&keys, count)?;
        out_places.check_list(count, "out_places")?;
        let of = |it: Located| {
            let of = |is: bool, place: u32| if is { place } else { 0 };
            of(it.in_memory, KVMEM_NODE_IN_MEMORY) | of(it.in_tier, KVMEM_NODE_IN_TIER)
        };
        let places: Vec<u32> = client.locate(&keys)?.into_iter().map(of).collect();
        // SAFETY: `out_places` has `count` elements, and the client returns one for each key.
        unsafe { out_places.put_all_if_wanted(places) };
        Ok(())
    })
}

/// Returns how many of `count` keys, from the first one on, have values without a gap. Nothing is
/// pinned: the values may be evicted at once. This does not count as a use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_lookup(
    client: Handle<kvmem_node_client>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    out_found: Out<u64>,
) -> kvmem_status {
    client.on(|client| {
        let found = out_found.get("out_found")?;
        found.put(client.lookup(&node_keys(&keys, count)?)? as u64);
        Ok(())
    })
}

/// Reserves a block, copies `bytes` bytes at `data` into it, and commits it under a key. `hints`
/// may be NULL. Fails as kvmem_node_client_reserve and kvmem_node_client_commit do; nothing stays
/// reserved then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_insert(
    client: Handle<kvmem_node_client>,
    key: In<c_void>,
    key_bytes: u64,
    data: In<c_void>,
    bytes: u64,
    hints: In<kvmem_node_hints>,
) -> kvmem_status {
    client.on(|client| {
        let key = node_key(&key, key_bytes)?;
        let options = match hints.is_null() {
            true => ValueOptions::default(),
            false => hints.get("hints")?.read()?,
        };
        Ok(client.insert_with(key, data.value(bytes)?, options)?)
    })
}

/// A value to insert, with its key and its hints.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_node_new_value {
    /// The bytes of the key: 1 to KVMEM_NODE_MAX_KEY_BYTES.
    pub key: In<c_void>,
    /// Number of bytes of the key.
    pub key_bytes: u64,
    /// The bytes of the value.
    pub data: In<c_void>,
    /// Number of bytes of the value.
    pub bytes: u64,
    /// Its hints; all 0: none.
    pub hints: kvmem_node_hints,
}

impl kvmem_node_new_value {
    fn read(&self) -> Result<(&[u8], &[u8], ValueOptions), CallError> {
        let key = node_key(&self.key, self.key_bytes)?;
        Ok((key, self.data.value(self.bytes)?, self.hints.read()?))
    }
}

/// Inserts `count` values as kvmem_node_client_insert does, all of them or none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_insert_batch(
    client: Handle<kvmem_node_client>,
    values: In<kvmem_node_new_value>,
    count: u64,
) -> kvmem_status {
    client.on(|client| {
        let values = batch(&values, count, "values")?.iter().map(kvmem_node_new_value::read);
        Ok(client.insert_batch(&values.collect::<Result<Vec<_>, CallError>>()?)?)
    })
}

/// Removes the values of `count` keys. Pinned ones keep their bytes until the last pin is released.
/// `out_removed` (may be NULL) receives how many there were.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_remove(
    client: Handle<kvmem_node_client>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    out_removed: Out<u64>,
) -> kvmem_status {
    client.on(|client| {
        let count = client.remove(&node_keys(&keys, count)?)?;
        out_removed.put_if_wanted(count as u64);
        Ok(())
    })
}

/// Marks the values of `count` keys as used now. `out_touched` (may be NULL) receives how many
/// there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_touch(
    client: Handle<kvmem_node_client>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    out_touched: Out<u64>,
) -> kvmem_status {
    client.on(|client| {
        let count = client.touch(&node_keys(&keys, count)?)?;
        out_touched.put_if_wanted(count as u64);
        Ok(())
    })
}

/// Says that this client lives. A client that has reservations makes this call, or another one,
/// more often than the server's lease; otherwise its reservations are fenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_keep_alive(
    client: Handle<kvmem_node_client>,
) -> kvmem_status {
    client.on(|client| Ok(client.keep_alive()?))
}

/// Destroys a client. Its pins and reservations stay valid: the memory stays mapped, and the
/// connection open, until they are released, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_destroy(
    client: Owned<kvmem_node_client>,
) -> kvmem_status {
    client.destroy()
}
