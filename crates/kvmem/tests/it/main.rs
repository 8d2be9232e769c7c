//! The layers from outside, through their public faces alone.

mod arena;
mod child;
mod ground;
mod offset;
mod pool;
mod random;
mod register;
mod slab;
#[path = "../standin/mod.rs"]
mod standin;
