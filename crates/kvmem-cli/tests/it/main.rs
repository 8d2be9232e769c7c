//! The command, run as users run it, in one test program.

mod command;
mod doctor;
mod log;
mod metrics;
mod mount;
mod operators;
mod outputs;
mod pressure;
mod reported;
#[path = "../../../kvmem-tier/tests/it/seccomp.rs"]
mod seccomp;
mod serve;
mod serve_encrypted;
mod serve_folder;
mod serve_mooncake;
mod serving;
mod sizes;
mod surroundings;
mod systemd;
mod tier;
mod tour;
mod trace;
