//! The layers from outside, through their public faces alone.

mod bump;
mod offset;
