//! *Node pins*: values of a node that cannot be evicted while they are read.

use std::ffi::c_void;

use kvmem_node::{ClientError, NodeClient, PinBatch};

use crate::argument::{Handle, In, Out, Owned};
use crate::call::{Place, guard_for, size};
use crate::error::CallError;
use crate::kv_cache::kvmem_kv_cache_key;
use crate::node_client::kvmem_node_client;
use crate::node_keys::node_keys;
use crate::promise::ObjectPromise;
use crate::status::*;
use crate::table::{Object, object};

/// The pins of one call. While they exist, their values are neither evicted nor overwritten, also
/// if they are removed or replaced, and also if the server ends and starts again. Owned by the
/// caller: kvmem_node_pins_release, or kvmem_node_client_exchange. May outlive their client's
/// handle. Any thread, several at once.
pub struct kvmem_node_pins {
    _opaque: [u8; 0],
}

object!(kvmem_node_pins, PinBatch);

/// A value of a node, or none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_node_value {
    /// The bytes, for reading, valid until the pins are released; NULL if the key has no value.
    pub data: *const c_void,
    /// Number of bytes; 0 if the key has no value.
    pub bytes: u64,
    /// Offset of the first byte in the memory of the node.
    pub offset: u64,
    /// Whether the key has a value: 1 or 0.
    pub is_present: u32,
    /// Whether the tier below the node is about to read the value, and a later call finds it: 1 or
    /// 0. Always 0 after a call that waits for the tier.
    pub is_pending: u32,
}

/// Returns the values of pins.
fn values(pins: &PinBatch) -> Vec<kvmem_node_value> {
    let value = |found: Option<kvmem_node::PinnedValue<'_>>| match found {
        Some(found) => kvmem_node_value {
            data: found.bytes().as_ptr().cast(),
            bytes: found.bytes().len() as u64,
            offset: found.offset(),
            is_present: 1,
            is_pending: 0,
        },
        None => kvmem_node_value {
            data: std::ptr::null(),
            bytes: 0,
            offset: 0,
            is_present: 0,
            is_pending: 0,
        },
    };
    let mut values: Vec<kvmem_node_value> = pins.values().map(value).collect();
    for &pending in pins.pending() {
        if let Some(value) = values.get_mut(usize::from(pending)) {
            value.is_pending = 1;
        }
    }
    values
}

/// Where the results of a call that pins go.
struct Results {
    values: Out<kvmem_node_value>,
    pins: Place<*mut kvmem_node_pins>,
}

impl Results {
    /// Checks the pointers. `values` is a list of `count` elements.
    fn new(
        values: Out<kvmem_node_value>,
        count: u64,
        pins: Out<*mut kvmem_node_pins>,
    ) -> Result<Results, CallError> {
        values.check_list(count, "out_values")?;
        Ok(Results { values, pins: pins.get("out_pins")? })
    }

    /// Writes the results.
    fn put(self, pins: PinBatch) -> Result<(), CallError> {
        let found = values(&pins);
        let pins = kvmem_node_pins::table().insert(pins)?;
        // SAFETY: the caller of `new` passed a list with a place for each key, and the client
        // returns one value for each.
        unsafe { self.values.put_all_if_wanted(found) };
        self.pins.put(pins);
        Ok(())
    }
}

/// Pins the values of `count` keys, in one call. `out_values` receives a value for each key, in
/// their order; `is_present` is 0 where a key has none. `out_pins` receives the pins of all of
/// them, also if there are none. This counts as a use.
///
/// KVMEM_ERR_LIMIT: the client or its namespace would have more pins than it may have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_acquire(
    client: Handle<kvmem_node_client>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    out_values: Out<kvmem_node_value>,
    out_pins: Out<*mut kvmem_node_pins>,
) -> kvmem_status {
    acquire(client, keys, count, out_values, out_pins, |it, keys| it.acquire(keys))
}

/// Pins the values of the keys before the first one that has none: what is left of a prefix. All
/// keys from that one on have `is_present` 0. Otherwise the call is kvmem_node_client_acquire.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_acquire_prefix(
    client: Handle<kvmem_node_client>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    out_values: Out<kvmem_node_value>,
    out_pins: Out<*mut kvmem_node_pins>,
) -> kvmem_status {
    acquire(client, keys, count, out_values, out_pins, |it, keys| it.acquire_prefix(keys))
}

