//! `kvmem serve`: one pool of KV cache memory for all engines of a host.
//!
//! The command finds the process that retains the memory, recovers what an earlier server left or
//! maps fresh memory, gives the files to the retention process, and serves until a signal arrives.
//! The order matters: the name is claimed before the index is looked at, so that never two servers
//! write to one index, and the files are retained before the first client can connect.

mod housekeeping;
mod kv_events;
mod mooncake;
mod principal;
mod report;
mod retention;
mod tier;

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, absolute};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::BinaryBytes;
use kvmem::arena::preflight::{Machine, Requirements, Verdict};
use kvmem::arena::{Backing, Numa, Populate, Progress, ProgressOptions, Receipt, Region};
use kvmem::pool::observe::Exporter;
use kvmem::tier::{Chain, Tier};
use kvmem_node::{
    Node, NodeError, NodeOptions, NodeServer, RecoveryReport, ServerOptions, Stopper, observe,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::housekeeping::Housekeeping;
use self::report::{ServeReport, retained_by};
use self::retention::{Left, Passed, Retention};
use crate::args::{RetainBy, ServeArgs};
use crate::metrics_server::MetricsServer;
use crate::mount_command;
use crate::output::{Failure, JsonSink, print_message, progress_bar};
use crate::output_file::OutputFiles;
use kvmem_trace::escape::shown;

/// The time between two lines of status for systemd while memory is mapped.
const STATUS: Duration = Duration::from_secs(1);

/// Serves until a signal arrives.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let started = Instant::now();
    raise_file_limit();
    let mut passed = Passed::take()?;
    let json = JsonSink::open(&mut OutputFiles::new(), args.json.as_deref())?;
    check_sizes(args)?;
    let options = server_options(args)?;
    let socket = absolute(&args.socket).map_err(Failure::usage)?;
    check_folder(&socket)?;
    // Populating may take minutes: a second server learns it at once.
    if passed.listener.is_none() && NodeServer::answers_at(&socket) {
        return Err(failure(NodeError::InUse { path: shown(&socket).to_string() }));
    }
    let metrics = MetricsServer::start(&args.metrics).map_err(Failure::usage)?;
    let events = kv_events::listen(&args.kv_events).map_err(Failure::usage)?;
    let cluster = mooncake::options(args)?;
    let tier = tier::open(args)?;
    let (retention, made) = make_retained(args, &socket, &mut passed)?;
    let memory_bytes = made.node.stats().wanted_capacity;
    let server = match passed.listener.take() {
        Some(listener) => NodeServer::on(made.node, listener, options),
        None => NodeServer::bind(made.node, &socket, options),
    };
    let mut server = server.map_err(|error| {
        // Fresh memory that nobody has used would take space until the next server starts.
        if made.receipt.is_some() {
            let _ = retention.forget();
        }
        failure(error)
    })?;
    let mut tier_values = tier.as_ref().map(|tier| tier.values);
    // Its threads would not survive an error above.
    let cluster = cluster.map(mooncake::start).transpose()?;
    let disk = tier.as_ref().map(|tier| Arc::clone(&tier.set) as Arc<dyn Tier>);
    let lower = match (disk, &cluster) {
        (Some(disk), Some(cluster)) => {
            Some(Arc::new(Chain::new(disk, Arc::clone(cluster) as _)) as Arc<dyn Tier>)
        }
        (Some(disk), None) => Some(disk),
        (None, cluster) => cluster.as_ref().map(|cluster| Arc::clone(cluster) as _),
    };
    if let Some(lower) = lower
        && server.attach_tier(lower).map_err(failure)?
        && tier.is_some()
    {
        tier_values = Some(0);
        print_message(
            "kvmem: --tier was cleared: a server without it has removed or evicted values of \
             this memory",
        );
    }
    let events_at = events.as_ref().map(|(_, address)| *address);
    if let Some((listener, _)) = events {
        let options = kv_events::options(&args.kv_events);
        server.publish_events(listener, &options).map_err(failure)?;
    }
    let files = server.descriptors().map_err(failure)?;
    if let Some(metrics) = &metrics {
        let name = shown(&socket).to_string();
        let publisher = observe::publisher(&name, server.observer());
        let mut exporter = Exporter::new().also(publisher);
        if let Some(tier) = &tier {
            let files: Vec<&str> = tier.files.iter().map(String::as_str).collect();
            exporter = exporter.also(kvmem_tier::observe::set_publisher(&name, &files, &tier.set));
        }
        if let Some(cluster) = &cluster {
            exporter = exporter.also(kvmem_cluster::observe::publisher(&name, cluster));
        }
        metrics.observe(exporter);
    }
    stop_at_signals(server.stopper())?;
    let report = ServeReport {
        socket: shown(&socket).to_string(),
        memory_bytes,
        recovered: made.recovered.map(Into::into),
        receipt: made.receipt,
        seconds: started.elapsed().as_secs_f64(),
        retained_by: retained_by(args.retain),
        holder_pid: retention.holder_pid(),
        tiers: tier.as_ref().map_or_else(Vec::new, |tier| tier.files.clone()),
        tier_encodings: tier.as_ref().map_or_else(Vec::new, |tier| tier.encodings.clone()),
        tier_values,
        mooncake: args.mooncake.as_ref().map(|mooncake| mooncake.master.clone()),
        metrics: metrics.as_ref().map(MetricsServer::address),
        kv_events: events_at,
        retained: retention.to_string(),
    };
    if let Some(address) = report.metrics {
        print_message(format_args!("kvmem: metrics at http://{address}/metrics"));
    }
    if let Some(address) = report.kv_events {
        print_message(format_args!("kvmem: KV events at tcp://{address}"));
    }
    let watch = tier.as_ref().map(tier::TierWatch::new);
    let housekeeping = Housekeeping::start(retention, files, socket, server.observer(), watch);
    let housekeeping = housekeeping
        .map_err(|error| Failure::new(format_args!("cannot start a thread: {error}"), 1))?;
    json.write(&report, &report)?;
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let ended = server.run();
    let retention = housekeeping.end();
    let stats = ended.map_err(failure)?.stats();
    // Values that wait for the cluster first: the index of the disk does not change by them.
    if let Some(cluster) = &cluster {
        cluster.close();
    }
    if let Some(tier) = &tier {
        tier::end(tier);
    }
    print_message(format_args!("kvmem: stopped with {} value(s), {retention}", stats.values));
    Ok(())
}

