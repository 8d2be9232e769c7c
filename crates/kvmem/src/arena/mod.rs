//! *Arena*: bytes that are mapped, resident and placed. Layer L1.

mod pages;
pub mod preflight;

pub use pages::{Ladder, PageSize, ParsePagesError};
