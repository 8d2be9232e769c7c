//! *Metrics server*: answers Prometheus while a command runs.
//!
//! There is one recorder for the process, which is made with the first server, and one thread for
//! each server, however many clients connect. On a request the thread publishes the observed
//! figures and prints the recorder's metrics. The threads that do the command's work never wait for
//! it.

mod http;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use kvmem::pool::observe::Exporter;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use self::http::{Answer, HttpServer};
use crate::args::MetricsArgs;

/// The content type of the text.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Upper ends of the buckets of times, in seconds: from a few instructions to a wait.
const SECONDS: [f64; 18] = [
    1e-8, 2e-8, 3e-8, 5e-8, 7.5e-8, 1e-7, 2e-7, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 5e-5, 1e-4, 1e-3,
    1e-2, 1e-1, 1.0,
];

/// Metrics cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsServerError {
    /// Other machines can reach the address.
    #[error(
        "--metrics {address}: other machines can read metrics at this address; name one of this \
         machine alone, such as \
         127.0.0.1:{}, or add --metrics-anywhere", .address.port()
    )]
    Reachable {
        /// The address.
        address: SocketAddr,
    },
    /// Another program listens there.
    #[error(
        "--metrics {address}: another program listens there; name another port, or port 0 for any \
         that is free"
    )]
    InUse {
        /// The address.
        address: SocketAddr,
    },
    /// The system rejects the address.
    #[error(
        "--metrics {address}: {source}; name an address that this machine has, and a port above \
         1023"
    )]
    Rejected {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The server or its thread could not be started.
    #[error(
        "--metrics: metrics cannot be served: {what}; raise the limit on processes or \
         descriptors, or leave it out"
    )]
    Start {
        /// The reason.
        what: String,
    },
}

/// A server that runs until it is dropped.
pub struct MetricsServer {
    server: HttpServer,
    observed: Arc<Mutex<Vec<Exporter>>>,
}

impl MetricsServer {
    /// Starts a server if the options ask for one.
    ///
    /// # Errors
    /// [`MetricsServerError`].
    pub fn start(args: &MetricsArgs) -> Result<Option<MetricsServer>, MetricsServerError> {
        let Some(address) = args.address else { return Ok(None) };
        if !address.ip().is_loopback() && !args.anywhere {
            return Err(MetricsServerError::Reachable { address });
        }
        let listener = TcpListener::bind(address).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => MetricsServerError::InUse { address },
            _ => MetricsServerError::Rejected { address, source },
        })?;
        let handle = recorder()?;
        let observed = Arc::new(Mutex::new(Vec::new()));
        let publishes = Arc::clone(&observed);
        let answers = Box::new(move |path: &str| answer(path, handle, &publishes));
        let server = HttpServer::start(listener, answers).map_err(start)?;
        Ok(Some(MetricsServer { server, observed }))
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Adds an exporter whose figures every request publishes.
    pub fn observe(&self, exporter: Exporter) {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner).push(exporter);
    }
}

fn start(what: impl std::fmt::Display) -> MetricsServerError {
    MetricsServerError::Start { what: what.to_string() }
}

/// Returns the recorder of the process, made on first use.
fn recorder() -> Result<&'static PrometheusHandle, MetricsServerError> {
    static HANDLE: OnceLock<Result<PrometheusHandle, String>> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        let builder = builder.set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS);
        builder.and_then(PrometheusBuilder::install_recorder).map_err(|error| error.to_string())
    });
    handle.as_ref().map_err(start)
}

fn answer(path: &str, handle: &PrometheusHandle, observed: &Mutex<Vec<Exporter>>) -> Answer {
    if path != "/metrics" {
        let body = "metrics are at /metrics\n".to_owned();
        return Answer { status: "404 Not Found", content_type: "text/plain; charset=utf-8", body };
    }
    observed.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Exporter::publish);
    handle.run_upkeep();
    Answer { status: "200 OK", content_type: CONTENT_TYPE, body: handle.render() }
}
