//! Workloads: the sizes and lifetimes that drive an allocator.
//!
//! 1. *Streams.* All randomness comes from [`stream`]: a seed and a number determine a sequence
//!    that is the same on every machine and in every release. Requests and victims of eviction come
//!    from different streams, so two allocators that fail at different times still get the same
//!    requests.
//! 2. *Sizes.* [`Sizes`] is a distribution of request sizes.
//! 3. *Events.* In [`Bimodal`] every object's lifetime is known when it starts. The whole run is
//!    therefore generated before any allocator sees it, and its peak of live bytes is known.
//! 4. *Requests.* [`Conversations`] requests pages by name, as a server requests them from its KV
//!    cache; [`Prefixes`] generates more kinds of requests.

mod bimodal;
mod conversations;
mod prefixes;
mod sizes;

pub use bimodal::{
    BATCH_OBJECTS, Batch, Bimodal, Calendar, Lifetimes, METADATA_SIZES, Object, PAYLOAD_BYTES,
    PAYLOADS,
};
pub use conversations::{Conversations, Page, Request};
pub use prefixes::Prefixes;
pub use sizes::Sizes;

use rand::SeedableRng;

/// The generator: ChaCha with eight rounds. Its specification fixes its values, and its cost of
/// about three nanoseconds per draw is small beside an allocation.
pub type Rng = rand_chacha::ChaCha8Rng;

/// Creates stream `number` of `seed`. Streams of one seed are independent of each other.
#[must_use]
pub fn stream(seed: u64, number: u64) -> Rng {
    let mut rng = Rng::seed_from_u64(seed);
    rng.set_stream(number);
    rng
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng as _;

    #[test]
    fn streams_are_reproducible_and_differ() {
        let draw = |seed, number| {
            let mut rng = stream(seed, number);
            [rng.next_u64(), rng.next_u64()]
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        assert_ne!(draw(1, 0), draw(2, 0));
    }
}
