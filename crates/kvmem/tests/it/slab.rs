//! L4: objects.

mod blocks;
mod debug;
mod fork;
mod objects;
mod pages;
mod sequences;
mod threads;
