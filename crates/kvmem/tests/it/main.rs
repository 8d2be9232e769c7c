//! The layers from outside, through their public faces alone.

mod arena;
mod bump;
mod offset;
