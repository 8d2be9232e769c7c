//! *KV events*: the address at which `kvmem serve` publishes what the node holds.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};

use kvmem_node::KvEventsOptions;

use crate::args::KvEventsArgs;

/// KV events cannot be published.
#[derive(Debug, thiserror::Error)]
pub(super) enum KvEventsError {
    #[error(
        "--kv-events tcp://{address}: other machines can read events at this address; name one of \
         this machine alone, such as tcp://127.0.0.1:{}, or add --kv-events-anywhere",
        .address.port()
    )]
    Reachable { address: SocketAddr },
    #[error(
        "--kv-events tcp://{address}: another program listens there; name another port, or port 0 \
         for any that is free"
    )]
    InUse { address: SocketAddr },
    #[error(
        "--kv-events tcp://{address}: {source}; name an address that this machine has, and a port \
         above 1023"
    )]
    Rejected { address: SocketAddr, source: io::Error },
}

/// Listens at the address, if the options name one.
pub(super) fn listen(
    args: &KvEventsArgs,
) -> Result<Option<(TcpListener, SocketAddr)>, KvEventsError> {
    let Some(address) = args.endpoint else { return Ok(None) };
    if !address.ip().is_loopback() && !args.anywhere {
        return Err(KvEventsError::Reachable { address });
    }
    let listener = TcpListener::bind(address).and_then(|it| Ok((it.local_addr()?, it)));
    let (bound, listener) = listener.map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => KvEventsError::InUse { address },
        _ => KvEventsError::Rejected { address, source },
    })?;
    Ok(Some((listener, bound)))
}

/// Returns what is published, and how.
pub(super) fn options(args: &KvEventsArgs) -> KvEventsOptions {
    KvEventsOptions {
        topic: args.topic.clone(),
        namespace: args.namespace.clone(),
        whole_hashes: args.whole_hashes,
        ..KvEventsOptions::default()
    }
}