/// Raises the limit of open files as far as this user may: each client takes some, and a server
/// that has none left rejects clients.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A node that no client has reached yet.
struct Made {
    node: Node,
    recovered: Option<RecoveryReport>,
    receipt: Option<Receipt>,
}

/// Finds the process that retains the files, and makes a node of what it has, or of fresh memory.
fn make_retained(
    args: &ServeArgs,
    socket: &Path,
    passed: &mut Passed,
) -> Result<(Retention, Made), Failure> {
    let (retention, left) = Retention::begin(args.retain, socket, passed)?;
    let is_retained = args.retain != RetainBy::None;
    let is_socket = |file: std::fs::Metadata| file.file_type().is_socket();
    let had = is_retained
        && passed.listener.is_none()
        && std::fs::symlink_metadata(socket).is_ok_and(is_socket);
    let made = make(args, &retention, left, socket, had)?;
    Ok((retention, made))
}

/// Recovers what the predecessor has left, or maps fresh memory. The files are retained afterwards.
fn make(
    args: &ServeArgs,
    retention: &Retention,
    left: Left,
    socket: &Path,
    had: bool,
) -> Result<Made, Failure> {
    match left {
        Left::Nothing => {
            if had {
                // The file of a socket that nobody answers stays only of a server that was killed.
                print_message(format_args!(
                    "kvmem: the server before was killed, and its memory is gone: what retained it \
                     has ended, too"
                ));
            }
        }
        left if args.set_aside => {
            let name = retention.set_aside(&left)?;
            drop(left);
            print_message(format_args!(
                "kvmem: the memory of the server before is retained as {name}"
            ));
        }
        left if args.fresh => {
            retention.forget()?;
            // The memory of before is free before the fresh memory is mapped.
            drop(left);
        }
        Left::Files(files) => return recover(args, files, socket),
        Left::Other(count) => {
            return Err(Failure::usage(format_args!(
                "{count} descriptor(s) are retained instead of the memory file, the index and the \
                 session file: {}",
                remedy(socket)
            )));
        }
    }
    let (node, receipt) = map(args)?;
    retention.put(&node.descriptors().map_err(failure)?)?;
    Ok(Made { node, recovered: None, receipt: Some(receipt) })
}

