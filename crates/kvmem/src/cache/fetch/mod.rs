//! *Fetch*: what a cache lacks comes from its lower tier, and what it removes is removed there.

mod fetching;
mod get;
mod read;
mod removal;

pub use fetching::Fetching;
