//! *Moves*: the copies of a replay, done once more by `memcpy` alone.
//!
//! The speed of copies to and from the pool depends on the machine, on the sizes, and on what the
//! processor's caches hold. A replay is therefore compared with the same moves in the same memory.
//! The last moves are remembered. After the replay a plain loop repeats them without cache and
//! allocator: written bytes are copied to their place again, hit bytes are copied out. Neither
//! figure includes checksums: a worker compares them in the copy, and that time is separate.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use kvmem::pool::Block;

use crate::bench::stats::median;

use kvmem_cli::workload::model::BlockLayout;
use kvmem_cli::workload::object::ObjectId;
use kvmem_cli::workload::payload::Payloads;

/// Moves of each thread that are remembered.
const MOST: usize = 1 << 18;
/// Bytes of a pass: many times the processor's caches.
const PASS_BYTES: u64 = 2 << 30;
/// Passes; the median counts.
const PASSES: usize = 5;

/// One copy.
#[derive(Clone, Copy)]
struct Move {
    offset: u64,
    id: ObjectId,
    write: bool,
}

/// The last moves of a thread.
pub struct Moves {
    ring: Vec<Move>,
    next: usize,
}

impl Moves {
    /// Makes an empty record.
    pub fn new() -> Self {
        Moves { ring: Vec::new(), next: 0 }
    }

    /// Records that an object was written to this place.
    pub fn write(&mut self, offset: u64, id: ObjectId) {
        self.push(Move { offset, id, write: true });
    }

    /// Records that an object was read at this place.
    pub fn read(&mut self, offset: u64, id: ObjectId) {
        self.push(Move { offset, id, write: false });
    }

    fn push(&mut self, one: Move) {
        if self.ring.len() < MOST {
            self.ring.push(one);
        } else {
            self.ring[self.next] = one;
            self.next = (self.next + 1) % MOST;
        }
    }

    /// Returns the remembered moves, in order.
    fn into_vec(mut self) -> Vec<Move> {
        self.ring.rotate_left(self.next);
        self.ring
    }
}

impl Default for Moves {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the bytes a second of a plain copy that repeats the moves of all threads with as many
/// threads; `None` if there are no moves, or no thread can be started.
///
/// Each thread has an equal part of the memory; moves across the edge of two parts are left out.
pub fn plain_bytes_per_s(
    moves: Vec<Moves>,
    memory: &mut Block,
    layout: &BlockLayout,
    payloads: &Payloads,
) -> Option<f64> {
    let threads = moves.len().max(1);
    let part = memory.len().div_ceil(threads);
    let mut parts: Vec<Vec<Move>> = vec![Vec::new(); threads];
    let size = |id: ObjectId| layout.objects()[id.number as usize] as usize;
    let mut bytes = 0;
    'all: for moves in moves {
        let mut own = 0;
        for mut one in moves.into_vec().into_iter().rev() {
            let (from, len) = (one.offset as usize, size(one.id));
            let number = from / part;
            if from + len > ((number + 1) * part).min(memory.len()) {
                continue;
            }
            one.offset -= (number * part) as u64;
            parts[number].push(one);
            bytes += len as u64;
            own += len as u64;
            if own >= PASS_BYTES / threads as u64 {
                continue 'all;
            }
        }
    }
    if bytes == 0 {
        return None;
    }
    // They were taken in reverse order.
    parts.iter_mut().for_each(|moves| moves.reverse());
    // Few moves are repeated until there is enough to measure.
    let rounds = (PASS_BYTES / 16).div_ceil(bytes);
    let seconds: Vec<f64> = (0..PASSES)
        .map(|_| {
            let start = Instant::now();
            thread::scope(|scope| {
                for (moves, memory) in parts.iter().zip(memory.bytes_mut().chunks_mut(part)) {
                    let copies = move || (0..rounds).for_each(|_| copy(moves, memory, payloads));
                    thread::Builder::new().spawn_scoped(scope, copies).ok()?;
                }
                Some(())
            })?;
            Some(start.elapsed().as_secs_f64())
        })
        .collect::<Option<_>>()?;
    Some((rounds * bytes) as f64 / median(seconds)?)
}

fn copy(moves: &[Move], memory: &mut [u8], payloads: &Payloads) {
    let mut out = payloads.block();
    for one in moves {
        let piece = payloads.piece(one.id);
        let place = &mut memory[one.offset as usize..][..piece.len()];
        if one.write {
            place.copy_from_slice(piece);
        } else {
            out[payloads.within(one.id)].copy_from_slice(place);
            black_box(&mut out);
        }
    }
}
