//! *Errors*: why a pool could not be had, or a block not be had from it.

use thiserror::Error;

use crate::arena::{ArenaError, SizeFault};
use crate::offset::{AllocError, SpaceError};
use crate::register::RegisterError;
use crate::slab::ExtentSetupError;

/// Why a pool could not be built or changed, or a block not be had.
///
/// When building fails nothing is left behind: nothing is mapped, pinned, or running.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The request for a block, or for a change of one, cannot be met. The value says why; nothing was changed.
    #[error(transparent)]
    Refused(#[from] AllocError),
    /// A text that is no size.
    #[error("{text:?} is no size: {fault}; give a number of bytes, or one with K, M, G or T, such as 64GiB")]
    Size {
        /// The text.
        text: Box<str>,
        /// What is wrong with it.
        fault: Box<SizeFault>,
    },
    /// The memory could not be had.
    #[error("the pool's memory: {0}")]
    Memory(Box<ArenaError>),
    /// The memory could not be registered, or there is no key.
    #[error("the pool's registration: {0}")]
    Register(Box<RegisterError>),
    /// The space of offsets could not be made, grown or shrunk.
    #[error("the pool's offsets: {0}")]
    Space(Box<SpaceError>),
    /// The cache of hot sizes could not be made.
    #[error("the pool's hot sizes: {0}")]
    HotSizes(Box<ExtentSetupError>),
}

impl From<ArenaError> for PoolError {
    fn from(error: ArenaError) -> PoolError {
        PoolError::Memory(Box::new(error))
    }
}

impl From<RegisterError> for PoolError {
    fn from(error: RegisterError) -> PoolError {
        PoolError::Register(Box::new(error))
    }
}

impl From<SpaceError> for PoolError {
    fn from(error: SpaceError) -> PoolError {
        PoolError::Space(Box::new(error))
    }
}

impl From<ExtentSetupError> for PoolError {
    fn from(error: ExtentSetupError) -> PoolError {
        match error {
            ExtentSetupError::Space(error) => error.into(),
            error => PoolError::HotSizes(Box::new(error)),
        }
    }
}
