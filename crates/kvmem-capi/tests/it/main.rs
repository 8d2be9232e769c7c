//! The C interface, used from C and C++, in one test program.

mod c;
mod cpp;
mod fields;
mod forks;
mod header;
mod lengths;
mod misuse;
mod sizes;
mod support;
