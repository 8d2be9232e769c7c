//! A cluster, and caches and nodes above it.

mod cluster;
mod tiered;
