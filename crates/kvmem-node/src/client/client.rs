//! [`NodeClient`]: the calls.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use kvmem::arena::{ArenaError, Region};
use kvmem::register::{Key, Limits, RegisterError, Registrar, RegistrationSet};

use super::connection::{Connection, Sent};
use super::grants::Grants;
use super::inner::{ClientInner, UNEXPECTED};
use super::link::NO_PINS;
use super::memory::ClientMemory;
use super::{
    ClientError, ClientRegistrars, ConnectOptions, NewValue, NodePin, NodeReservation,
    NotCommitted, PinBatch, ValueOptions,
};
use crate::crc;
use crate::error::CallError;
use crate::node::{
    BlockHandle, Events, Listed, Located, Miss, NO_BOUNDARY, NodeStats, PIECE_BYTES,
};
use crate::protocol::{Answer, Call, Commit, Key as ValueKey, Welcome};

/// A client of a node. `Send + Sync`; clones share one connection, and their calls overlap.
#[derive(Clone, Debug)]
pub struct NodeClient {
    pub(super) inner: Arc<ClientInner>,
    checksums: bool,
    verify: bool,
}

/// Starts a thread that reports to the server, three times in a lease, that this process runs,
/// while the client has pins, and that connects again while it has any or reservations. `None`:
/// there can be no more threads, and only calls report it.
fn resume_pins(connection: &Arc<Connection>, lease: Duration) -> Option<Sender<()>> {
    let pause = (lease / 3).max(Duration::from_millis(5));
    let (resuming, ended) = channel();
    // The last clone of the client closes the connection, also while the thread runs.
    let connection = Arc::downgrade(connection);
    let run = move || {
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let Some(connection) = connection.upgrade() else { return };
            connection.resume_pins();
        }
    };
    let thread = Builder::new().name("kvmem-pins".into()).stack_size(KEEPALIVE_STACK);
    thread.spawn(run).ok().map(|_| resuming)
}

/// Bytes of the stack of that thread, which only sends messages.
const KEEPALIVE_STACK: usize = 128 << 10;

/// The scope of an acquisition, and whether it waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acquisition {
    /// End at the first key without a value.
    prefix_only: bool,
    /// Wait for values that only the tier has.
    wait: bool,
}

impl Default for Acquisition {
    fn default() -> Acquisition {
        Acquisition { prefix_only: false, wait: true }
    }
}

/// Populates and registers memory that was mapped.
fn prepare(
    memory: ClientMemory,
    welcome: &Welcome,
    options: &ConnectOptions,
) -> Result<(ClientMemory, Option<RegistrationSet>), ClientError> {
    if options.populate {
        memory.populate(welcome.size);
    }
    let ClientRegistrars(registrars) = &options.registrars;
    if registrars.is_empty() {
        return Ok((memory, None));
    }
    // A device that reads alone cannot be distinguished from one that writes.
    let region = memory.region().ok_or(ClientError::Call(CallError::ReadOnly))?;
    let mut builder = RegistrationSet::builder().registrars(registrars.iter().cloned());
    if let Some(chunk) = chunk_bytes(welcome.boundary, registrars) {
        builder = builder.chunk_bytes(chunk);
    }
    let registration = builder.register(Arc::clone(region))?;
    Ok((memory, Some(registration)))
}

/// Returns the length of pieces whose edges no value crosses; `None`: the registrars choose.
///
/// Both lengths are powers of two, as those of pages are. A piece is therefore a whole number of
/// parts between two multiples of the boundary, and ends at the end of a page. Registrars that
/// prefer few keys have no pieces of their own, and a GPU that gets no length takes one piece.
fn chunk_bytes(boundary: u64, registrars: &[Arc<dyn Registrar>]) -> Option<u64> {
    let chunk = boundary.max(PIECE_BYTES);
    let limits: Vec<Limits> = registrars.iter().map(|registrar| registrar.limits()).collect();
    let wanted = limits.iter().any(|limits| limits.preferred_chunk_bytes.is_some());
    let possible = limits.iter().all(|limits| limits.max_bytes >= chunk);
    (boundary != NO_BOUNDARY && wanted && possible).then_some(chunk)
}

