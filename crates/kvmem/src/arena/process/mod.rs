//! *Process arena*: one pool for a whole process, and its settings.

mod arena;
mod error;
mod global;
mod own_pages;
mod settings;

pub use arena::{FreeOutcome, ProcessArena, ProcessStats};
pub use error::{FreeError, ProcessAllocError, SetupError};
pub use settings::{ArenaSettings, SettingError};