fn recover(args: &ServeArgs, files: [OwnedFd; 3], socket: &Path) -> Result<Made, Failure> {
    let stat = rustix::fs::fstat(&files[0]);
    let before = stat.map_err(|error| Failure::new(error, 1))?.st_size as u64;
    let (node, report) = match Node::recover(files, recovered_options(args, before)) {
        Ok(recovered) => recovered,
        Err(error @ NodeError::BadIndex(_)) => {
            return Err(Failure::usage(format_args!(
                "the memory of the server before cannot be used, and was not changed: {error}; {}",
                remedy(socket)
            )));
        }
        Err(error) => return Err(failure(error)),
    };
    let stats = node.stats();
    let (has, wanted) = (BinaryBytes(stats.capacity), BinaryBytes(stats.wanted_capacity));
    if stats.wanted_capacity < args.size {
        print_message(format_args!(
            "kvmem: --size {}: the memory of the server before has {wanted} and cannot have more; \
             --fresh drops it, --set-aside retains it and starts with other memory",
            BinaryBytes(args.size)
        ));
    } else if stats.capacity != stats.wanted_capacity {
        print_message(format_args!(
            "kvmem: the memory of the server before becomes {wanted} instead of {has}, with the \
             values that fit"
        ));
    }
    Ok(Made { node, recovered: Some(report), receipt: None })
}

/// Returns the options of a node whose memory file has a length.
fn recovered_options(args: &ServeArgs, file_len: u64) -> NodeOptions {
    // Fresh memory was rounded up to whole pages of one of the kinds.
    let pages = [1 << 30, 1 << 21, 1 << 12];
    let is_same = |page: &u64| args.size.checked_next_multiple_of(*page) == Some(file_len);
    let size = if pages.iter().any(is_same) { u64::MAX } else { args.size };
    let max_size = args.max.unwrap_or(args.size).max(args.size);
    NodeOptions { size, max_size, ..node_options(args) }
}

fn remedy(socket: &Path) -> String {
    format!(
        "start with --set-aside to retain it under another name, or with --fresh to drop it ({})",
        shown(socket)
    )
}

/// Checks the machine, maps and populates fresh memory, and makes its index.
fn map(args: &ServeArgs) -> Result<(Node, Receipt), Failure> {
    let address = |option: &str, bytes: u64| {
        usize::try_from(bytes).map_err(|_| {
            Failure::usage(format_args!("{option} {bytes} is more than this machine can address"))
        })
    };
    let size = address("--size", args.size)?;
    let max = address("--max", args.max.unwrap_or(args.size))?;
    let requirements = Requirements::new(args.size, args.pages.clone()).map_err(Failure::usage)?;
    let nodes = match &args.numa {
        Numa::Bind(nodes) => nodes.clone(),
        _ => Vec::new(),
    };
    let requirements = requirements.shared(true).pinned(false).nodes(nodes);
    let checked = Machine::here().preflight(&requirements);
    if !checked.passes() {
        print_message(&checked);
        let failed: Vec<&str> = checked.with(Verdict::Fail).map(|check| &*check.name).collect();
        return Err(Failure::new(
            format_args!("this machine cannot give {requirements}: {}", failed.join(", ")),
            1,
        ));
    }
    let bar = progress_bar(None, "{elapsed_precise} {wide_bar} {bytes}/{total_bytes} {msg}");
    let (shown_on, reported) = (bar.clone(), std::sync::Mutex::new(None::<Instant>));
    let show = move |progress: Progress| {
        mount_command::show(&shown_on, progress);
        let Ok(mut reported) = reported.try_lock() else { return };
        if reported.is_none_or(|at| at.elapsed() >= STATUS) {
            *reported = Some(Instant::now());
            let (done, all) = (BinaryBytes(progress.done_bytes), BinaryBytes(progress.total_bytes));
            let status = format!("making memory resident: {done} of {all}");
            let _ = sd_notify::notify(&[NotifyState::Status(&status)]);
        }
    };
    let memory = Region::builder(max)
        .backing(Backing::Shared)
        .growable(true)
        .ladder(args.pages.clone())
        .numa(args.numa.clone());
    // Behind the size there are addresses alone.
    let memory = match max > size {
        true => memory.populate_later().map().and_then(|memory| {
            if args.populate != Populate::None {
                memory.populate(..size, args.populate, &ProgressOptions::new().progress(show))?;
            }
            Ok(memory)
        }),
        false => memory.populate(args.populate).progress(show).map(),
    };
    let node = memory.map_err(NodeError::from).and_then(|memory| {
        let is_part = max > size;
        let receipt = if is_part { memory.receipt_now()? } else { memory.receipt().clone() };
        let size = if is_part { args.size } else { u64::MAX };
        Ok((Node::create(memory, NodeOptions { size, ..node_options(args) })?, receipt))
    });
    bar.finish_and_clear();
    let (node, receipt) = node.map_err(failure)?;
    Ok((node, receipt))
}

