//! `kvmem ls`, `stat`, `top`, `evict`, `drop`, `reclaim` and `resize`: what operators ask of a
//! server.
//!
//! They connect as any client does, for reading only, and touch no byte of the memory. The server
//! answers such calls to its own user and to those of its option `--operator`.

pub(crate) mod list;
pub(crate) mod stat;
pub(crate) mod top;

use std::time::Duration;

use indicatif::{BinaryBytes, HumanCount};
use kvmem::pool::observe::Stats;
use kvmem_node::{ClientError, ConnectOptions, NodeClient, Resized};

use crate::args::{DropArgs, EvictArgs, ReclaimArgs, ResizeArgs, ServerArgs};
use crate::output::{Failure, print};

/// The time that a server has to answer what it knows.
const KNOWN_WITHIN: Duration = Duration::from_secs(3);

/// Connects to a server that runs, for a call that takes no time.
fn connect(server: &ServerArgs) -> Result<NodeClient, Failure> {
    connect_for(server, Duration::ZERO, KNOWN_WITHIN)
}

/// Connects to a server that runs, for a call that may take long.
fn connect_for_work(server: &ServerArgs) -> Result<NodeClient, Failure> {
    // A server that is stopped does not answer this one.
    connect(server)?;
    connect_for(server, Duration::ZERO, ConnectOptions::default().answer_within)
}

/// Connects to a server. Calls wait for so long for the next one if it ends, and for so long for an
/// answer.
fn connect_for(
    server: &ServerArgs,
    retry_for: Duration,
    answer_within: Duration,
) -> Result<NodeClient, Failure> {
    let ServerArgs { socket, server_users } = server.clone();
    let options = ConnectOptions {
        read_only: true,
        retry_for,
        answer_within,
        server_users,
        ..ConnectOptions::default()
    };
    // SAFETY: nothing here reads a byte of the memory.
    unsafe { NodeClient::connect(&socket, &options) }.map_err(failure)
}

/// Status 2 for what was impossible from the start, 1 for what went wrong.
fn failure(error: ClientError) -> Failure {
    match error {
        ClientError::Disconnected { .. }
        | ClientError::SocketNotAllowed { .. }
        | ClientError::ForeignServer { .. }
        | ClientError::Call(_) => Failure::usage(error),
        _ => Failure::new(error, 1),
    }
}

/// Evicts values.
pub(crate) fn evict(args: &EvictArgs) -> Result<(), Failure> {
    let client = connect_for_work(&args.server)?;
    let evicted =
        client.as_operator().evict(args.namespace.as_deref(), args.bytes).map_err(failure)?;
    let rest = if evicted < args.bytes {
        ": nothing more can be evicted, the rest is free, pinned or reserved"
    } else {
        ""
    };
    print(format_args!("evicted {} ({evicted} bytes){rest}\n", BinaryBytes(evicted)))
}

/// Drops all values of a namespace, or of all.
pub(crate) fn drop_values(args: &DropArgs) -> Result<(), Failure> {
    let client = connect_for_work(&args.server)?;
    let dropped = client.as_operator().clear(args.namespace.as_deref()).map_err(failure)?;
    print(format_args!("dropped {} value(s)\n", HumanCount(dropped as u64)))
}

/// Ends the pins of a process.
pub(crate) fn reclaim(args: &ReclaimArgs) -> Result<(), Failure> {
    let client = connect(&args.server)?;
    let pid = args.pid;
    let sessions = client.as_operator().sessions().map_err(failure)?;
    if !sessions.iter().any(|session| session.pid == pid) {
        return Err(Failure::usage(format_args!(
            "process {pid} is no client of the server: `kvmem ls --sessions` lists them"
        )));
    }
    let reclaimed = client.as_operator().reclaim_pins(pid).map_err(failure)?;
    let values = HumanCount(reclaimed as u64);
    print(format_args!("{values} value(s) of process {pid} are no longer pinned\n"))
}

/// Changes the size of the memory. Fails if it has another one afterwards.
pub(crate) fn resize(args: &ResizeArgs) -> Result<(), Failure> {
    let client = connect_for_work(&args.server)?;
    let resized = client.as_operator().resize(args.size).map_err(failure)?;
    let Resized { size, wanted, held_bytes, registered_clients, .. } = resized;
    if size == wanted {
        return print(format_args!("the memory has {} ({size} bytes)\n", BinaryBytes(size)));
    }
    let why = if registered_clients > 0 {
        format!("{registered_clients} client(s) have it registered with devices, or may have")
    } else if held_bytes > 0 {
        format!("{} behind that end are pinned or reserved", BinaryBytes(held_bytes))
    } else {
        "the kernel has no more memory".to_owned()
    };
    let (has, wanted) = (BinaryBytes(size), BinaryBytes(wanted));
    Err(Failure::new(
        format_args!("the memory has {has} instead of {wanted}: {why}; the server goes on"),
        1,
    ))
}

/// The name of a namespace in a table.
fn name_of(namespace: &str) -> &str {
    if namespace.is_empty() { "-" } else { namespace }
}

/// Returns the statistics whose metrics have a label, with the values of the label.
fn labelled<S: Stats>(stats: &S, label: &str) -> impl Iterator<Item = (&'static str, u64)> {
    S::metrics().filter_map(move |it| match it.label {
        Some((key, value)) if key == label => Some((value, (it.value)(stats))),
        _ => None,
    })
}
