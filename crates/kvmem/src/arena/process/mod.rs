//! *Process arena*: one pool for a whole process, and its settings.

#[cfg(not(loom))]
mod arena;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod global;
#[cfg(not(loom))]
mod own_pages;
mod settings;

#[cfg(not(loom))]
pub use arena::{FreeOutcome, ProcessArena, ProcessStats};
#[cfg(not(loom))]
pub use error::{FreeError, ProcessAllocError, SetupError};
pub use settings::{ArenaSettings, SettingError};
