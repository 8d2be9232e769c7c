//! `kvmem tour`, the default: everything once, in less than two minutes, with output at each step.
//!
//! A machine that lacks something does not make the tour fail: the tour prints the reason and the
//! remedy and goes on. Bytes that differ from those written make it fail.

mod benchmarks;
mod disk;
mod node;
mod others;
mod page;
mod sampling;
mod serving;
mod setting_up;
mod sizing;
mod telling;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::HumanCount;
use kvmem::arena::Ladder;
use kvmem::arena::preflight::{Check, Machine, Report, Requirements, Verdict};
use kvmem::pool::{Pool, PoolReport};
use kvmem::register::{Devices, NotAvailable, Registrar};
use kvmem_report::{Chapter, Page};

use self::benchmarks::Goals;
use self::disk::{OnDisk, Phase};
use self::node::OnNode;
use self::others::Ticks;
use self::serving::{Layout, Served};
use self::setting_up::{SetUp, rings, set_up};
use self::sizing::Sizing;
use self::telling::{Missing, Telling, bytes};
use crate::args::TourArgs;
use crate::output::{Failure, HtmlSink, print};
use crate::output_file::OutputFiles;
use kvmem_trace::escape::shown;

/// Rings that pin the pool.
const RINGS: &str = "io_uring:2";
/// The default name of the report.
const REPORT: &str = "kvmem-report.html";
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
    let (html, path, other_folder) = open(args)?;
    let steps = if args.no_bench { 6 } else { 7 };
    let mut telling = Telling::new(steps);
    print(format_args!(
        "kvmem {}: a tour in {steps} steps, less than two minutes\n{}\n",
        env!("CARGO_PKG_VERSION"),
        kvmem_bench::machine::Machine::here()
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
        Some(set_up) => disk(&mut telling, &set_up.pool, &path, &mut missing)?,
        None => {
            telling.found("left out", "there is no pool to store from")?;
            None
        }
    };

    let mut chapters = vec![page::doctor(&limits, &missing)];
    chapters.extend(set_up.as_ref().map(page::pool));
    chapters.extend(served.as_ref().map(page::served));
    chapters.extend(on_disk.as_ref().map(page::on_disk));
    let pool_bytes = set_up.as_ref().map_or(TourArgs::LEAST_POOL, |set_up| set_up.pool.capacity());
    // The benchmarks and the node need its memory.
    drop(set_up);

    if !args.no_bench {
        telling.step("Benchmarks: the quick ones, with the published figures beside them")?;
        measure(&mut telling, begun, &mut chapters)?;
    }

    telling.step("Node: one pool for all engines; an engine is killed, and then the server")?;
    let on_node = node(&mut telling, pool_bytes, &mut missing)?;
    chapters.extend(on_node.as_ref().map(page::on_node));

    telling.step("Report: all of it as one page, with plots")?;
    report(&telling, html, path, other_folder, chapters)?;
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

/// Shows the disk tier, in a file in the folder of the report.
fn disk(
    telling: &mut Telling,
    pool: &Pool,
    report: &Path,
    missing: &mut Vec<Missing>,
) -> Result<Option<OnDisk>, Failure> {
    let folder = report.parent().filter(|folder| !folder.as_os_str().is_empty());
    let disk = match disk::show(pool, folder.unwrap_or(Path::new("."))) {
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

/// The file of the report, its path, and why it is not in the current folder. `None`: no file can
/// be written, and why.
type Opened = (Option<HtmlSink>, PathBuf, Option<String>);

fn open(args: &TourArgs) -> Result<Opened, Failure> {
    if let Some(path) = &args.html {
        let path = std::path::absolute(path).map_err(Failure::usage)?;
        let html = HtmlSink::open(&mut OutputFiles::new(), Some(&path))?;
        return Ok((Some(html), path, None));
    }
    Ok(match HtmlSink::open_somewhere(REPORT) {
        Ok((sink, path, other_folder)) => (Some(sink), path, other_folder),
        Err(why) => (None, PathBuf::from(REPORT), Some(why.to_string())),
    })
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

fn measure(
    telling: &mut Telling,
    begun: Instant,
    chapters: &mut Vec<Chapter>,
) -> Result<(), Failure> {
    let mut goals = Goals::default();
    let before = Ticks::now();
    let left_out = benchmarks::run(begun, |name, found| match found {
        Ok(found) => {
            chapters.push(found.chapter.chapter());
            goals.all += found.goals.all;
            goals.missed.extend(found.goals.missed);
            found.lines.iter().try_for_each(|line| telling.row(&line.what, &line.figures))
        }
        Err(why) => telling.missing(&Missing {
            what: format!("benchmark {name}"),
            why,
            remedies: vec![format!("run kvmem bench {name} --quick")],
        }),
    })?;
    if !left_out.is_empty() {
        let why = "the time of a tour is over: this machine is slow or busy";
        telling.found(
            "left out",
            &format!("{}; {why}. kvmem bench --quick runs them", left_out.join(", ")),
        )?;
    }
    let had = before.zip(Ticks::now()).map(|(before, now)| now.others_since(before));
    if let Some(had) = had.filter(|&had| had > OTHERS) {
        let had = format!("other programs used {:.0} % of the processors meanwhile", 100.0 * had);
        telling.found(
            "not alone",
            &format!("{had}: times are longer than on a quiet machine, some of them many times"),
        )?;
    }
    let reached = goals.all - goals.missed.len();
    let missed = match goals.missed.as_slice() {
        [] => String::new(),
        missed => format!(". Missed: {}", missed.join("; ")),
    };
    telling.found("goals", &format!("{reached} of {} goals are reached{missed}", goals.all))
}

fn report(
    telling: &Telling,
    html: Option<HtmlSink>,
    path: PathBuf,
    other_folder: Option<String>,
    chapters: Vec<Chapter>,
) -> Result<(), Failure> {
    let Some(html) = html else {
        let why = other_folder.unwrap_or_default();
        return telling.found(
            "not written",
            &format!(
                "neither the current folder nor the folder \
            for temporary files can be written ({why}); name a file with kvmem tour --html FILE"
            ),
        );
    };
    if let Some(why) = other_folder {
        telling.found(
            "folder",
            &format!("the current folder cannot be written ({why}); the report is in another"),
        )?;
    }
    html.write(|| chapters.into_iter().fold(Page::new("kvmem: a tour"), Page::chapter))?;
    telling.found("page", &shown(&path).to_string())
}
