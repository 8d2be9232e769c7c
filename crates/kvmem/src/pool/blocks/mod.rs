//! *Blocks*: bytes of a pool under one owner, and the memory that they lie in.

mod block;
mod init_on;
mod memory;
mod sub_block;

pub use block::Block;
pub use block::BlockRef;
pub use init_on::InitOn;
pub use sub_block::{SubBlock, SubBlockMut};

pub(super) use memory::{Part, PoolMemory, attach};
