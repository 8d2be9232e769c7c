//! The same tests with calls through rings.

pub(crate) const RINGS: bool = true;

#[expect(clippy::duplicate_mod, reason = "the same tests in another way")]
#[path = "calls.rs"]
mod calls;
#[expect(clippy::duplicate_mod, reason = "the same tests in another way")]
#[path = "deaths.rs"]
mod deaths;
