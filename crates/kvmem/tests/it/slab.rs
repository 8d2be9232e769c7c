//! L4: objects.

mod blocks;
mod debug;
mod objects;
mod pages;
mod threads;
