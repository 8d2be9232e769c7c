//! Workloads: the sizes and lifetimes that drive an allocator.
//!
//! 1. *Streams.* All randomness comes from [`stream`]: a seed and a number determine a sequence
//!    that is the same on every machine and in every release. Requests and victims of eviction come
//!    from different streams, so two allocators that fail at different times still get the same
//!    requests.
//! 2. *Sizes.* [`Sizes`] is a distribution of request sizes.
//! 3. *Events.* In [`Bimodal`] every object's lifetime is known when it starts. The whole run is
//!    therefore generated before any allocator sees it, and its peak of live bytes is known.
//! 4. *Requests.* [`Prefixes`] are several kinds of requests for blocks by name, as a server
//!    requests them from its KV cache.

mod bimodal;
mod prefixes;
mod sizes;

pub use bimodal::{Batch, Bimodal, Calendar, Lifetimes, Object, PAYLOADS};
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
