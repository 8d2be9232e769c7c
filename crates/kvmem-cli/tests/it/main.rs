//! The command, run as users run it, in one test program.

mod bench;
mod browser;
mod command;
mod doctor;
mod html;
mod metrics;
mod mount;
mod outputs;
mod replay;
mod serve_mooncake;
mod sizes;
mod surroundings;
mod tier;
mod tour;
