//! `kvmem tour`, the default: everything once, in less than half a minute, with output at each
//! step.
//!
//! A machine that lacks something does not make the tour fail: the tour prints the reason and the
//! remedy and goes on. Bytes that differ from those written make it fail.

mod disk;
mod figures;
mod node;
mod printer;
mod serving;
mod setting_up;

use std::env::temp_dir;
use std::fs::read_to_string;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::HumanCount;
use kvmem::arena::Ladder;
use kvmem::arena::preflight::{Check, Machine, Report, Requirements, Verdict};
use kvmem::pool::Pool;
use kvmem::register::Devices;

use self::disk::Phase;
use self::figures::Figure;
use self::printer::{Missing, Printer, bytes};
use self::serving::Served;
use self::setting_up::{SetUp, Sizing, rings, set_up};
use crate::args::TourArgs;
use crate::output::{Failure, print};
use kvmem_trace::escape::shown;

/// Rings that pin the pool.
const RINGS: &str = "io_uring:2";
/// Checks that the tour leaves out: rings report their own limits.
const REPORTED_BY_RINGS: [&str; 2] = ["rlimit.memlock", "kernel.io_uring"];
/// The size that the doctor checks before the size of the pool is known.
const SMALL: u64 = 4096;

/// Takes the tour.
pub(crate) fn run(args: &TourArgs) -> Result<(), Failure> {
    if let Some(socket) = &args.engine {
        return node::engine(socket).map_err(|error| Failure::new(error, 1));
    }
    let begun = Instant::now();
    let steps = if args.no_figures { 5 } else { 6 };
    let mut printer = Printer::new(steps);
    print(format_args!(
        "kvmem {}: a tour in {steps} steps, less than half a minute\n{}\n",
        env!("CARGO_PKG_VERSION"),
        machine()
    ))?;
    let mut mismatches: Vec<(&str, String)> = Vec::new();

    printer.step("Doctor: what this machine allows")?;
    let requirements = |bytes| Requirements::new(bytes, Ladder::default()).map_err(Failure::usage);
    let sizing = Sizing::of(&Machine::here().preflight(&requirements(SMALL)?), args.pool);
    let size = sizing.as_ref().map_or(TourArgs::MIN_POOL, |sizing| sizing.bytes);
    let limits = Machine::here().preflight(&requirements(size)?);
    let devices: Devices = RINGS.parse().expect("rings are a kind of device");
    let (rings, no_rings) = rings(devices.open());
    doctor(&mut printer, &limits)?;
    match no_rings {
        Some(missing) => printer.missing(&missing)?,
        None => {
            let names: Vec<&str> = rings.iter().map(|ring| ring.name()).collect();
            let names = names.join(" and ");
            printer.found("registrars", format_args!("{names}: rings that pin memory for I/O"))?;
        }
    }

    printer.step("Pool: mapped, populated, registered")?;
    let set_up = sizing.and_then(|sizing| set_up(args, sizing, rings, hot_sizes));
    let set_up = match set_up {
        Ok(set_up) => {
            pool(&mut printer, &set_up)?;
            Some(set_up)
        }
        Err(missing) => {
            printer.missing(&missing)?;
            if args.pool.is_some() {
                let why = missing.why;
                return Err(Failure::new(format_args!("there is no such pool: {why}"), 1));
            }
            None
        }
    };

    printer.step(
        "KV workload: three models served from the pool by two threads, every byte verified",
    )?;
    match &set_up {
        Some(set_up) => {
            let served = serving::serve(&set_up.pool, Duration::from_secs(args.seconds));
            workload(&printer, &served, &set_up.pool)?;
            mismatches.extend(served.mismatches.into_iter().map(|it| ("KV workload", it)));
        }
        None => printer.found("left out", "there is no pool to serve from")?,
    }
    printer.step("Disk: from memory to a local file, closed, opened again, and found")?;
    match &set_up {
        Some(set_up) => mismatches.extend(disk(&mut printer, &set_up.pool)?),
        None => printer.found("left out", "there is no pool to store from")?,
    }

    let pool_bytes = set_up.as_ref().map_or(TourArgs::MIN_POOL, |set_up| set_up.pool.capacity());
    // The figures and the node need its memory.
    drop(set_up);

    if !args.no_figures {
        printer.step("Figures: three, measured now, compared with something that you know")?;
        match figures::measure(pool_bytes) {
            Ok(figures) => {
                for Figure { what, kvmem, other: (name, other) } in figures {
                    printer
                        .row(what, [format!("kvmem {kvmem:.1}"), format!("{name} {other:.1}")])?;
                }
            }
            Err(missing) => printer.missing(&missing)?,
        }
    }

    printer.step("Node: one pool for all engines; an engine is killed, and then the server")?;
    mismatches.extend(node(&mut printer, pool_bytes)?);
    let remarks = match printer.remarks() {
        0 => "nothing was missing".to_owned(),
        1 => "see the one remark above".to_owned(),
        several => format!("see the {several} remarks above"),
    };
    let seconds = begun.elapsed().as_secs_f64();
    printer.found("done", format_args!("in {seconds:.0} s; {remarks}"))?;
    match mismatches.first() {
        Some((name, fault)) => Err(Failure::new(
            format_args!(
                "the {name} found wrong bytes, a defect of kvmem or of this machine: {fault}"
            ),
            1,
        )),
        None => Ok(()),
    }
}

