//! L4: objects.

mod blocks;
mod debug;
mod extents_properties;
mod fork;
mod objects;
mod pages;
mod threads;
