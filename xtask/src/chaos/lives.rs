//! *Lives*: several instances at once, signals at random moments, many processes in a small cgroup.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::attack::{Attack, RunOutcome};
use super::context::Chaos;
use super::machine::Cgroup;

/// Memory for a few processes.
const LIMIT: u64 = 512 << 20;

/// Runs attacks at the same time.
fn at_once<'a>(attacks: impl IntoIterator<Item = Attack<'a>>) -> Result<Vec<RunOutcome>> {
    let running: Result<Vec<_>> = attacks.into_iter().map(Attack::start).collect();
    running?.into_iter().map(|running| running.wait()).collect()
}

/// A small memory cgroup: six commands at once, and each command alone with too little memory.
pub(super) fn cgroup(chaos: &Chaos) -> Result<()> {
    let group = match Cgroup::memory(LIMIT) {
        Ok(group) => group,
        Err(reason) => {
            chaos.skip(reason);
            return Ok(());
        }
    };
    for round in 0..if chaos.quick { 2 } else { 10 } {
        let size = ["200MiB", "120MiB", "450MiB"][round % 3];
        let mount = |_| {
            let mount =
                chaos.kvmem(["mount", "--size", size, "--pages", ["thp,4k", "4k"][round % 2]]);
            mount.under(group.join()).says([&*LIMIT.to_string(), "raise the memory limit"])
        };
        let done =
            at_once((0..6).map(mount))?.iter().filter(|outcome| outcome.status.success()).count();
        if done == 0 {
            chaos.complain(format!("none of six mounts of {size} was served in {LIMIT} bytes"));
        }
    }
    if group.killed() > 0 {
        chaos.complain(format!(
            "the kernel has killed {} mounts for want of memory",
            group.killed()
        ));
    }
    drop(group);
    for limit in [24u64 << 20, 64 << 20] {
        let Ok(group) = Cgroup::memory(limit) else { continue };
        for arguments in [
            &["doctor", "--size", "1GiB"][..],
            &["mount", "--size", "256MiB"],
            &["mount", "--size", "256MiB", "--populate", "1", "--devices", "mlock"],
            &["tour", "--no-figures", "--seconds", "1"],
        ] {
            chaos.kvmem(arguments).under(group.join()).run()?;
        }
        if group.killed() > 0 {
            chaos.complain(format!(
                "in {limit} bytes the kernel has killed {} runs",
                group.killed()
            ));
        }
    }
    Ok(())
}

