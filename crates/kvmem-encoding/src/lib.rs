#![doc = include_str!("../docs/encoding.md")]

pub mod codec;
