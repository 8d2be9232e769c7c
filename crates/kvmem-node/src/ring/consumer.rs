//! [`Consumer`]: the receiving end of a ring.

use super::BadRing;
use super::lines::{RingView, words_of};
use crate::sync::{AtomicU64, Ordering, fence};

/// The receiving end of a ring. Each ring has one.
#[derive(Debug)]
pub struct Consumer {
    ring: RingView,
    /// The position of the next message: what the header says, unless it was overwritten.
    head: u64,
    /// The last position of the producer that was known.
    tail: u64,
}

impl Consumer {
    pub(super) fn new(ring: RingView) -> Consumer {
        Consumer { ring, head: 0, tail: 0 }
    }

    /// Receives a message: replaces the contents of `into`. Returns `false` if there is none.
    ///
    /// # Errors
    /// [`BadRing`].
    pub fn try_receive(&mut self, into: &mut Vec<u8>) -> Result<bool, BadRing> {
        if !self.has_message()? {
            return Ok(false);
        }
        let available = self.tail.wrapping_sub(self.head);
        // Loaded once: the producer may change the word after the check.
        let length = self.ring.words(self.head, 1).0[0].load(Ordering::Relaxed);
        let limit = (self.ring.max_message() as u64).min((available - 1) * 8);
        if length > limit {
            return Err(BadRing::Length { len: length, limit });
        }
        let len = length as usize;
        let words = words_of(len);
        copy(self.ring.words(self.head.wrapping_add(1), words - 1), len, into);
        self.head = self.head.wrapping_add(words);
        // Release: pairs with the Acquire of the producer's `look`, which stores to the words.
        self.ring.header().head().store(self.head, Ordering::Release);
        Ok(true)
    }

    /// Returns whether a message is there.
    ///
    /// # Errors
    /// [`BadRing`].
    pub fn has_message(&mut self) -> Result<bool, BadRing> {
        if self.tail == self.head {
            self.look()?;
        }
        Ok(self.tail != self.head)
    }

    /// Returns whether the producer's doorbell must be rung: it waits for space. Call it after
    /// [`try_receive`](Self::try_receive).
    #[must_use]
    pub fn bell_is_due(&self) -> bool {
        let sleeps = self.ring.header().producer_sleeps();
        // SeqCst: pairs with the fence of `Producer::prepare_to_sleep`: that side sees the head, or
        // this side the flag.
        fence(Ordering::SeqCst);
        // Relaxed, twice: the flag announces nothing. The doorbell orders what the producer reads.
        sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0
    }

    /// Asks for the doorbell at the next message. Returns whether the caller may sleep: `false` if
    /// a message is there by now.
    ///
    /// # Errors
    /// [`BadRing`].
    pub fn prepare_to_sleep(&mut self) -> Result<bool, BadRing> {
        // Relaxed: the fence orders it before the load of the tail.
        self.ring.header().consumer_sleeps().store(1, Ordering::Relaxed);
        // SeqCst: pairs with the fence of `Producer::bell_is_due`.
        fence(Ordering::SeqCst);
        let empty = !self.has_message()?;
        if !empty {
            self.stay_awake();
        }
        Ok(empty)
    }

    /// Takes back [`prepare_to_sleep`](Self::prepare_to_sleep). The doorbell may still ring once.
    pub fn stay_awake(&self) {
        // Relaxed: a doorbell too many does no harm.
        self.ring.header().consumer_sleeps().store(0, Ordering::Relaxed);
    }

    /// Returns the position of the next message.
    pub(crate) fn position(&self) -> u64 {
        self.head
    }

    /// Returns the address of the header.
    #[cfg(all(test, not(loom)))]
    pub(super) fn address(&self) -> usize {
        std::ptr::from_ref(self.ring.header()).addr()
    }

    /// Returns the position behind the messages that are in the ring now.
    ///
    /// # Errors
    /// [`BadRing`].
    pub(crate) fn end(&mut self) -> Result<u64, BadRing> {
        self.look()?;
        Ok(self.tail)
    }

    /// Loads the position of the producer.
    fn look(&mut self) -> Result<(), BadRing> {
        // Acquire: pairs with the Release of `Producer::try_send`, whose stores to the words come
        // before the loads of this message.
        let tail = self.ring.header().tail().load(Ordering::Acquire);
        let (from, most) = (self.tail, self.ring.capacity() - self.tail.wrapping_sub(self.head));
        // Positions are compared by their distance from the last one known.
        if tail.wrapping_sub(from) > most {
            let to = from.wrapping_add(most);
            return Err(BadRing::Position { whose: "tail", position: tail, from, to });
        }
        self.tail = tail;
        Ok(())
    }
}

/// Copies the bytes of a message out of the ring.
fn copy((first, rest): (&[AtomicU64], &[AtomicU64]), len: usize, into: &mut Vec<u8>) {
    into.clear();
    let bytes = (first.len() + rest.len()) * size_of::<u64>();
    debug_assert!(len <= bytes, "the words of {len} bytes are {bytes}");
    into.reserve(bytes);
    let (eights, _) = into.spare_capacity_mut().as_chunks_mut::<8>();
    for (eight, word) in eights.iter_mut().zip(first.iter().chain(rest)) {
        // Relaxed: the Acquire of the tail has ordered it. A hostile producer may change the word
        // at any time; then the copy has some value, which does not change.
        let word = word.load(Ordering::Relaxed).to_le_bytes();
        for (to, byte) in eight.iter_mut().zip(word) {
            to.write(byte);
        }
    }
    // SAFETY: the capacity is at least `bytes`, which the loop has initialized, and `len` is not
    // more.
    unsafe { into.set_len(len.min(bytes)) };
}