/// Returns the call that releases pins and acquires values.
pub(super) fn acquire_call<K: AsRef<[u8]>>(
    (epoch, release): (u64, Vec<BlockHandle>),
    keys: &[K],
    Acquisition { prefix_only, wait }: Acquisition,
) -> Call<'_> {
    Call::Acquire { epoch, release, keys: keys_of(keys), prefix_only, wait }
}

/// Returns the call that commits values with these checksums.
pub(super) fn commit_call<'a, K: AsRef<[u8]>>(
    values: &'a [NewValue<K>],
    checksums: &[Option<u32>],
) -> Call<'a> {
    let item = |(NewValue { key, reservation, options }, checksum): (&'a NewValue<K>, _)| Commit {
        handle: reservation.handle(),
        key: ValueKey(key.as_ref()),
        parent: options.parent.as_ref().map(|parent| ValueKey(parent.as_bytes())),
        checksum,
        priority: options.priority.get(),
        data_type: options.data_type as u8,
        ttl_ms: options.ttl.map_or(0, |ttl| (ttl.as_millis() as u64).max(1)),
    };
    Call::Commit { items: values.iter().zip(checksums.iter().copied()).map(item).collect() }
}

fn keys_of<K: AsRef<[u8]>>(keys: &[K]) -> Vec<ValueKey<'_>> {
    keys.iter().map(|key| ValueKey(key.as_ref())).collect()
}

impl NodeClient {
    /// Connects to the server at the socket `path`, and maps its memory.
    ///
    /// # Errors
    /// [`ClientError::Disconnected`] if no server answers for [`retry_for`]; [`ClientError::Call`]
    /// if the server does not let the client in; [`ClientError::Memory`].
    ///
    /// # Safety
    /// All processes that have the memory mapped for writing follow the protocol: they write to
    /// their own reservations and to nothing else. The server gives the memory to its own user, to
    /// root, and to members of the group that it allows.
    ///
    /// [`retry_for`]: ConnectOptions::retry_for
    pub unsafe fn connect(
        path: impl AsRef<Path>,
        options: &ConnectOptions,
    ) -> Result<NodeClient, ClientError> {
        let (connection, file, welcome) = Connection::open(path.as_ref(), options)?;
        let memory = ClientMemory::map(file, welcome.memory_len, options.read_only);
        let memory = memory.map_err(|error| match error {
            ArenaError::WrongSize { .. } => ClientError::Protocol {
                what: "the server passed memory of another length than it names",
            },
            error => error.into(),
        })?;
        let (memory, registration) = prepare(memory, &welcome, options)?;
        let ConnectOptions { checksums, verify, .. } = *options;
        let connection = Arc::new(connection);
        let _keeping = resume_pins(&connection, Duration::from_millis(welcome.lease_ms));
        let (boundary, unverified) = (welcome.boundary, AtomicU64::new(0));
        let inner = Arc::new(ClientInner {
            connection,
            _keeping,
            registration,
            memory,
            boundary,
            unverified,
        });
        // Otherwise the client would not find its own values.
        Ok(NodeClient { inner, checksums: checksums || verify, verify })
    }

    /// Returns the registration of the memory with the [registrars](ConnectOptions::registrars) of
    /// the client, if it has any.
    #[must_use]
    pub fn registration(&self) -> Option<&RegistrationSet> {
        self.inner.registration.as_ref()
    }

