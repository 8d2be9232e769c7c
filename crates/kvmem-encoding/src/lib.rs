#![doc = include_str!("../docs/encoding.md")]
