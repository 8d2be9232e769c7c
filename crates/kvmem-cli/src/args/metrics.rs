//! Options about metrics, shared by long-running subcommands.

use std::net::SocketAddr;

use clap::Args as ClapArgs;

/// Whether and where metrics are served.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct MetricsArgs {
    /// Serve metrics to Prometheus while it runs, at an address of this machine and a port, such
    /// as 127.0.0.1:9464 (port 0: any that is free)
    #[arg(long = "metrics", value_name = "ADDRESS:PORT")]
    pub address: Option<SocketAddr>,

    /// Let --metrics name an address that other machines can reach. Reading the metrics takes no
    /// authentication
    #[arg(long = "metrics-anywhere", requires = "address")]
    pub anywhere: bool,
}
