//! Tests of clients whose calls go through the socket.

pub(crate) const RINGS: bool = false;

#[path = "calls.rs"]
mod calls;
#[path = "deaths.rs"]
mod deaths;
