//! `kvmem tour`, the default: everything once, in less than half a minute, with output at each
//! step.
//!
//! A machine that lacks something does not make the tour fail: the tour prints the reason and the
//! remedy and goes on. Bytes that differ from those written make it fail.

mod conversations;
mod disk;
mod figures;
mod machine;
mod node;
mod others;
mod serving;
mod setting_up;
mod sizing;
mod telling;

use std::env::temp_dir;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::HumanCount;
use kvmem::arena::Ladder;
use kvmem::arena::preflight::{Check, Machine, Report, Requirements, Verdict};
use kvmem::pool::{Pool, PoolReport};
use kvmem::register::{Devices, NotAvailable, Registrar};

use self::disk::{OnDisk, Phase};
use self::figures::Figure;
use self::node::OnNode;
use self::others::Ticks;
use self::serving::{Layout, Served};
use self::setting_up::{SetUp, rings, set_up};
use self::sizing::Sizing;
use self::telling::{Missing, Telling, bytes};
use crate::args::TourArgs;
use crate::output::{Failure, print};
use kvmem_trace::escape::shown;

/// Rings that pin the pool.
const RINGS: &str = "io_uring:2";
/// Checks that the tour leaves out: rings report their own limits.
const TOLD_LATER: [&str; 2] = ["rlimit.memlock", "kernel.io_uring"];
/// The size that the doctor checks before the size of the pool is known.
const SMALL: u64 = 4096;

/// The share of the processors that other programs may use before the tour mentions it.
const OTHERS: f64 = 0.1;

/// Takes the tour.
pub(crate) fn run(args: &TourArgs) -> Result<(), Failure> {
    if let Some(socket) = &args.engine {
        return node::engine(socket).map_err(|error| Failure::new(error, 1));
    }
    let begun = Instant::now();
    let steps = if args.no_figures { 5 } else { 6 };
    let mut telling = Telling::new(steps);
    print(format_args!(
        "kvmem {}: a tour in {steps} steps, less than half a minute\n{}\n",
        env!("CARGO_PKG_VERSION"),
        machine::line()
    ))?;
    let mut missing = Vec::new();

    telling.step("Doctor: what this machine allows")?;
    let requirements = |bytes| Requirements::new(bytes, Ladder::default()).map_err(Failure::usage);
    let sizing = Sizing::of(&Machine::here().preflight(&requirements(SMALL)?), args.pool);
    let wanted = sizing.as_ref().map_or(TourArgs::LEAST_POOL, |sizing| sizing.bytes);
    let limits = Machine::here().preflight(&requirements(wanted)?);
    let (rings, no_rings) = rings(devices());
    doctor(&mut telling, &limits, &rings, no_rings.as_ref())?;
    missing.extend(no_rings);

    telling.step("Pool: mapped, populated, registered")?;
    let set_up = sizing.and_then(|sizing| set_up(args, sizing, rings, hot_sizes));
    let set_up = match set_up {
        Ok(set_up) => {
            pool(&mut telling, &set_up)?;
            missing.extend(set_up.missing.iter().cloned());
            Some(set_up)
        }
        Err(why) => {
            telling.missing(&why)?;
            if args.pool.is_some() {
                return Err(Failure::new(format_args!("there is no such pool: {}", why.why), 1));
            }
            missing.push(why);
            None
        }
    };

    telling.step(
        "KV workload: three models served from the pool by two threads, every byte verified",
    )?;
    let served = set_up
        .as_ref()
        .map(|set_up| serving::serve(&set_up.pool, Duration::from_secs(args.seconds)));
    match &served {
        Some(served) => workload(&telling, served)?,
        None => telling.found("left out", "there is no pool to serve from")?,
    }
    telling.step("Disk: from memory to a local file, closed, opened again, and found")?;
    let on_disk = match &set_up {
        Some(set_up) => disk(&mut telling, &set_up.pool, &mut missing)?,
        None => {
            telling.found("left out", "there is no pool to store from")?;
            None
        }
    };

    let pool_bytes = set_up.as_ref().map_or(TourArgs::LEAST_POOL, |set_up| set_up.pool.capacity());
    // The figures and the node need its memory.
    drop(set_up);

    if !args.no_figures {
        telling.step("Figures: three, measured now, each beside something that you know")?;
        figures(&mut telling, pool_bytes, &mut missing)?;
    }

    telling.step("Node: one pool for all engines; an engine is killed, and then the server")?;
    let on_node = node(&mut telling, pool_bytes, &mut missing)?;
    let remarks = match telling.remarks() {
        0 => "nothing was missing".to_owned(),
        1 => "see the one remark above".to_owned(),
        several => format!("see the {several} remarks above"),
    };
    telling.found("done", &format!("in {:.0} s; {remarks}", begun.elapsed().as_secs_f64()))?;
    let by_workload = served.iter().flat_map(|served| &served.wrong);
    let by_disk = on_disk.iter().flat_map(|disk| &disk.wrong);
    let of = |name, fault: &String| (name, fault.clone());
    let faults = by_workload.map(|fault| of("KV workload", fault));
    let by_node = on_node.iter().flat_map(|node| &node.wrong);
    let faults = faults.chain(by_disk.map(|fault| of("disk tier", fault)));
    match faults.chain(by_node.map(|fault| of("node", fault))).next() {
        Some((name, fault)) => Err(Failure::new(
            format_args!(
                "the {name} found wrong bytes, a defect of kvmem or of this machine: {fault}"
            ),
            1,
        )),
        None => Ok(()),
    }
}

