//! The laboratory, run as its users run it, in one test program.

mod bench;
mod browser;
mod curve;
mod html;
mod metrics;
mod outputs;
mod replay;
mod snapshot;
mod surroundings;
mod tier;