/// Pins the values that memory has, without waiting for the tier below the node. `is_pending` says
/// which of the other keys the tier reads meanwhile: a later call finds them. The server bounds
/// what it reads for such calls. Otherwise the call is kvmem_node_client_acquire.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_try_acquire(
    client: Handle<kvmem_node_client>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    out_values: Out<kvmem_node_value>,
    out_pins: Out<*mut kvmem_node_pins>,
) -> kvmem_status {
    acquire(client, keys, count, out_values, out_pins, |it, keys| it.try_acquire(keys))
}

/// Pins the values of the keys before the first one that memory does not have, without waiting for
/// the tier below the node. Otherwise the call is kvmem_node_client_try_acquire.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_try_acquire_prefix(
    client: Handle<kvmem_node_client>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    out_values: Out<kvmem_node_value>,
    out_pins: Out<*mut kvmem_node_pins>,
) -> kvmem_status {
    acquire(client, keys, count, out_values, out_pins, |it, keys| it.try_acquire_prefix(keys))
}

/// Pins values by a call of the client.
fn acquire(
    client: Handle<kvmem_node_client>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    out_values: Out<kvmem_node_value>,
    out_pins: Out<*mut kvmem_node_pins>,
    by: impl FnOnce(&NodeClient, &[&[u8]]) -> Result<PinBatch, ClientError>,
) -> kvmem_status {
    client.on(|client| {
        let results = Results::new(out_values, count, out_pins)?;
        results.put(by(client, &node_keys(&keys, count)?)?)
    })
}

/// Releases earlier pins and acquires those of `count` keys, in one message to the server. Consumes
/// `pins`, also if the server or the connection fails; a call with a wrong argument changes
/// nothing. Otherwise the call is kvmem_node_client_acquire.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_exchange(
    client: Handle<kvmem_node_client>,
    pins: Owned<kvmem_node_pins>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    out_values: Out<kvmem_node_value>,
    out_pins: Out<*mut kvmem_node_pins>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard_for(client.pointer(), || {
        // All arguments are checked before the pins are taken.
        client.get(&promise)?;
        pins.get(&promise)?;
        let results = Results::new(out_values, count, out_pins)?;
        let keys = node_keys(&keys, count)?;
        let earlier = pins.take(&mut promise)?;
        let client = client.get(&promise)?;
        results.put(client.exchange(earlier, &keys)?)
    })
}

/// Returns whether the values are still pinned: 1 or 0. If they are, the bytes that this thread has
/// read before are those of the values: check after reading, where a server may reclaim pins. Makes
/// no call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_pins_is_valid(
    pins: Handle<kvmem_node_pins>,
    out_valid: Out<u32>,
) -> kvmem_status {
    pins.on(|pins| out_valid.put("out_valid", u32::from(pins.is_valid())))
}

/// Returns the address of the first byte of the value at `index`, for reading, valid until the pins
/// are released: the `data` of its kvmem_node_value. KVMEM_ERR_STALE_ALLOCATION: the values are no
/// longer pinned. KVMEM_ERR_NOT_FOUND: the key at `index` has no value. Makes no call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_pins_address(
    pins: Handle<kvmem_node_pins>,
    index: u64,
    out_address: Out<*const c_void>,
) -> kvmem_status {
    pins.on(|pins| {
        let address = out_address.get("out_address")?;
        address.put(pins.as_ptr(size(index))?.ok_or(CallError::NotFound)?.cast());
        Ok(())
    })
}

/// Compares the bytes of the value at `index` with the checksum that its writer has calculated.
/// KVMEM_ERR_DAMAGED: they differ. KVMEM_ERR_UNSUPPORTED: the writer has calculated none, because
/// it has connected without the option `checksums`. KVMEM_ERR_NOT_FOUND: the key at `index` has no
/// value. O(bytes).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_pins_verify(
    pins: Handle<kvmem_node_pins>,
    index: u64,
) -> kvmem_status {
    pins.on(|pins| Ok(pins.value(size(index)).ok_or(CallError::NotFound)?.verify()?))
}

/// Releases all pins of a call. The bytes of the values are not valid any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_pins_release(pins: Owned<kvmem_node_pins>) -> kvmem_status {
    pins.destroy()
}