    /// Returns the key with which a registrar reaches `len` bytes from `offset` on, such as those
    /// of a pinned value or of a reservation.
    ///
    /// # Errors
    /// [`ClientError::Register`]: the client has no such registrar, the range ends beyond the
    /// memory, or it needs several keys. A range between two multiples of the
    /// [boundary](Self::boundary), such as a value, has one key, unless a registrar takes less than
    /// the boundary with one key. The [`chunks`](kvmem::register::Registration::chunks) of the
    /// [registration](Self::registration) are the ranges of the keys.
    pub fn key_for(&self, device: &str, offset: u64, len: u64) -> Result<Key, ClientError> {
        let none = || RegisterError::NoSuchDevice { device: device.to_owned(), have: Vec::new() };
        let registration = self.registration().ok_or_else(none)?;
        let [start, len] = [offset, len].map(|it| usize::try_from(it).unwrap_or(usize::MAX));
        Ok(registration.key_for(device, start..start.saturating_add(len))?)
    }

    /// Returns the address and the length of the memory, to register it with devices. It stays
    /// mapped until the client, its pins and its reservations are dropped. A server whose memory
    /// [changes its size](crate::NodeOperator::resize) gives none of it back from the first call
    /// on, until the client is dropped.
    #[must_use]
    pub fn memory(&self) -> (*const u8, usize) {
        self.inner.connection.note_registers();
        self.mapping()
    }

    /// Returns the same as [`memory`](Self::memory), for a caller that registers nothing.
    #[doc(hidden)]
    #[must_use]
    pub fn mapping(&self) -> (*const u8, usize) {
        (self.inner.memory.base(), self.inner.memory.len())
    }

    /// Returns the number of bytes of which no value crosses a multiple, or is longer; `None`: a
    /// value may be as long as the memory. A program that registers the memory by itself, in
    /// pieces, ends them at multiples.
    #[must_use]
    pub fn boundary(&self) -> Option<u64> {
        Some(self.inner.boundary).filter(|bytes| *bytes != NO_BOUNDARY)
    }

    /// Returns the mapping of the memory: its [file](Region::fd) for an engine that maps it itself,
    /// and the [page tables](Region::populate_aliases) of that second mapping. `None`: this client
    /// only reads. The pages stay, as [`memory`](Self::memory) says.
    #[must_use]
    pub fn region(&self) -> Option<&Region> {
        self.inner.connection.note_registers();
        self.inner.memory.region().map(Arc::as_ref)
    }

