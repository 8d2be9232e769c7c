//! Nothing without `--cfg loom`.
#![cfg(loom)]
