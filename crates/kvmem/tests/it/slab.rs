//! L4: objects.

mod blocks;
mod debug;
mod extents;
mod extents_fork;
mod extents_properties;
mod extents_raw;
mod extents_threads;
mod fork;
mod objects;
mod pages;
mod sequences;
mod threads;
