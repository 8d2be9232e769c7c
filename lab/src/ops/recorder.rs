//! *Recorder*: writes the calls of all threads in one order.
//!
//! An allocation is made and written under one lock, so allocations appear in the order in which
//! they were served. A free is written *before* it happens. The next owner of its bytes is
//! therefore written after the free: ranges never overlap at any point of the file, and each
//! thread's calls keep their order. With one thread the file is the exact sequence of calls.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvmem_cli::output_file::{OutputError, OutputFile, OutputFiles};

use super::format::{END, FAILED, FREED, Header, SERVED, put_varint};

/// Bytes that are buffered before they are written.
const BUFFER: usize = 1 << 16;

/// A file of calls that is being written.
pub struct Recorder {
    state: Mutex<Writer>,
    path: PathBuf,
}

struct Writer {
    /// `None` when the recording is complete or has failed.
    file: Option<OutputFile>,
    buffer: Vec<u8>,
    sum: crc32fast::Hasher,
    calls: u64,
    served: u64,
    /// The first failure to write; nothing is written after it.
    failed: Option<io::Error>,
}

/// An allocated range. Dropping it writes the free, so it must be dropped just before the range is
/// freed.
pub struct Ticket {
    recorder: Arc<Recorder>,
    number: u64,
}

impl Recorder {
    /// Records into a file of this name, which is unchanged until [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`OutputError`] if it cannot be written.
    pub fn create(path: &Path) -> Result<Recorder, OutputError> {
        OutputFiles::new().open("--record", path).map(Recorder::new)
    }

    /// Records into this file.
    pub fn new(file: OutputFile) -> Recorder {
        let path = file.path().to_owned();
        let state = Writer {
            file: Some(file),
            buffer: Vec::with_capacity(2 * BUFFER),
            sum: crc32fast::Hasher::new(),
            calls: 0,
            served: 0,
            failed: None,
        };
        Recorder { state: Mutex::new(state), path }
    }

    /// Returns the file, as named on the command line.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the header. Must be called once, before any call is recorded.
    pub fn begin(&self, header: &Header) {
        self.state().buffer.extend(header.encode());
    }

    /// Runs a call of allocate and writes its result; `offset` reads the offset of the range.
    pub fn allocate<T, E>(
        self: &Arc<Self>,
        size: u64,
        attempt: impl FnOnce() -> Result<T, E>,
        offset: impl FnOnce(&T) -> u64,
    ) -> (Result<T, E>, Option<Ticket>) {
        let mut state = self.state();
        let done = attempt();
        let kind = if done.is_ok() { SERVED } else { FAILED };
        state.begin(kind, size);
        let ticket = done.as_ref().ok().map(|made| {
            put_varint(&mut state.buffer, offset(made));
            state.served += 1;
            Ticket { recorder: Arc::clone(self), number: state.served - 1 }
        });
        (done, ticket)
    }

    /// Writes the end, commits the file, and returns the number of calls. Later frees are not
    /// written.
    ///
    /// # Errors
    /// [`OutputError`] if this, or an earlier call, could not be written.
    pub fn finish(&self) -> Result<u64, OutputError> {
        let mut state = self.state();
        let calls = state.calls;
        state.buffer.push(END);
        put_varint(&mut state.buffer, calls);
        state.flush();
        let sum = state.sum.clone().finalize();
        state.buffer.extend(sum.to_le_bytes());
        state.flush();
        // From here on nothing is written.
        let Some(file) = state.file.take() else { return Ok(calls) };
        match state.failed.take() {
            None => file.commit().map(|()| calls),
            Some(source) => Err(file.failed(source)),
        }
    }

    fn state(&self) -> MutexGuard<'_, Writer> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    fn begin(&mut self, kind: u8, number: u64) {
        if self.buffer.len() >= BUFFER {
            self.flush();
        }
        self.calls += 1;
        self.buffer.push(kind);
        put_varint(&mut self.buffer, number);
    }

    fn flush(&mut self) {
        if let (None, Some(file)) = (&self.failed, &mut self.file) {
            self.sum.update(&self.buffer);
            self.failed = file.write_all(&self.buffer).err();
        }
        self.buffer.clear();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.recorder.state();
        let age = state.served - 1 - self.number;
        state.begin(FREED, age);
    }
}
