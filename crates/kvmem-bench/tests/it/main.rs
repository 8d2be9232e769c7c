//! The suites of benchmarks, run small, and their contenders, in one program.

mod arena;
mod cache;
mod concurrency;
mod concurrent_suite;
mod contenders;
mod gpu;
mod html;
mod node;
mod offset;
mod published;
mod register;
mod slab;
mod suite;
mod tier;
