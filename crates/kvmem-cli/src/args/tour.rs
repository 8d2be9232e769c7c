//! Options of `kvmem tour`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::size;

/// Options of `kvmem tour`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TourArgs {
    /// Size of the pool in bytes, or with a unit: 256MiB, 1GiB; the default fits the machine and
    /// is at most 1 GiB
    #[arg(long, value_name = "SIZE", value_parser = pool)]
    pub pool: Option<u64>,

    /// Serve the KV workload for at most this many seconds
    #[arg(
        long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub seconds: u64,

    /// Leave out the figures that are measured
    #[arg(long)]
    pub no_figures: bool,

    /// Be the engine that the tour kills, with the server at this socket.
    #[arg(long, hide = true)]
    pub engine: Option<PathBuf>,
}

/// Parses the size of the pool, which must be at least what the workload needs.
fn pool(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes < TourArgs::MIN_POOL => {
            Err("the tour's pool needs 16 MiB at least".to_owned())
        }
        bytes => Ok(bytes),
    }
}

impl Default for TourArgs {
    fn default() -> Self {
        TourArgs { pool: None, seconds: 5, no_figures: false, engine: None }
    }
}

impl TourArgs {
    /// The smallest pool that the workload can run on.
    pub const MIN_POOL: u64 = 16 << 20;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_holds_some_pages() {
        assert_eq!(pool("16MiB"), Ok(16 << 20));
        assert!(pool("1MiB").is_err() && pool("some").is_err());
    }
}
