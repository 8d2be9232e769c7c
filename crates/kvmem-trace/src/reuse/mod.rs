//! *Reuse*: the hit rate of a trace for every size of a pool, in one pass.
//!
//! **Stack distances.** LRU keeps blocks in the order of their last use. A pool of C bytes holds
//! the longest beginning of that order that fits, whatever C is: a larger pool holds all that a
//! smaller one does (Mattson 1970). The *distance* of a use is the bytes of all blocks that were
//! used since, its own included. It is a hit in every pool of at least that size. One histogram of
//! distances therefore has the hit rates of all sizes. [`recency`] finds a distance in O(log N).
//!
//! **Requests.** A request is served as `kvmem-lab replay` and engines do it. All its blocks are
//! looked up before any is inserted. A block counts as a hit if all blocks before it are hits, too:
//! its
//! *reach* is the largest distance so far. Afterwards the blocks are used from the last to the
//! first, so a block is never older than one that follows it in a prefix.
//!
//! **Sampling** (SHARDS: Waldspurger, Park, Garthwaite and Ahmad, FAST 2015). A block is tracked if
//! a hash of its id is below a threshold, a share R of all hashes. Distances among tracked blocks
//! are R times as long, and each stands for 1 / R uses. The uses that are expected and were not
//! sampled are taken to be those of the hottest blocks, which are hits in any pool (SHARDS-adj).
//! Once more than N blocks are tracked, the threshold is halved and half of them are forgotten
//! (fixed size): memory is bounded, and a trace of at most N blocks is computed exactly.
//!
//! **The stated error.** Tracked blocks fall into [`GROUPS`] groups by other bits of the hash. Each
//! group is a sample of its own and yields a curve. The error of the curve is that of the mean of
//! these curves: their standard deviation over the square root of their number, times 2.36, which
//! covers 95 % of cases (Student's t with seven degrees of freedom). Uses from before the first
//! halving have none.
//!
//! Distances are counted in steps of at most 0.2 % of the size, rounded up.
//!
//! [`distances`] puts these together, over the order of [`recency`] and the steps of [`histogram`].

pub mod distances;
pub mod histogram;
pub mod recency;

pub use distances::GROUPS;