/// Two instances of one command at once, which write the same files.
pub(super) fn pairs(chaos: &Chaos) -> Result<()> {
    let trace = chaos.trace("trace.jsonl")?;
    let trace = trace.to_str().unwrap_or_default();
    let work: [&[&str]; 6] = [
        &["mount", "--size", "64MiB", "--devices", "io_uring:2", "--json", "mount.json"],
        &["doctor", "--json", "doctor.json"],
        &["tour", "--no-figures", "--seconds", "1", "--pool", "16MiB"],
        &["bench", "arena", "--quick", "--table=bump", "--reps=1", "--json", "bench.json"],
        &["bench", "register", "--quick", "--table=io_uring", "--reps=1", "--json", "ring.json"],
        &["replay", trace, "--pool", "64GiB", "--json", "replay.json"],
    ];
    for arguments in work {
        let both = at_once([(); 2].map(|()| chaos.kvmem(arguments).within(180)))?;
        if both.iter().any(|outcome| !outcome.status.success()) {
            let told: Vec<&str> = both.iter().map(|outcome| outcome.stderr.trim()).collect();
            chaos.complain(format!("two at once: {}: {told:?}", both[0].told));
        }
        for entry in std::fs::read_dir(&chaos.folder)?.flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let is_whole = match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => serde_json::from_str::<serde_json::Value>(&text).is_ok(),
                _ => continue,
            };
            if !is_whole {
                chaos.complain(format!("two at once: {}: {name} is not whole", both[0].told));
            }
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// More silent connections than the metrics server accepts.
pub(super) fn connections(chaos: &Chaos) -> Result<()> {
    const CONNECTIONS: usize = 300;
    // Without the limit the server would use a thread for each connection.
    const THREADS_MAX: usize = 100;
    let words = ["--size", "8MiB", "--pages", "4k", "--socket", "node.sock", "--keep", "none"];
    let serve = ["serve", "--metrics", "127.0.0.1:0"].into_iter().chain(words);
    let mut running = chaos.kvmem(serve).start()?;
    let start = Instant::now();
    let address = loop {
        let told = running.stderr() + &running.stdout();
        let found = told.split("127.0.0.1:").nth(1).and_then(|rest| {
            let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
            port.parse::<u16>().ok()
        });
        match found {
            Some(port) => break Some(("127.0.0.1", port)),
            None if start.elapsed() > Duration::from_secs(10) || running.has_ended()? => {
                break None;
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    if let Some(address) = address {
        let mut open: Vec<TcpStream> =
            (0..CONNECTIONS).filter_map(|_| TcpStream::connect(address).ok()).collect();
        // Some of them begin to ask, and never end.
        for stream in open.iter_mut().step_by(3) {
            let _ = stream.write_all(b"GET /metrics HT");
        }
        thread::sleep(Duration::from_millis(500));
        let threads =
            std::fs::read_dir(format!("/proc/{}/task", running.id())).map_or(0, Iterator::count);
        if threads > THREADS_MAX {
            chaos.complain(format!(
                "{threads} threads for {} connections that say nothing",
                open.len()
            ));
        }
        drop(open);
        // A valid request is answered again.
        let mut answer = String::new();
        let answered = TcpStream::connect(address).and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
            stream.read_to_string(&mut answer)
        });
        if !answer.starts_with("HTTP/1.1 200") {
            chaos.complain(format!(
                "the metrics server does not answer after many connections: {answered:?}"
            ));
        }
    } else {
        chaos.complain(format!(
            "the metrics server does not say where it listens: {}",
            running.stderr()
        ));
    }
    running.send("TERM")?;
    running.wait()?;
    Ok(())
}

/// Interrupted, ended and killed at random moments.
pub(super) fn signals(chaos: &Chaos) -> Result<()> {
    let trace = chaos.trace("trace.jsonl")?;
    let trace = trace.to_str().unwrap_or_default();
    let work: [&[&str]; 6] = [
        &["mount", "--size", "512MiB", "--populate", "2", "--devices", "io_uring:2"],
        &["bench", "arena", "--quick", "--table=map,populate"],
        &["bench", "register", "--quick", "--table=io_uring"],
        &["tour", "--seconds", "2", "--pool", "64MiB"],
        &[
            "replay",
            trace,
            "--backed",
            "--pool",
            "256MiB",
            "--object-bytes",
            "64KiB",
            "--json",
            "replay.json",
        ],
        &["bench", "slab", "--quick", "--reps", "1"],
    ];
    for round in 0..if chaos.quick { 7 } else { 35 } {
        let arguments = work[round % work.len()];
        let (signal, number) =
            [("INT", libc::SIGINT), ("TERM", libc::SIGTERM), ("KILL", libc::SIGKILL)]
                [chaos.random(3) as usize];
        let mut running = chaos.kvmem(arguments).ends(&[0, 1, 2]).or_signal(number).start()?;
        let wait = Duration::from_millis(chaos.random(2500));
        let start = Instant::now();
        while start.elapsed() < wait && !running.has_ended()? {
            thread::sleep(Duration::from_millis(2));
        }
        running.send(signal)?;
        running.wait()?;
        for change in chaos.settings().restore() {
            chaos.complain(format!("SIG{signal} to `kvmem {}`: {change}", arguments.join(" ")));
        }
    }
    Ok(())
}
