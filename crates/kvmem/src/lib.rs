//! # kvmem — vmem for KV caches
//!
//! The host-memory stack under an LLM inference server.

pub mod offset;
mod sync;
