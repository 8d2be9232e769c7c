//! Model checks: every order in which threads can meet, and every value that a relaxed load may
//! return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p kvmem --test loom`; without the flag there are
//! no tests here.
#![cfg(all(loom, not(shuttle)))]

mod ages;
mod bump;
mod leases;
mod lock;
mod offset;
mod register;
mod slab;
mod striped;
