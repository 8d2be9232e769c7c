//! The command, run as users run it, in one test program.

mod bench;
mod browser;
mod command;
mod doctor;
mod html;
mod metrics;
mod mount;
mod operators;
mod outputs;
mod replay;
mod schema;
mod serve;
mod serve_file;
mod serve_folder;
mod serve_mooncake;
mod serving;
mod sizes;
mod snapshot;
mod surroundings;
mod systemd;
mod tier;
mod tour;
mod trace;
