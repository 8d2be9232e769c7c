//! # kvmem — vmem for KV caches
//!
//! The host-memory stack under an LLM inference server.

// The model check uses a part of what is there.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

pub mod offset;
mod sync;