/// Shows the disk tier, in a file in the current folder, or else in that for temporary files.
fn disk(
    telling: &mut Telling,
    pool: &Pool,
    missing: &mut Vec<Missing>,
) -> Result<Option<OnDisk>, Failure> {
    let here = disk::show(pool, Path::new("."));
    // This user may have no right to write to the current folder.
    let disk = match here.or_else(|why| disk::show(pool, &temp_dir()).map_err(|_| why)) {
        Ok(disk) => disk,
        Err(why) => {
            telling.missing(&why)?;
            missing.push(why);
            return Ok(None);
        }
    };
    let speed = |phase: Phase| format!("{:.2} GB/s", phase.gb_per_s());
    telling.found(
        "evicted",
        &format!(
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
    let mismatch = match disk.wrong.len() {
        0 => "no mismatch".to_owned(),
        wrong => format!("{wrong} WRONG: {}", disk.wrong[0]),
    };
    telling.found(
        "fetched",
        &format!("{} at {}, every byte verified", bytes(disk.fetched.bytes), speed(disk.fetched)),
    )?;
    telling.found(
        "restart",
        &format!(
            "opened again in {:.1} ms with {} values, {} fetched at {}; {mismatch}",
            1e3 * disk.open_seconds,
            HumanCount(disk.found),
            bytes(disk.again.bytes),
            speed(disk.again)
        ),
    )?;
    Ok(Some(disk))
}

/// Shows a node, with processes of its own.
fn node(
    telling: &mut Telling,
    pool_bytes: u64,
    missing: &mut Vec<Missing>,
) -> Result<Option<OnNode>, Failure> {
    let node = match node::show(pool_bytes) {
        Ok(node) => node,
        Err(why) => {
            telling.missing(&why)?;
            missing.push(why);
            return Ok(None);
        }
    };
    telling.found(
        "stored",
        &format!(
            "{} values of {} by an engine in a node of {}, in place, at {:.2} GB/s",
            HumanCount(node.values),
            bytes(node.value_bytes),
            bytes(node.memory_bytes),
            node.stored.gb_per_s()
        ),
    )?;
    telling.found(
        "kill -9",
        &format!(
            "the engine in the middle of a write: its pin and its reservation were free after \
             {:.1} ms",
            1e3 * node.engine_seconds
        ),
    )?;
    let mismatch = match node.wrong.len() {
        0 => "no call lost, no mismatch".to_owned(),
        wrong => format!("{wrong} WRONG: {}", node.wrong[0]),
    };
    telling.found(
        "kill -9",
        &format!(
            "the server: the next one had found a value after {:.1} ms, and {} of {} in all; \
             {mismatch}",
            1e3 * node.server_seconds,
            HumanCount(node.found),
            HumanCount(node.values)
        ),
    )?;
    Ok(Some(node))
}

fn devices() -> Result<Vec<Arc<dyn Registrar>>, NotAvailable> {
    let devices: Devices = RINGS.parse().expect("rings are a kind of device");
    devices.open()
}

/// The sizes that the workload allocates.
fn hot_sizes(pool_bytes: u64) -> Vec<u64> {
    Layout::of(pool_bytes).objects().concat()
}

fn doctor(
    telling: &mut Telling,
    limits: &Report,
    rings: &[Arc<dyn Registrar>],
    no_rings: Option<&Missing>,
) -> Result<(), Failure> {
    telling.found(
        "checks",
        &format!("{}, for {} (kvmem doctor lists them)", limits.tally(), limits.requirements),
    )?;
    for check in limits.with(Verdict::Fail).filter(|check| !TOLD_LATER.contains(&&*check.name)) {
        telling.missing(&as_missing(check))?;
    }
    for check in limits.with(Verdict::Warn).filter(|check| !TOLD_LATER.contains(&&*check.name)) {
        telling.warning(&as_missing(check))?;
    }
    match (rings, no_rings) {
        (_, Some(missing)) => telling.missing(missing),
        (rings, None) => {
            let names: Vec<&str> = rings.iter().map(|ring| ring.name()).collect();
            telling.found(
                "registrars",
                &format!("{}: rings that pin memory for I/O", names.join(" and ")),
            )
        }
    }
}

fn as_missing(check: &Check) -> Missing {
    let remedies = check.fix.iter().flat_map(|fix| fix.split("; ")).map(str::to_owned).collect();
    Missing { what: check.name.to_string(), why: check.why.clone(), remedies }
}

fn pool(telling: &mut Telling, set_up: &SetUp) -> Result<(), Failure> {
    let SetUp { report, sizing, shown, missing, .. } = set_up;
    for missing in missing {
        telling.missing(missing)?;
    }
    telling.found("size", &format!("{}: {}", bytes(report.capacity_bytes), sizing.why))?;
    if let Some(pages) = report.choices.iter().find(|choice| choice.what == "pages") {
        telling.found("pages", &format!("{}: {}", pages.chosen, pages.why))?;
    }
    let seconds: f64 = report.receipt.ranges.iter().map(|range| range.seconds).fold(0.0, f64::max);
    let resident: u64 = report.receipt.ranges.iter().map(|range| range.resident_bytes).sum();
    let speed = resident as f64 / f64::from(1 << 30) / seconds.max(1e-9);
    telling.found(
        "populated",
        &format!(
            "{} in {seconds:.3} s by {} thread(s), {speed:.2} GiB/s",
            bytes(resident),
            report.receipt.threads
        ),
    )?;
    registered(telling, "registered", report)?;
    if let Some(shown) = shown {
        registered(telling, "to show it", shown)?;
    }
    Ok(())
}

fn registered(telling: &Telling, name: &str, report: &PoolReport) -> Result<(), Failure> {
    let Some(outcome) = &report.registered else { return Ok(()) };
    telling.found(
        name,
        &format!(
            "{} with {} in {:.4} s, {} keys, {}",
            bytes(outcome.len_bytes),
            report.devices.join(" and "),
            outcome.register_seconds,
            outcome.keys,
            if outcome.threads > 1 { "side by side" } else { "one after the other" }
        ),
    )
}

fn workload(telling: &Telling, served: &Served) -> Result<(), Failure> {
    let Served { stats, room, .. } = served;
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let ended = if served.cut_short { ", ended by the clock" } else { "" };
    telling.found(
        "requested",
        &format!(
            "{} requests for pages of {} token(s){ended}; {} of their objects were found",
            HumanCount(served.requests),
            served.page_tokens,
            percent(stats.hit_rate())
        ),
    )?;
    let mismatch = match served.wrong.len() {
        0 => "no mismatch".to_owned(),
        wrong => format!("{wrong} WRONG: {}", served.wrong[0]),
    };
    telling.found(
        "verified",
        &format!(
            "{} written and {} read with their checksums in {:.1} s, {:.1} GB/s; {mismatch}",
            bytes(served.written_bytes),
            bytes(served.verified_bytes),
            served.seconds,
            served.gb_per_s()
        ),
    )?;
    let evicted = HumanCount(stats.evictions);
    let full = match served.utilization {
        Some(share) => {
            format!(
                "{} full on average once it had to evict, {evicted} objects evicted",
                percent(share)
            )
        }
        None => "never full, so nothing was evicted".to_owned(),
    };
    let [p50, p99] = [room.p50, room.p99].map(HumanCount);
    telling.found("pool", &format!("{full}; room for one in {p50} ns (p50), {p99} ns (p99)"))
}

/// Shows figures, and how much of the processors other programs had meanwhile.
fn figures(
    telling: &mut Telling,
    pool_bytes: u64,
    missing: &mut Vec<Missing>,
) -> Result<(), Failure> {
    let before = Ticks::now();
    let figures = match figures::measure(pool_bytes) {
        Ok(figures) => figures,
        Err(why) => {
            telling.missing(&why)?;
            missing.push(why);
            return Ok(());
        }
    };
    for Figure { what, kvmem, other: (name, other) } in figures {
        telling.row(what, &[format!("kvmem {kvmem:.1}"), format!("{name} {other:.1}")])?;
    }
    let had = before.zip(Ticks::now()).map(|(before, now)| now.others_since(before));
    if let Some(had) = had.filter(|&had| had > OTHERS) {
        let had = format!("other programs used {:.0} % of the processors meanwhile", 100.0 * had);
        telling
            .found("not alone", &format!("{had}: the figures are worse than on a quiet machine"))?;
    }
    Ok(())
}
