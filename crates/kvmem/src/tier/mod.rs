#![doc = include_str!("../../docs/tier.md")]

mod chain;
mod key;
mod origin;
mod pinned_value;
mod priority;
mod state;
#[allow(clippy::module_inception)]
mod tier;
mod value;
mod write_behind;

pub use chain::Chain;
pub use key::TierKey;
pub use origin::TierOrigin;
pub use pinned_value::PinnedValue;
pub use priority::Priority;
pub use state::TierState;
pub use tier::{BoxError, Lookup, StoreOutcome, Tier};
pub use value::{TierHints, TierHit, TierRead, TierValue};
pub use write_behind::{OnDrop, WhenFull, WriteBehind, WriteBehindBuilder, WriteBehindStats};
