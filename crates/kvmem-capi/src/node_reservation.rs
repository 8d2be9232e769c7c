//! *Node reservation*: a block of a node that is written in place and then committed.
//!
//! A commit takes reservations out of their objects, because the client needs them by value. If it
//! fails, they are put back, and their handles stay valid.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use kvmem_node::{
    CallError as ServerError, ClientError, NewValue, NodeClient, NodeReservation, ValueOptions,
};

use crate::argument::{Handle, In, Out, Owned};
use crate::call::guard_for;
use crate::error::CallError;
use crate::node_client::kvmem_node_client;
use crate::node_keys::{batch, kvmem_node_hints, node_key};
use crate::promise::ObjectPromise;
use crate::status::*;
use crate::table::{Object, object};

/// A block of a node's memory for a value that is being written. Owned by the caller:
/// kvmem_node_client_commit or kvmem_node_reservation_release. May outlive its client's handle. Any
/// thread.
pub struct kvmem_node_reservation {
    _opaque: [u8; 0],
}

object!(kvmem_node_reservation, ReservationCell);

/// The reservation of a handle; `None` while a commit has it.
pub(crate) struct ReservationCell(Mutex<Option<NodeReservation>>);

impl ReservationCell {
    fn new(reservation: NodeReservation) -> ReservationCell {
        ReservationCell(Mutex::new(Some(reservation)))
    }

    fn take(&self) -> Option<NodeReservation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn is_valid(&self) -> Result<bool, CallError> {
        let reservation = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reservation = reservation.as_ref();
        reservation
            .map(NodeReservation::is_valid)
            .ok_or(CallError::Poisoned("kvmem_node_reservation"))
    }

    fn address(&self) -> Result<*mut c_void, CallError> {
        let mut reservation = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reservation =
            reservation.as_mut().ok_or(CallError::Poisoned("kvmem_node_reservation"))?;
        Ok(reservation.as_mut_ptr()?.cast())
    }

    fn put_back(&self, reservation: NodeReservation) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(reservation);
    }
}

/// A block that was reserved.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_node_reserved {
    /// The reservation. The bytes belong to the caller until it is committed or released.
    pub reservation: *mut kvmem_node_reservation,
    /// The bytes, for writing. They hold what an earlier value left there.
    pub data: *mut c_void,
    /// Number of bytes, as requested.
    pub bytes: u64,
    /// Offset of the first byte in the memory of the node.
    pub offset: u64,
}

/// Adds reservations to the table, all or none.
fn insert_all(reservations: Vec<NodeReservation>) -> Result<Vec<kvmem_node_reserved>, CallError> {
    let mut made: Vec<kvmem_node_reserved> = Vec::with_capacity(reservations.len());
    for mut reservation in reservations {
        let (data, bytes) =
            (reservation.bytes_mut()?.as_mut_ptr().cast(), reservation.len() as u64);
        let offset = reservation.offset();
        match kvmem_node_reservation::table().insert(ReservationCell::new(reservation)) {
            Ok(reservation) => made.push(kvmem_node_reserved { reservation, data, bytes, offset }),
            Err(error) => {
                for earlier in made {
                    // SAFETY: no other call knows the handle: it was not returned yet.
                    let mut promise = unsafe { ObjectPromise::of_caller() };
                    kvmem_node_reservation::table().destroy(&mut promise, earlier.reservation)?;
                }
                return Err(error);
            }
        }
    }
    Ok(made)
}

/// Reserves a block for each of `count` sizes, all or none, and writes to `out_reserved` where they
/// are. Values are evicted for them. The processor or a device writes the values in place;
/// kvmem_node_client_commit makes them visible. A client that ends in any way frees its blocks.
///
/// Fails with KVMEM_ERR_OUT_OF_SPACE if nothing more can be evicted, KVMEM_ERR_ZERO_SIZE,
/// KVMEM_ERR_TOO_LARGE, KVMEM_ERR_READ_ONLY, or KVMEM_ERR_LIMIT if the client or its namespace
/// would have more than it may have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_reserve(
    client: Handle<kvmem_node_client>,
    sizes: In<u64>,
    count: u64,
    out_reserved: Out<kvmem_node_reserved>,
) -> kvmem_status {
    reserve(client, sizes, count, out_reserved, NodeClient::reserve)
}

/// Reserves blocks without waiting for the tier below the node: while the tier is about to free
/// space, the call fails with KVMEM_ERR_OUT_OF_SPACE, and a later one may succeed. Otherwise the
/// call is kvmem_node_client_reserve.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_try_reserve(
    client: Handle<kvmem_node_client>,
    sizes: In<u64>,
    count: u64,
    out_reserved: Out<kvmem_node_reserved>,
) -> kvmem_status {
    reserve(client, sizes, count, out_reserved, NodeClient::try_reserve)
}

