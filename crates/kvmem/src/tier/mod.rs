#![doc = include_str!("../../docs/tier.md")]

mod chain;
mod key;
#[allow(clippy::module_inception)]
mod tier;
mod value;
mod write_behind;

pub use chain::Chain;
pub use key::TierKey;
pub use tier::TierState;
pub use tier::{BoxError, Lookup, StoreOutcome, Tier};
pub use value::DataType;
pub use value::PinnedValue;
pub use value::Priority;
pub use value::TierOrigin;
pub use value::{TierHints, TierHit, TierRead, TierValue};
pub use write_behind::{OnDrop, WhenFull, WriteBehind, WriteBehindBuilder, WriteBehindStats};
