//! A node through its sockets and its rings.

mod by_rings;
mod by_socket;
mod cluster;
mod keeper;
mod memory_file;
mod support;
mod tier;
