//! *Core*: one instance of the magazine layer. It does not know which thread runs.

mod moves;
mod reclaim;
mod state;

pub(crate) use state::MagazineCore;
