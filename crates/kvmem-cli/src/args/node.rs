//! Options of the commands for operators of a node: `ls`, `stat`, `top`, `evict`, `drop`,
//! `reclaim`, `resize`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::size;

/// The server that a command connects to.
#[derive(Clone, Debug, ClapArgs)]
pub struct ServerArgs {
    /// The socket of the server
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,

    /// The users whose servers are trusted, as numbers [default: this user and root]
    #[arg(long, value_name = "UID,…", value_delimiter = ',')]
    pub server_users: Vec<u32>,
}

/// Options of `kvmem ls`.
#[derive(Clone, Debug, ClapArgs)]
pub struct LsArgs {
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,

    /// List the clients instead of the values
    #[arg(long)]
    pub sessions: bool,

    /// List the last misses, and why they were misses, instead of the values
    #[arg(long, conflicts_with = "sessions")]
    pub misses: bool,

    /// List the values, or misses, of this namespace only
    #[arg(long, value_name = "NAME", conflicts_with = "sessions")]
    pub namespace: Option<String>,

    /// Maximum values, or misses, to list
    #[arg(
        long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "sessions"
    )]
    pub limit: u64,

    /// Write the list as JSON to FILE; - for standard output instead of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

/// Options of `kvmem stat`.
#[derive(Clone, Debug, ClapArgs)]
pub struct StatArgs {
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,

    /// Write the statistics as JSON to FILE; - for standard output instead of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

/// Options of `kvmem top`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TopArgs {
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,

    /// Seconds between two screens, which the rates are of
    #[arg(
        long, value_name = "SECONDS", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    pub interval: u64,

    /// Print one screen after one interval, and end. Its hit rates are of the time since the server
    /// started, and not since the command did
    #[arg(long)]
    pub once: bool,

    /// Write one screen as JSON to FILE; - for standard output instead of the text. Ends as --once
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

/// Options of `kvmem evict`.
#[derive(Clone, Debug, ClapArgs)]
pub struct EvictArgs {
    /// Values of at least so many bytes, or with a unit, such as 4GiB
    #[arg(value_name = "BYTES", value_parser = size)]
    pub bytes: u64,

    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,

    /// Evict values of this namespace only
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
}

/// Options of `kvmem drop`.
#[derive(Clone, Debug, ClapArgs)]
pub struct DropArgs {
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,

    /// Drop the values of this namespace
    #[arg(long, value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    pub namespace: Option<String>,

    /// Drop the values of all namespaces
    #[arg(long)]
    pub all: bool,
}

/// Options of `kvmem resize`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ResizeArgs {
    /// The size of the memory: at most the `--max` of the server
    #[arg(value_name = "SIZE", value_parser = size)]
    pub size: u64,

    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Options of `kvmem reclaim`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ReclaimArgs {
    /// The process whose pins end, as `kvmem ls --sessions` shows it
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: u32,

    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}
