//! *Pins*: values that cannot be evicted while they are read.

use std::sync::Arc;

use super::ClientError;
use super::grants::Blocks;
use super::inner::ClientInner;
use super::link::NO_PINS;
use crate::crc;
use crate::node::{BlockHandle, Granted, MAX_BATCH};

/// The values that one call has found, pinned until the batch is dropped.
#[derive(Debug)]
pub struct PinBatch {
    pub(super) inner: Arc<ClientInner>,
    /// Empty once they are released.
    blocks: Blocks,
    /// The number of the batch.
    number: u64,
    /// The revocations of the connection when the values were pinned.
    revocations: u64,
    /// Positions of keys whose values the tier reads.
    pub(super) pending: Vec<u16>,
}

/// The value of one key, pinned until this is dropped.
#[derive(Debug)]
pub struct NodePin(PinBatch);

impl NodePin {
    /// Returns the value of a batch of one key, if the key has one.
    pub(super) fn of(batch: PinBatch) -> Option<NodePin> {
        (batch.hits() == 1).then_some(NodePin(batch))
    }

    /// Returns the bytes.
    ///
    /// # Errors
    /// [`ClientError::PinsRevoked`] if the pin is no longer [valid](Self::is_valid).
    pub fn bytes(&self) -> Result<&[u8], ClientError> {
        Ok(self.value()?.bytes())
    }

    /// Returns the value, with its place in the memory.
    ///
    /// # Errors
    /// [`ClientError::PinsRevoked`] if the pin is no longer [valid](Self::is_valid).
    pub fn value(&self) -> Result<PinnedValue<'_>, ClientError> {
        self.0.value(0).ok_or(ClientError::PinsRevoked)
    }

    /// Returns whether the value is still pinned: see [`PinBatch::is_valid`].
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }
}

/// A pinned value.
#[derive(Clone, Copy, Debug)]
pub struct PinnedValue<'a> {
    bytes: &'a [u8],
    block: Granted,
}

impl PinBatch {
    pub(super) fn new(
        inner: Arc<ClientInner>,
        blocks: Blocks,
        number: u64,
        revocations: u64,
    ) -> PinBatch {
        PinBatch { inner, blocks, number, revocations, pending: Vec::new() }
    }

    /// Returns whether the values are still pinned. If they are, the bytes that this thread has
    /// read before are those of the values: ask after reading, if a server may
    /// [reclaim](crate::ServerOptions::reclaim_pins) pins. The server notifies through memory, so
    /// no call is made.
    ///
    /// The pins stay when another server follows a killed one, which revokes them through the same
    /// memory.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.inner.connection.has_pins_of(self.revocations)
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns whether there were no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns the number of keys that have values.
    #[must_use]
    pub fn hits(&self) -> usize {
        self.blocks.iter().flatten().count()
    }

    /// Returns the positions, in order, of the keys without a value that the server's
    /// [tier](kvmem::tier::Tier) is about to read. Empty if the call has waited for them.
    #[must_use]
    pub fn pending(&self) -> &[u16] {
        &self.pending
    }

