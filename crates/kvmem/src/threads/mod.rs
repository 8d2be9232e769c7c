//! *Threads*: work that several threads do together.

mod team;

pub(crate) use team::{ThreadTeam, with_team};
