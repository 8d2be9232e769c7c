//! *Arena*: bytes that are mapped and handed out. Layer L1.
//!
//! [`BumpArena`] hands out bytes of a [`Memory`] by moving one cursor. [`ProcessArena`] is the arena that a whole process
//! shares when its settings ask for one; where it has no room, a request gets a mapping of its own.

mod bump;
mod bump_error;
mod byte_size;
mod cursor;
#[cfg(not(loom))]
mod global;
mod memory;
mod own_pages;
#[cfg(not(loom))]
mod process;
#[cfg(not(loom))]
mod process_error;
mod settings;

pub use bump::{BumpArena, BumpStats};
pub use bump_error::BumpError;
pub use byte_size::SizeFault;
pub use memory::{Exclusive, HeapMemory, Memory};
#[cfg(not(loom))]
pub use process::{Freed, ProcessArena, ProcessStats};
#[cfg(not(loom))]
pub use process_error::{FreeError, ProcessAllocError, SetupError};
pub use settings::{ArenaSettings, SettingError};