    /// Returns the value of the key at `index`; `None` if it has none, there is no such key, or the
    /// batch is no longer [valid](Self::is_valid).
    #[must_use]
    pub fn value(&self, index: usize) -> Option<PinnedValue<'_>> {
        let block = (*self.blocks.get(index)?).filter(|_| self.is_valid())?;
        // SAFETY: the range lies in the mapping, which was checked when the answer came. The value
        // is pinned while `self` lives, so no process writes to it: all follow the protocol, as
        // the caller of `connect` has promised.
        let bytes = unsafe {
            let first = self.inner.memory.base().add(block.offset as usize);
            std::slice::from_raw_parts(first, block.len as usize)
        };
        Some(PinnedValue { bytes, block })
    }

    /// Returns the address at which the value of the key at `index` is mapped in this process, for
    /// reading, until the batch is dropped; `None` if the key has no value or there is no such key.
    ///
    /// # Errors
    /// [`ClientError::PinsRevoked`] if the batch is no longer [valid](Self::is_valid).
    pub fn as_ptr(&self, index: usize) -> Result<Option<*const u8>, ClientError> {
        match self.value(index) {
            Some(value) => Ok(Some(value.as_ptr())),
            None if self.is_valid() => Ok(None),
            None => Err(ClientError::PinsRevoked),
        }
    }

    /// Returns the values of all keys, in their order.
    pub fn values(&self) -> impl ExactSizeIterator<Item = Option<PinnedValue<'_>>> {
        (0..self.blocks.len()).map(|index| self.value(index))
    }

    /// Takes out the values whose bytes do not have their checksums.
    pub(super) fn drop_damaged(&mut self) -> PinBatch {
        self.take_out(|_, it| matches!(it.verify(), Err(ClientError::Damaged { .. })))
    }

    /// Takes out the values that have no checksum.
    pub(super) fn drop_unverified(&mut self) -> PinBatch {
        self.take_out(|_, it| it.block.checksum.is_none())
    }

    /// Takes out the values behind the first key without one.
    pub(super) fn drop_behind_gap(&mut self) -> PinBatch {
        let whole = self.blocks.iter().position(Option::is_none).unwrap_or(self.blocks.len());
        self.take_out(|index, _| index > whole)
    }

    /// Takes out the values for which `is_out` is true, as a batch of their own.
    fn take_out(&mut self, is_out: impl Fn(usize, PinnedValue<'_>) -> bool) -> PinBatch {
        let found = self.values().enumerate();
        let out: Vec<bool> =
            found.map(|(index, it)| it.is_some_and(|it| is_out(index, it))).collect();
        let mut taken =
            PinBatch::new(Arc::clone(&self.inner), Blocks::default(), 0, self.revocations);
        if out.contains(&true) {
            let mut whole = self.blocks.to_vec();
            let out = whole.iter_mut().zip(out).filter(|(_, is_out)| *is_out);
            taken.blocks = Arc::new(out.map(|(block, _)| block.take()).collect());
            self.blocks = Arc::new(whole);
            let parts = [&self.blocks, &taken.blocks];
            [self.number, taken.number] =
                self.inner.connection.grants(|it| it.split_pins(self.number, parts));
        }
        taken
    }

    /// Returns the handles.
    pub(super) fn handles(&self) -> Vec<BlockHandle> {
        self.blocks.iter().flatten().map(|it| it.handle).collect()
    }

    /// Divides the batch into one for each key; `None` for keys without a value. Each can be
    /// released for itself.
    #[must_use]
    pub fn split(mut self) -> Vec<Option<PinBatch>> {
        let blocks = std::mem::take(&mut self.blocks);
        let part = |block: &Option<Granted>| block.map(|block| Arc::new(vec![Some(block)]));
        let parts: Vec<Option<Blocks>> = blocks.iter().map(part).collect();
        let numbers = self.inner.connection.grants(|it| it.divide_pins(self.number, parts.iter()));
        let one = |(part, number): (Option<Blocks>, u64)| {
            part.map(|blocks| {
                PinBatch::new(Arc::clone(&self.inner), blocks, number, self.revocations)
            })
        };
        parts.into_iter().zip(numbers).map(one).collect()
    }

    /// Releases several batches, with as few messages as possible. Dropping them has the same
    /// effect.
    pub fn release_all(batches: impl IntoIterator<Item = PinBatch>) {
        let mut last: Option<Arc<ClientInner>> = None;
        let (mut epoch, mut handles) = (NO_PINS, Vec::new());
        for batch in batches {
            let inner = Arc::clone(&batch.inner);
            let earlier = last.replace(Arc::clone(&inner));
            let (of_epoch, more) = batch.into_handles();
            let goes_on = earlier.as_ref().is_some_and(|it| Arc::ptr_eq(it, &inner))
                && of_epoch == epoch
                && handles.len() + more.len() <= MAX_BATCH;
            if let Some(earlier) = earlier.filter(|_| !goes_on) {
                earlier.release(epoch, std::mem::take(&mut handles));
            }
            epoch = of_epoch;
            handles.extend(more);
        }
        if let Some(last) = last {
            last.release(epoch, handles);
        }
    }

    /// Returns the handles, which the caller releases, and the epoch of the pins.
    pub(super) fn into_handles(mut self) -> (u64, Vec<BlockHandle>) {
        self.take_handles()
    }

    fn take_handles(&mut self) -> (u64, Vec<BlockHandle>) {
        let blocks = std::mem::take(&mut self.blocks);
        // The server has released pins that it has revoked. A later batch may have the same blocks.
        let epoch = self.inner.connection.grants(|it| it.take_pins(self.number));
        match epoch {
            Some(epoch) => (epoch, blocks.iter().flatten().map(|it| it.handle).collect()),
            None => (NO_PINS, Vec::new()),
        }
    }
}

impl Drop for PinBatch {
    fn drop(&mut self) {
        if !self.blocks.is_empty() && !self.inner.connection.is_forked() {
            let (epoch, handles) = self.take_handles();
            self.inner.release(epoch, handles);
        }
    }
}

impl<'a> PinnedValue<'a> {
    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the address at which the bytes are mapped in this process, for reading, until their
    /// [`PinBatch`] is dropped.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    /// Returns where the value begins, in bytes of the node's [memory](super::NodeClient::memory):
    /// for transfers by devices that have registered it.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.block.offset
    }

    /// Compares the bytes with the checksum that their writer has calculated. O(length).
    ///
    /// # Errors
    /// [`ClientError::Damaged`] if they differ; [`ClientError::Unverified`] if the writer has
    /// calculated no checksum.
    pub fn verify(&self) -> Result<(), ClientError> {
        let Some(expected) = self.block.checksum else { return Err(ClientError::Unverified) };
        match crc::of(self.bytes) {
            got if got == expected => Ok(()),
            got => Err(ClientError::Damaged { got, expected }),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use kvmem::arena::{Backing, PageSize, Region};

    use crate::{ConnectOptions, Node, NodeClient, NodeOptions, NodeServer, ServerOptions};

    #[test]
    fn released_batches_leave_nothing_behind() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("kvmem.sock");
        let memory = Region::builder(1 << 20).backing(Backing::Shared).ladder(PageSize::Base);
        let memory = memory.map().expect("memory can be mapped");
        let node = Node::create(memory, NodeOptions::default()).expect("possible");
        let server = NodeServer::bind(node, &path, ServerOptions::default()).expect("it is free");
        let stopper = server.stopper();
        let running = std::thread::spawn(move || server.run());
        // SAFETY: the only client is this one, which writes to its reservations alone.
        let client = unsafe { NodeClient::connect(&path, &ConnectOptions::default()) };
        let client = client.expect("the server answers");
        client.insert("here", b"value").expect("there is space");
        let none: [&str; 0] = [];
        for keys in [&["here", "none"][..], &["none"], &none] {
            drop(client.acquire(keys).expect("a call"));
            drop(client.acquire(keys).expect("a call").split());
        }
        client.inner.connection.grants(|it| assert_eq!(it.batches(), 0));
        stopper.stop();
        running.join().expect("no panic").expect("epoll works");
    }
}