    /// Returns the name of the namespace of all keys of the client.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.inner.connection.namespace()
    }

    /// Returns whether the calls go through [rings](crate::ring): the client has
    /// [asked](ConnectOptions::rings) for them, and the server has granted it some.
    #[must_use]
    pub fn has_rings(&self) -> bool {
        self.inner.connection.has_rings()
    }

    /// Returns how many keys in front have values, in memory or in the server's
    /// [tier](kvmem::tier::Tier), from where an acquisition fetches them. Nothing is pinned or
    /// fetched: they may be evicted at once, and a tier may fail.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn lookup<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<usize, ClientError> {
        self.count(&Call::Lookup { keys: keys_of(keys) })
    }

    /// Pins the values of keys, in one call. At most [`MAX_BATCH`](crate::MAX_BATCH) keys.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn acquire<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<PinBatch, ClientError> {
        self.acquire_and((NO_PINS, Vec::new()), keys, Acquisition::default())
    }

    /// Pins the values of keys that memory has, without waiting for the server's
    /// [tier](kvmem::tier::Tier). [`PinBatch::pending`] says which others the tier reads meanwhile:
    /// a later call finds them. The server bounds what it reads for such calls, so some keys that
    /// only the tier has may be neither found nor pending until then.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn try_acquire<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<PinBatch, ClientError> {
        let how = Acquisition { prefix_only: false, wait: false };
        self.acquire_and((NO_PINS, Vec::new()), keys, how)
    }

    /// Pins the values of the keys before the first one that memory does not have, without waiting
    /// for the server's [tier](kvmem::tier::Tier). [`PinBatch::pending`] says which of the
    /// following keys the tier reads meanwhile.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn try_acquire_prefix<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<PinBatch, ClientError> {
        let how = Acquisition { prefix_only: true, wait: false };
        self.acquire_and((NO_PINS, Vec::new()), keys, how)
    }

    /// Pins the values of the keys before the first one that has none.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn acquire_prefix<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<PinBatch, ClientError> {
        let how = Acquisition { prefix_only: true, wait: true };
        self.acquire_and((NO_PINS, Vec::new()), keys, how)
    }

    /// Releases the pins of an earlier batch and acquires others, in one message.
    ///
    /// # Errors
    /// [`ClientError`]. The earlier pins are released nevertheless.
    pub fn exchange<K: AsRef<[u8]>>(
        &self,
        earlier: PinBatch,
        keys: &[K],
    ) -> Result<PinBatch, ClientError> {
        let release = if Arc::ptr_eq(&earlier.inner, &self.inner) {
            earlier.into_handles()
        } else {
            drop(earlier);
            (NO_PINS, Vec::new())
        };
        self.acquire_and(release, keys, Acquisition::default())
    }

    fn acquire_and<K: AsRef<[u8]>>(
        &self,
        release: (u64, Vec<BlockHandle>),
        keys: &[K],
        how: Acquisition,
    ) -> Result<PinBatch, ClientError> {
        self.acquired(&acquire_call(release, keys, how), keys.len(), how, None)
    }

    /// Takes the answer of an acquisition of `count` keys.
    pub(super) fn acquired(
        &self,
        call: &Call<'_>,
        count: usize,
        Acquisition { prefix_only, .. }: Acquisition,
        sent: Option<Sent>,
    ) -> Result<PinBatch, ClientError> {
        let memory = &self.inner.memory;
        let connection = &self.inner.connection;
        let note = |grants: &mut Grants, answer| {
            let Answer::Pinned { epoch, blocks, pending } = answer else {
                return Err(UNEXPECTED);
            };
            if blocks.len() != count {
                return Err(ClientError::Protocol {
                    what: "the server answered for another number of keys",
                });
            }
            for block in blocks.iter().flatten() {
                memory.check(block.offset, block.len)?;
            }
            let blocks = Arc::new(blocks);
            // A batch without keys has nothing to be removed with.
            let has_keys = !blocks.is_empty();
            // An answer of before a loss, which another thread has noted. The batch is not valid.
            if !connection.note_epoch(grants, epoch) {
                return Ok((blocks, pending, 0, connection.revocations().wrapping_sub(1)));
            }
            let number = if has_keys { grants.add_pins(&blocks) } else { 0 };
            Ok((blocks, pending, number, connection.revocations()))
        };
        let (blocks, pending, number, revocations) = connection.finish(call, sent, note)?;
        let mut pins = PinBatch::new(Arc::clone(&self.inner), blocks, number, revocations);
        pins.pending = pending;
        if self.verify {
            self.keep_verified(&mut pins);
            if prefix_only {
                drop(pins.drop_behind_gap());
            }
        }
        Ok(pins)
    }

    /// Takes the values out of a batch that are damaged or have no checksum. Reports the damaged
    /// ones to the server and counts the others.
    fn keep_verified(&self, pins: &mut PinBatch) {
        let damaged = pins.drop_damaged();
        if !damaged.is_empty() {
            // A reader cannot remove them: the next client that can will.
            let _ = self.count(&Call::Damaged { handles: damaged.handles() });
        }
        let unverified = pins.drop_unverified().hits() as u64;
        // A count for reports: it orders no other access.
        self.inner.unverified.fetch_add(unverified, Ordering::Relaxed);
    }

    /// Returns how many values were misses for this client and its clones because it
    /// [verifies](ConnectOptions::verify) values and these have no checksum: their writers have
    /// connected without [`checksums`](ConnectOptions::checksums). A value counts once for each
    /// acquisition. O(1); makes no call.
    #[must_use]
    pub fn unverified(&self) -> u64 {
        // A count for reports: it orders no other access.
        self.inner.unverified.load(Ordering::Relaxed)
    }

    /// Reserves a block for each of `sizes`, all or none. Values are evicted for them.
    ///
    /// # Errors
    /// [`ClientError::Call`] with [`OutOfSpace`](crate::CallError::OutOfSpace),
    /// [`BadLength`](crate::CallError::BadLength) or [`Quota`](crate::CallError::Quota).
    pub fn reserve(&self, sizes: &[u64]) -> Result<Vec<NodeReservation>, ClientError> {
        self.reserve_and(sizes, true)
    }

    /// Reserves a block for each of `sizes`, all or none, without waiting for the server's
    /// [tier](kvmem::tier::Tier): a call that finds no space while the tier is about to free some
    /// fails, and a later one may succeed.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    pub fn try_reserve(&self, sizes: &[u64]) -> Result<Vec<NodeReservation>, ClientError> {
        self.reserve_and(sizes, false)
    }

    fn reserve_and(&self, sizes: &[u64], wait: bool) -> Result<Vec<NodeReservation>, ClientError> {
        self.reserved(&Call::Reserve { sizes: Cow::Borrowed(sizes), wait }, sizes, None)
    }

    /// Takes the answer of a reservation.
    pub(super) fn reserved(
        &self,
        call: &Call<'_>,
        sizes: &[u64],
        sent: Option<Sent>,
    ) -> Result<Vec<NodeReservation>, ClientError> {
        let memory = &self.inner.memory;
        let connection = &self.inner.connection;
        let (blocks, session) = connection.finish(call, sent, |grants, answer| {
            let Answer::Reserved(blocks) = answer else { return Err(UNEXPECTED) };
            if memory.base_mut().is_none() {
                return Err(ClientError::Protocol {
                    what: "the server granted blocks to a client that only reads",
                });
            }
            let whole = blocks.iter().zip(sizes).all(|(block, size)| block.len == *size);
            if blocks.len() != sizes.len() || !whole {
                return Err(ClientError::Protocol {
                    what: "the server granted blocks of other sizes than those requested",
                });
            }
            for block in &blocks {
                memory.check(block.offset, block.len)?;
                grants.reservations.insert(block.handle, block.len);
            }
            Ok((blocks, connection.session()))
        })?;
        let inner = &self.inner;
        let reservation = |block| NodeReservation::new(Arc::clone(inner), block, session);
        Ok(blocks.into_iter().map(reservation).collect())
    }

    /// Makes reservations values under keys, all of them or none, whatever ends meanwhile. The
    /// values that the keys had are replaced. A call that fails gives the reservations back, and
    /// may be repeated: a batch that the server has committed before the connection broke is found
    /// so.
    ///
    /// # Errors
    /// [`NotCommitted`] with the values, and the [`ClientError`];
    /// [`ForeignReservation`](ClientError::ForeignReservation) for one of another client.
    pub fn commit<K: AsRef<[u8]>>(&self, values: Vec<NewValue<K>>) -> Result<(), NotCommitted<K>> {
        match self.send_commit(&values) {
            Ok(()) => {
                values.into_iter().for_each(|value| value.reservation.forget());
                Ok(())
            }
            Err(error) => Err(NotCommitted { error, values }),
        }
    }

    fn send_commit<K: AsRef<[u8]>>(&self, values: &[NewValue<K>]) -> Result<(), ClientError> {
        self.check_commit(values)?;
        self.committed(values, &self.checksums_of(values), None)
    }

    /// Returns the checksums of values that are committed, if the client calculates them.
    pub(super) fn checksums_of<K>(&self, values: &[NewValue<K>]) -> Vec<Option<u32>> {
        let checksum = |it: &NewValue<K>| self.checksums.then(|| crc::of(it.reservation.bytes()));
        values.iter().map(checksum).collect()
    }

    /// Returns an error unless the client has the reservations of all values.
    pub(super) fn check_commit<K>(&self, values: &[NewValue<K>]) -> Result<(), ClientError> {
        let connection = &self.inner.connection;
        if connection.is_forked() {
            return Err(ClientError::Forked);
        }
        if let Some(index) = values.iter().position(|it| !it.reservation.is_of(&self.inner)) {
            return Err(ClientError::ForeignReservation { index });
        }
        let mut handles = values.iter().map(|it| it.reservation.handle());
        let has_all =
            connection.grants(|it| handles.all(|handle| it.reservations.contains_key(&handle)));
        if has_all { Ok(()) } else { Err(ClientError::Call(CallError::Fenced)) }
    }

    /// Takes the answer of a commit.
    pub(super) fn committed<K: AsRef<[u8]>>(
        &self,
        values: &[NewValue<K>],
        checksums: &[Option<u32>],
        sent: Option<Sent>,
    ) -> Result<(), ClientError> {
        let call = commit_call(values, checksums);
        self.inner.connection.finish(&call, sent, |grants, answer| {
            let Answer::Done = answer else { return Err(UNEXPECTED) };
            for value in values {
                grants.reservations.remove(&value.reservation.handle());
            }
            Ok(())
        })
    }

    /// Reserves a block, copies a value into it, and commits it.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve) and [`commit`](Self::commit).
    pub fn insert(&self, key: impl AsRef<[u8]>, value: &[u8]) -> Result<(), ClientError> {
        self.insert_with(key, value, ValueOptions::default())
    }

    /// Inserts a value as [`insert`](Self::insert) does, with hints about its worth.
    ///
    /// # Errors
    /// The errors of [`insert`](Self::insert).
    pub fn insert_with(
        &self,
        key: impl AsRef<[u8]>,
        value: &[u8],
        options: ValueOptions,
    ) -> Result<(), ClientError> {
        self.insert_batch(&[(key, value, options)])
    }

    /// Inserts several values with the hints of each, all of them or none. At most
    /// [`MAX_BATCH`](crate::MAX_BATCH) values.
    ///
    /// # Errors
    /// The errors of [`insert`](Self::insert).
    pub fn insert_batch<K: AsRef<[u8]>>(
        &self,
        values: &[(K, &[u8], ValueOptions)],
    ) -> Result<(), ClientError> {
        let sizes: Vec<u64> = values.iter().map(|(_, value, _)| value.len() as u64).collect();
        let reservations = self.reserve(&sizes)?;
        let mut committed = Vec::with_capacity(values.len());
        for (mut reservation, (key, value, options)) in reservations.into_iter().zip(values) {
            reservation.write(0, value)?;
            let (key, options) = (key.as_ref(), *options);
            committed.push(NewValue { key, reservation, options });
        }
        Ok(self.commit(committed)?)
    }

    /// Returns the value of a key, pinned; `None` if neither memory nor the server's
    /// [tier](kvmem::tier::Tier) has one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<NodePin>, ClientError> {
        Ok(NodePin::of(self.acquire(&[key])?))
    }

    /// Removes the values of keys. The bytes of pinned ones stay until the last pin is dropped.
    /// Returns how many there were.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn remove<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<usize, ClientError> {
        self.count(&Call::Remove { keys: keys_of(keys) })
    }

    /// Marks values as used now. Returns how many there are.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn touch<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<usize, ClientError> {
        self.count(&Call::Touch { keys: keys_of(keys) })
    }

    /// Says that this client lives. A client that has reservations calls it, or another call, more
    /// often than the server's lease.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn keep_alive(&self) -> Result<(), ClientError> {
        self.inner.connection.call(&Call::KeepAlive, |_, answer| match answer {
            Answer::Done => Ok(()),
            _ => Err(UNEXPECTED),
        })
    }

    /// Returns the statistics of the node.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn stats(&self) -> Result<NodeStats, ClientError> {
        self.inner.connection.call(&Call::Stats, |_, answer| match answer {
            Answer::Stats(stats) => Ok(*stats),
            _ => Err(UNEXPECTED),
        })
    }

    /// Returns at most `max` events from position `from` on, and the position to go on with. 0 is
    /// the position of the oldest event that the server has, and 2^63 and above are that of the
    /// next one. Waits for the first event for at most `wait`.
    ///
    /// The server has the latest events, and a restarted one has none of those before. Events
    /// that are missing are [reported](Events::lost), and the call returns at once then: the caller
    /// looks at what there is, by [`list_namespace`](Self::list_namespace), and goes on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn events(&self, from: u64, max: u32, wait: Duration) -> Result<Events, ClientError> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        self.inner.connection.call(&Call::Events { from, max, wait_ms }, |_, answer| match answer {
            Answer::Events(events) => Ok(events),
            _ => Err(UNEXPECTED),
        })
    }

    /// Returns where the values of keys are, one element for each. Nothing is pinned, fetched or
    /// counted as used: they may go at once. At most [`MAX_BATCH`](crate::MAX_BATCH) keys.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn locate<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Located>, ClientError> {
        let call = Call::Locate { keys: keys_of(keys) };
        self.inner.connection.call(&call, |_, answer| match answer {
            Answer::Located(located) if located.len() == keys.len() => Ok(located),
            _ => Err(UNEXPECTED),
        })
    }

    /// Lists at most `max` values of the client's own namespace, from entry `from` on: those in
    /// memory, and those in the tier that this server has stored there or fetched, which have no
    /// pins, priority and time of use. Returns the entry to go on with. Values that come and go
    /// between two calls may be missing, and events report them.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn list_namespace(
        &self,
        from: u32,
        max: u32,
    ) -> Result<(Vec<Listed>, Option<u32>), ClientError> {
        self.inner.connection.call(&Call::ListNamespace { from, max }, |_, answer| match answer {
            Answer::Listed { values, next } => Ok((values, next)),
            _ => Err(UNEXPECTED),
        })
    }

    /// Returns at most `max` of the last misses of the client's own namespace, and why they were
    /// misses; the last one comes first. Of each call the server remembers the first key without a
    /// value, and of all calls the last 256.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn misses(&self, max: u32) -> Result<Vec<Miss>, ClientError> {
        self.list_misses(false, max)
    }

    pub(super) fn list_misses(&self, all: bool, max: u32) -> Result<Vec<Miss>, ClientError> {
        self.inner.connection.call(&Call::Misses { all, max }, |_, answer| match answer {
            Answer::Misses(misses) => Ok(misses),
            _ => Err(UNEXPECTED),
        })
    }

    /// Removes all values of the client's own namespace. Returns how many there were. Pinned ones
    /// stay readable until the last pin is dropped.
    ///
    /// # Errors
    /// [`ClientError::Call`] with [`NamespaceInTier`](crate::CallError::NamespaceInTier) if the
    /// server has a [tier](kvmem::tier::Tier) that does not encrypt: it does not know the namespace
    /// of a value, and an [operator](Self::as_operator) can remove all values.
    pub fn clear(&self) -> Result<usize, ClientError> {
        self.count(&Call::Clear { namespace: Some(self.namespace()) })
    }

    /// Evicts values of at least `bytes` from the client's own namespace. Returns the bytes that
    /// were evicted.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn evict(&self, bytes: u64) -> Result<u64, ClientError> {
        self.count(&Call::Evict { namespace: Some(self.namespace()), bytes })
            .map(|bytes| bytes as u64)
    }

    pub(super) fn count(&self, call: &Call<'_>) -> Result<usize, ClientError> {
        self.inner.connection.call(call, |_, answer| match answer {
            Answer::Count(count) => Ok(count as usize),
            _ => Err(UNEXPECTED),
        })
    }
}