/// Reserves blocks by a call of the client.
fn reserve(
    client: Handle<kvmem_node_client>,
    sizes: In<u64>,
    count: u64,
    out_reserved: Out<kvmem_node_reserved>,
    by: fn(&NodeClient, &[u64]) -> Result<Vec<NodeReservation>, ClientError>,
) -> kvmem_status {
    client.on(|client| {
        let sizes = batch(&sizes, count, "sizes")?;
        out_reserved.check_list(count, "out_reserved")?;
        let made = insert_all(by(client, sizes)?)?;
        // SAFETY: there is a place for each of `count` blocks, and the client returned one for each
        // size.
        unsafe { out_reserved.put_all_if_wanted(made) };
        Ok(())
    })
}

/// A reservation, and what it becomes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_node_commit {
    /// The reservation, of the same client.
    pub reservation: *mut kvmem_node_reservation,
    /// The bytes of the key: 1 to KVMEM_NODE_MAX_KEY_BYTES.
    pub key: In<c_void>,
    /// Number of bytes of the key.
    pub key_bytes: u64,
    /// Its hints; all 0: none.
    pub hints: kvmem_node_hints,
}

/// Reservations that were taken out of their objects.
type TakenValues<'a> = Vec<NewValue<&'a [u8]>>;

/// Takes the reservations of a batch. The error says which ones were taken before it.
fn take_all<'a>(
    cells: &[&ReservationCell],
    wanted: &[kvmem_node_commit],
    keys: Vec<(&'a [u8], ValueOptions)>,
) -> Result<TakenValues<'a>, (TakenValues<'a>, CallError)> {
    let mut values = Vec::with_capacity(cells.len());
    for (index, (cell, (key, options))) in cells.iter().zip(keys).enumerate() {
        match cell.take() {
            Some(reservation) => values.push(NewValue { key, reservation, options }),
            None => {
                let handle = wanted[index].reservation;
                let twice = wanted[..index].iter().any(|other| other.reservation == handle);
                let error = if twice {
                    ClientError::Call(ServerError::Twice { index }).into()
                } else {
                    // A commit that had it has panicked.
                    CallError::Poisoned("kvmem_node_reservation")
                };
                return Err((values, error));
            }
        }
    }
    Ok(values)
}

/// Makes `count` reservations values under keys, all of them or none, whatever ends meanwhile. The
/// values that the keys had are replaced. Consumes the reservations.
///
/// If the call fails, the reservations stay as they were, and the call may be repeated: with
/// KVMEM_ERR_DISCONNECTED the server may have committed all of them before it ended, and a
/// repetition then succeeds. KVMEM_ERR_FENCED: the client was silent for longer than the server's
/// lease, and the reservations can only be released. KVMEM_ERR_INVALID_ARGUMENT: a key or a
/// reservation comes twice. KVMEM_ERR_FOREIGN_ALLOCATION: a reservation is of another client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_client_commit(
    client: Handle<kvmem_node_client>,
    values: In<kvmem_node_commit>,
    count: u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard_for(client.pointer(), || {
        let table = kvmem_node_reservation::table();
        let node = client.get(&promise)?;
        let wanted = batch(&values, count, "values")?;
        let mut cells = Vec::with_capacity(wanted.len());
        let mut keys = Vec::with_capacity(wanted.len());
        for one in wanted {
            cells.push(table.get(&promise, one.reservation)?);
            keys.push((node_key(&one.key, one.key_bytes)?, one.hints.read()?));
        }
        let committed = take_all(&cells, wanted, keys).and_then(|values| {
            node.commit(values).map_err(|failed| (failed.values, failed.error.into()))
        });
        if let Err((values, error)) = committed {
            for (cell, value) in cells.iter().zip(values) {
                cell.put_back(value.reservation);
            }
            return Err(error);
        }
        for one in wanted {
            table.destroy(&mut promise, one.reservation)?;
        }
        Ok(())
    })
}

/// Returns whether the server still has the reservation: 1 or 0. It gives the block to no other
/// client before this process has unmapped the memory, or has ended, so the answer is 0 only after
/// an operator or a fault has ended the client's session; write no more then. Makes no call.
/// KVMEM_ERR_POISONED: a commit that had the reservation has failed in an unexpected way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_reservation_is_valid(
    reservation: Handle<kvmem_node_reservation>,
    out_valid: Out<u32>,
) -> kvmem_status {
    reservation.on(|reservation| {
        let valid = out_valid.get("out_valid")?;
        valid.put(u32::from(reservation.is_valid()?));
        Ok(())
    })
}

/// Returns the address of the first byte of the block, for writing, valid until the reservation is
/// committed or released: the `data` of its kvmem_node_reserved. KVMEM_ERR_STALE_ALLOCATION: the
/// server has ended the session of the reservation. Makes no call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_reservation_address(
    reservation: Handle<kvmem_node_reservation>,
    out_address: Out<*mut c_void>,
) -> kvmem_status {
    reservation.on(|reservation| {
        let address = out_address.get("out_address")?;
        address.put(reservation.address()?);
        Ok(())
    })
}

/// Frees the block. Transfers of devices into it have ended by then. The reservation is invalid
/// afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_node_reservation_release(
    reservation: Owned<kvmem_node_reservation>,
) -> kvmem_status {
    reservation.destroy()
}