fn node_options(args: &ServeArgs) -> NodeOptions {
    NodeOptions {
        max_blocks: args.max_blocks,
        min_size: args.min.unwrap_or(u64::MAX),
        align: args.align,
        boundary: args.boundary,
        eviction: args.policy.node_eviction(),
        max_reserved_per_session: args.max_reserved.unwrap_or(u64::MAX),
        max_pinned_bytes_per_session: args.max_pinned.unwrap_or(u64::MAX),
        default_limits: args.default_quota.unwrap_or_default(),
        limits: args.quotas.iter().map(|it| (it.name.clone(), it.limits)).collect(),
        ..NodeOptions::default()
    }
}

fn server_options(args: &ServeArgs) -> Result<ServerOptions, Failure> {
    let groups = args.allow_groups.iter().map(principal::allowed_group);
    let namespaces = args.namespaces.iter().map(principal::namespace_rule);
    let operators = args.operators.iter().map(|name| principal::operator(name));
    Ok(ServerOptions {
        lease: args.lease,
        reclaim_pins: args.reclaim_pins,
        allow_groups: groups.collect::<Result<_, _>>()?,
        namespaces: namespaces.collect::<Result<_, _>>()?,
        operators: operators.collect::<Result<_, _>>()?,
        scrub_bytes_per_s: args.scrub,
        max_connections: args.max_connections.into(),
        drain: Duration::from_secs(args.drain_seconds.into()),
        pressure_folder: args.cgroup.clone(),
        ..ServerOptions::default()
    })
}

fn check_sizes(args: &ServeArgs) -> Result<(), Failure> {
    let (min, size, max) =
        (args.min.unwrap_or(args.size), args.size, args.max.unwrap_or(args.size));
    if min <= size && size <= max {
        return Ok(());
    }
    Err(Failure::usage(format_args!(
        "--min {min} --size {size} --max {max}: the size is at least the first and at most the last"
    )))
}

fn check_folder(socket: &Path) -> Result<(), Failure> {
    let folder = socket.parent().unwrap_or(Path::new("/"));
    if folder.is_dir() {
        return Ok(());
    }
    Err(Failure::usage(format_args!("--socket: there is no folder {}", shown(folder))))
}

/// Ends the server at SIGTERM or SIGINT, as [`ServerOptions::drain`] says. A second signal ends it
/// at once.
fn stop_at_signals(stopper: Stopper) -> Result<(), Failure> {
    let cannot = |error| Failure::new(format_args!("cannot wait for signals: {error}"), 1);
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(cannot)?;
    let wait = move || {
        for _ in signals.forever() {
            let _ = sd_notify::notify(&[NotifyState::Stopping]);
            stopper.stop();
        }
    };
    let thread = thread::Builder::new().name("kvmem-signals".into());
    thread.spawn(wait).map(drop).map_err(cannot)
}

/// Status 2 for what was impossible from the start, 1 for what went wrong.
fn failure(error: NodeError) -> Failure {
    match error {
        NodeError::Memory(error) => mount_command::failure(error),
        NodeError::System { .. } => Failure::new(error, 1),
        _ => Failure::usage(error),
    }
}
