//! Tests of all layers through their public interfaces only.

mod arena;
mod byte_owners;
mod cache;
mod child;
mod offset;
mod pages;
mod pool;
mod random;
mod register;
mod slab;
#[path = "../standin/mod.rs"]
mod standin;
