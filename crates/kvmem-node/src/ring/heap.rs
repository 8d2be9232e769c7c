//! [`HeapRing`]: a ring of one process.

use std::ptr::NonNull;
use std::sync::Arc;

use super::consumer::Consumer;
use super::lines::{RingHeader, RingView};
use super::producer::Producer;
use crate::sync::{AtomicU64, Ordering};

/// A ring on the heap of one process, for tests: they see what a hostile process could store.
#[derive(Clone, Debug)]
pub struct HeapRing(Arc<HeapMemory>);

#[derive(Debug)]
struct HeapMemory {
    header: RingHeader,
    area: Box<[AtomicU64]>,
}

/// A word that both sides of a ring access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingField {
    /// The position behind the last message.
    Tail,
    /// The position of the first message.
    Head,
    /// Whether the consumer sleeps.
    ConsumerSleeps,
    /// Whether the producer waits for space.
    ProducerSleeps,
    /// A word of the area, modulo their number.
    Word(usize),
}

impl HeapRing {
    /// Makes an empty ring of `words` words, a power of two.
    #[must_use]
    pub fn new(words: usize) -> HeapRing {
        let header = RingHeader::default();
        HeapRing(Arc::new(HeapMemory {
            header,
            area: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }))
    }

    /// Returns the two ends. There is one of each: make them once.
    #[must_use]
    pub fn ends(&self) -> (Producer, Consumer) {
        (Producer::new(self.view()), Consumer::new(self.view()))
    }

    fn view(&self) -> RingView {
        let memory = &*self.0;
        let area = NonNull::from(&memory.area[..]).cast();
        let words = memory.area.len();
        // SAFETY: both are parts of the memory that the view owns, and accessed as atomics.
        unsafe { RingView::new((&memory.header).into(), area, words, Arc::clone(&self.0) as _) }
    }

    /// Stores a word, as the process at the other side can.
    pub fn store(&self, field: RingField, value: u64) {
        let header = &self.0.header;
        // Relaxed: the tests call it in the thread that uses the ends.
        match field {
            RingField::Tail => header.tail().store(value, Ordering::Relaxed),
            RingField::Head => header.head().store(value, Ordering::Relaxed),
            RingField::ConsumerSleeps => {
                header.consumer_sleeps().store(value as u32, Ordering::Relaxed);
            }
            RingField::ProducerSleeps => {
                header.producer_sleeps().store(value as u32, Ordering::Relaxed);
            }
            RingField::Word(at) => {
                self.0.area[at % self.0.area.len()].store(value, Ordering::Relaxed);
            }
        }
    }
}
