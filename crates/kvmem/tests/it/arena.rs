//! L1: bytes.

mod preflight;