/// Returns the processor, the number of processors that this process may use, and the kernel.
fn machine() -> String {
    let unknown = || "unknown".to_owned();
    let name = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("model name"))?.to_owned();
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let processor = read_to_string("/proc/cpuinfo").ok().and_then(name).unwrap_or_else(unknown);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| unknown());
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("{processor} · {processors} cores · {os} {arch} {}", kernel.trim())
}

/// The sizes that the workload allocates.
fn hot_sizes(pool_bytes: u64) -> Vec<u64> {
    serving::objects(pool_bytes).concat()
}

fn doctor(printer: &mut Printer, limits: &Report) -> Result<(), Failure> {
    let (tally, requirements) = (limits.tally(), &limits.requirements);
    printer
        .found("checks", format_args!("{tally}, for {requirements} (kvmem doctor lists them)"))?;
    let is_shown = |check: &&Check| !REPORTED_BY_RINGS.contains(&&*check.name);
    let missing = |check: &Check| {
        let remedies: Vec<&str> = check.fix.iter().flat_map(|fix| fix.split("; ")).collect();
        Missing::new(&check.name, &*check.why, &remedies)
    };
    for check in limits.with(Verdict::Fail).filter(is_shown) {
        printer.missing(&missing(check))?;
    }
    for check in limits.with(Verdict::Warn).filter(is_shown) {
        printer.warning(&missing(check))?;
    }
    Ok(())
}

fn pool(printer: &mut Printer, set_up: &SetUp) -> Result<(), Failure> {
    let SetUp { pool, sizing, missing } = set_up;
    let report = pool.report();
    for missing in missing {
        printer.missing(missing)?;
    }
    printer.found("size", format_args!("{}: {}", bytes(report.capacity_bytes), sizing.why))?;
    if let Some(pages) = report.choices.iter().find(|choice| choice.what == "pages") {
        printer.found("pages", format_args!("{}: {}", pages.chosen, pages.why))?;
    }
    let resident = report.receipt.resident_bytes();
    let (seconds, threads) = match &report.registered {
        Some(outcome) => (outcome.populated.seconds, outcome.populated.threads),
        None => (report.receipt.seconds(), report.receipt.threads),
    };
    let speed = resident as f64 / f64::from(1 << 30) / seconds.max(1e-9);
    let size = bytes(resident);
    printer.found(
        "populated",
        format_args!("{size} in {seconds:.3} s by {threads} thread(s), {speed:.2} GiB/s"),
    )?;
    let Some(outcome) = &report.registered else { return Ok(()) };
    let order = if outcome.threads > 1 { "side by side" } else { "one after the other" };
    printer.found(
        "registered",
        format_args!(
            "{} with {} in {:.4} s, {} keys, {order}",
            bytes(outcome.len_bytes),
            report.devices.join(" and "),
            outcome.register_seconds,
            outcome.keys
        ),
    )
}

/// Returns how many faults a step found, with the first one.
fn tally(mismatches: &[String], none: &str) -> String {
    match mismatches {
        [] => none.to_owned(),
        [first, ..] => format!("{} WRONG: {first}", mismatches.len()),
    }
}

