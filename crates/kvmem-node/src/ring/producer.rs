//! [`Producer`]: the sending end of a ring.

use super::BadRing;
use super::lines::{RingView, words_of};
use crate::sync::{Ordering, fence};

/// The sending end of a ring. Each ring has one.
#[derive(Debug)]
pub struct Producer {
    ring: RingView,
    /// The position of the next message: what the header says, unless it was overwritten.
    tail: u64,
    /// The last position of the consumer that was known.
    head: u64,
}

impl Producer {
    pub(super) fn new(ring: RingView) -> Producer {
        Producer { ring, tail: 0, head: 0 }
    }

    /// Sends a message. Returns `false` if there is no space for it now.
    ///
    /// # Errors
    /// [`BadRing`].
    pub fn try_send(&mut self, message: &[u8]) -> Result<bool, BadRing> {
        let (len, limit) = (message.len(), self.ring.max_message());
        if len > limit {
            return Err(BadRing::TooLong { len, limit });
        }
        let needed = words_of(len);
        if self.free() < needed {
            self.look()?;
            if self.free() < needed {
                return Ok(false);
            }
        }
        let (first, rest) = self.ring.words(self.tail, needed);
        let (length, first) = match first.split_first() {
            Some(split) => split,
            None => unreachable!("a message has at least the word of its length"),
        };
        // Relaxed, and those of the bytes: the Release of the tail orders them.
        length.store(len as u64, Ordering::Relaxed);
        let (eights, last) = message.as_chunks::<8>();
        let mut padded = [0; 8];
        padded[..last.len()].copy_from_slice(last);
        let last = (!last.is_empty()).then_some(&padded);
        let mut eights = eights.iter().chain(last);
        for (word, eight) in first.iter().chain(rest).zip(&mut eights) {
            word.store(u64::from_le_bytes(*eight), Ordering::Relaxed);
        }
        self.tail = self.tail.wrapping_add(needed);
        // Release: pairs with the Acquire of the consumer's `look`, which reads the words.
        self.ring.header().tail().store(self.tail, Ordering::Release);
        Ok(true)
    }

    /// Returns whether the consumer's doorbell must be rung: it sleeps. Call it after
    /// [`try_send`](Self::try_send).
    #[must_use]
    pub fn bell_is_due(&self) -> bool {
        let sleeps = self.ring.header().consumer_sleeps();
        // SeqCst: pairs with the fence of `Consumer::prepare_to_sleep`: that side sees the tail, or
        // this side the flag.
        fence(Ordering::SeqCst);
        // Relaxed, twice: the flag announces nothing. The doorbell orders what the consumer reads.
        sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0
    }

    /// Asks for the doorbell once the consumer has made space. Returns whether the caller may wait
    /// for it: `false` if there is space for a message of `len` bytes by now.
    ///
    /// # Errors
    /// [`BadRing`].
    pub fn prepare_to_sleep(&mut self, len: usize) -> Result<bool, BadRing> {
        let sleeps = self.ring.header().producer_sleeps();
        // Relaxed: the fence orders it before the load of the head.
        sleeps.store(1, Ordering::Relaxed);
        // SeqCst: pairs with the fence of `Consumer::bell_is_due`.
        fence(Ordering::SeqCst);
        self.look()?;
        let full = self.free() < words_of(len);
        if !full {
            // Relaxed: a doorbell too many does no harm.
            self.ring.header().producer_sleeps().store(0, Ordering::Relaxed);
        }
        Ok(full)
    }

    /// Returns the words that are free, as far as known.
    fn free(&self) -> u64 {
        // No underflow: `look` has checked that at most all words are used.
        self.ring.capacity() - self.tail.wrapping_sub(self.head)
    }

    /// Loads the position of the consumer.
    fn look(&mut self) -> Result<(), BadRing> {
        // Acquire: pairs with the Release of `Consumer::try_receive`, whose loads of the words come
        // before the stores of the next message.
        let head = self.ring.header().head().load(Ordering::Acquire);
        // Positions are compared by their distance from the last one known.
        if head.wrapping_sub(self.head) > self.tail.wrapping_sub(self.head) {
            let (from, to) = (self.head, self.tail);
            return Err(BadRing::Position { whose: "head", position: head, from, to });
        }
        self.head = head;
        Ok(())
    }
}
