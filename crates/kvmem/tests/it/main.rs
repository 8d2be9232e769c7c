//! Tests of all layers through their public interfaces only.

mod arena;
mod byte_owners;
mod cache;
mod child;
mod handles;
mod offset;
mod pages;
mod pool;
mod random;
mod register;
mod sharing;
mod slab;
#[path = "../standin/mod.rs"]
mod standin;