fn workload(printer: &Printer, served: &Served, pool: &Pool) -> Result<(), Failure> {
    let Served { stats, .. } = served;
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let ended = if served.cut_short { ", ended by the clock" } else { "" };
    printer.found(
        "requested",
        format_args!(
            "{} requests for pages of {} token(s){ended}; {} of their objects were found",
            HumanCount(served.requests),
            served.page_tokens,
            percent(stats.hit_rate())
        ),
    )?;
    let (written, verified) = (served.written_bytes, served.verified_bytes);
    let seconds = served.seconds;
    printer.found(
        "verified",
        format_args!(
            "{} written and {} read with their checksums in {seconds:.1} s, {:.1} GB/s; {}",
            bytes(written),
            bytes(verified),
            (written + verified) as f64 / 1e9 / seconds.max(1e-9),
            tally(&served.mismatches, "no mismatch")
        ),
    )?;
    let full = percent(stats.bytes as f64 / pool.capacity() as f64);
    let [p50, p99] = served.room.map_or([0; 2], |room| [room.p50, room.p99]).map(HumanCount);
    printer.found(
        "pool",
        format_args!(
            "{full} full at the end, {} objects evicted; room for one in {p50} ns (p50), {p99} ns \
             (p99)",
            HumanCount(stats.evictions)
        ),
    )
}

/// The faults that a step found, with the step's name.
type Mismatches = Vec<(&'static str, String)>;

/// Shows the disk tier, in a file in the current folder, or else in that for temporary files.
fn disk(printer: &mut Printer, pool: &Pool) -> Result<Mismatches, Failure> {
    let here = disk::show(pool, Path::new("."));
    // This user may have no right to write to the current folder.
    let disk = match here.or_else(|why| disk::show(pool, &temp_dir()).map_err(|_| why)) {
        Ok(disk) => disk,
        Err(why) => return printer.missing(&why).map(|()| Vec::new()),
    };
    let speed = |phase: Phase| format!("{:.2} GB/s", phase.gb_per_s());
    printer.found(
        "evicted",
        format_args!(
            "{} of {} values of {} left a cache of {} for {}, {}, at {}; {:.4} bytes written for \
             each of theirs",
            bytes(disk.stored.bytes),
            HumanCount(disk.values),
            bytes(disk.value_bytes),
            bytes(disk.cache_bytes),
            shown(&disk.folder),
            disk.access,
            speed(disk.stored),
            disk.write_amplification()
        ),
    )?;
    let fetched = bytes(disk.fetched.bytes);
    printer.found(
        "fetched",
        format_args!("{fetched} at {}, every byte verified", speed(disk.fetched)),
    )?;
    printer.found(
        "restart",
        format_args!(
            "opened again in {:.1} ms with {} values, {} fetched at {}; {}",
            1e3 * disk.open_seconds,
            HumanCount(disk.found),
            bytes(disk.again.bytes),
            speed(disk.again),
            tally(&disk.mismatches, "no mismatch")
        ),
    )?;
    Ok(disk.mismatches.into_iter().map(|it| ("disk tier", it)).collect())
}

/// Shows a node, with processes of its own.
fn node(printer: &mut Printer, pool_bytes: u64) -> Result<Mismatches, Failure> {
    let node = match node::show(pool_bytes) {
        Ok(node) => node,
        Err(why) => return printer.missing(&why).map(|()| Vec::new()),
    };
    let values = HumanCount(node.values);
    printer.found(
        "stored",
        format_args!(
            "{values} values of {} by an engine in a node of {}, in place, at {:.2} GB/s",
            bytes(node.value_bytes),
            bytes(node.memory_bytes),
            node.stored.gb_per_s()
        ),
    )?;
    printer.found(
        "kill -9",
        format_args!(
            "the engine in the middle of a write: its pin and its reservation were free after \
             {:.1} ms",
            1e3 * node.engine_seconds
        ),
    )?;
    printer.found(
        "kill -9",
        format_args!(
            "the server: the next one had found a value after {:.1} ms, and {} of {values} in all; \
             {}",
            1e3 * node.server_seconds,
            HumanCount(node.found),
            tally(&node.mismatches, "no call failed, no mismatch")
        ),
    )?;
    Ok(node.mismatches.into_iter().map(|it| ("node", it)).collect())
}
