//! *Memory device*: blocks in memory, for tests and examples.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Device, Read, Write};

/// A device in memory. Its bytes end with it, unless they are [taken](MemoryDevice::bytes) out.
pub struct MemoryDevice {
    bytes: Mutex<Vec<u8>>,
    new: bool,
}

impl MemoryDevice {
    /// Creates a new device of `len` bytes.
    #[must_use]
    pub fn new(len: usize) -> MemoryDevice {
        MemoryDevice { bytes: Mutex::new(vec![0; len]), new: true }
    }

    /// Creates a device that holds the bytes of another one.
    #[must_use]
    pub fn holding(bytes: Vec<u8>) -> MemoryDevice {
        MemoryDevice { bytes: Mutex::new(bytes), new: false }
    }

    /// Returns a copy of the bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.locked().clone()
    }

    fn locked(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the part of `bytes` that `len` bytes at `at` are.
fn part(bytes: &mut [u8], at: u64, len: usize) -> io::Result<&mut [u8]> {
    let start = usize::try_from(at).ok();
    let part = start.and_then(|start| bytes.get_mut(start..start.checked_add(len)?));
    part.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

impl Device for MemoryDevice {
    fn len(&self) -> u64 {
        self.locked().len() as u64
    }

    fn is_new(&self) -> bool {
        self.new
    }

    fn memory_align(&self) -> usize {
        1
    }

    fn read_align(&self) -> usize {
        1
    }

    fn write(&self, batch: &[Write<'_>], meanwhile: &mut dyn FnMut(usize)) -> Vec<io::Result<()>> {
        let write = |Write { at, parts: [first, second] }: &Write<'_>| {
            let mut bytes = self.locked();
            let to = part(&mut bytes, *at, first.len() + second.len())?;
            to[..first.len()].copy_from_slice(first);
            to[first.len()..].copy_from_slice(second);
            Ok(())
        };
        let results = batch.iter().map(write).collect();
        (0..batch.len()).for_each(meanwhile);
        results
    }

    fn read(
        &self,
        batch: &mut [Read<'_>],
        done: &mut dyn FnMut(usize, &mut Read<'_>, io::Result<()>),
    ) {
        let read = |Read { at, parts: [first, second] }: &mut Read<'_>| {
            let mut bytes = self.locked();
            let from = part(&mut bytes, *at, first.len() + second.len())?;
            first.copy_from_slice(&from[..first.len()]);
            second.copy_from_slice(&from[first.len()..]);
            Ok(())
        };
        for (index, one) in batch.iter_mut().enumerate() {
            let result = read(one);
            done(index, one, result);
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
