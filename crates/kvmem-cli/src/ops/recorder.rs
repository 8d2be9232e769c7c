//! *Recorder*: writes down the calls of all threads in one order.
//!
//! An allocation is asked for and written under one lock, so that allocations stand in the order in which they were served. A free is
//! written *before* it is done. So whoever is served the bytes of a freed range is written after the free: at no line of
//! the file do two ranges overlap, and each thread finds its own calls in the order in which it made them. With one thread the
//! file is the exact sequence of calls.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::format::{END, FREED, Header, REFUSED, SERVED, put_varint};

/// Bytes that are collected before they are written.
const BUFFER: usize = 1 << 16;

/// A file of calls, being written.
pub struct Recorder {
    state: Mutex<State>,
    path: PathBuf,
}

struct State {
    file: File,
    buffer: Vec<u8>,
    sum: crc32fast::Hasher,
    calls: u64,
    served: u64,
    /// The first failure to write; after it nothing more is.
    failed: Option<io::Error>,
}

/// A range that was made, and is written as freed when this is dropped, which must be just before it is freed.
pub struct Ticket {
    recorder: Arc<Recorder>,
    number: u64,
}

/// The recording cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", .path.display())]
pub struct RecordError {
    path: PathBuf,
    source: io::Error,
}

impl Recorder {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// [`RecordError`] if that cannot be.
    pub fn create(path: &Path) -> Result<Recorder, RecordError> {
        let file = File::create(path).map_err(|source| RecordError { path: path.to_owned(), source })?;
        let state = State {
            file,
            buffer: Vec::with_capacity(2 * BUFFER),
            sum: crc32fast::Hasher::new(),
            calls: 0,
            served: 0,
            failed: None,
        };
        Ok(Recorder { state: Mutex::new(state), path: path.to_owned() })
    }

    /// Writes what calls are made to. To be done first, and once.
    pub fn begin(&self, header: &Header) {
        self.state().buffer.extend(header.encode());
    }

    /// Runs a call of allocate and writes how it ended; `offset` tells where what it made begins.
    pub fn allocate<T, E>(
        self: &Arc<Self>,
        size: u64,
        attempt: impl FnOnce() -> Result<T, E>,
        offset: impl FnOnce(&T) -> u64,
    ) -> (Result<T, E>, Option<Ticket>) {
        let mut state = self.state();
        let done = attempt();
        let kind = if done.is_ok() { SERVED } else { REFUSED };
        state.begin(kind, size);
        let ticket = done.as_ref().ok().map(|made| {
            put_varint(&mut state.buffer, offset(made));
            state.served += 1;
            Ticket { recorder: Arc::clone(self), number: state.served - 1 }
        });
        (done, ticket)
    }

    /// Writes the end; returns how many calls there were. What is freed later is not written.
    ///
    /// # Errors
    /// [`RecordError`] if this, or something before it, could not be written.
    pub fn finish(&self) -> Result<u64, RecordError> {
        let mut state = self.state();
        let calls = state.calls;
        state.buffer.push(END);
        put_varint(&mut state.buffer, calls);
        state.flush();
        let sum = state.sum.clone().finalize();
        state.buffer.extend(sum.to_le_bytes());
        state.flush();
        // From here on nothing is written.
        match state.failed.replace(io::ErrorKind::Other.into()) {
            None => Ok(calls),
            Some(source) => Err(RecordError { path: self.path.clone(), source }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn begin(&mut self, kind: u8, number: u64) {
        if self.buffer.len() >= BUFFER {
            self.flush();
        }
        self.calls += 1;
        self.buffer.push(kind);
        put_varint(&mut self.buffer, number);
    }

    fn flush(&mut self) {
        if self.failed.is_none() {
            self.sum.update(&self.buffer);
            self.failed = self.file.write_all(&self.buffer).err();
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
