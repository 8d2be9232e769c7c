//! *Nodes*: servers of a node and the commands of their operators, with options that make no sense,
//! small limits, sockets that are no servers, memory files that are no memory, and sudden ends.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::attack::{Attack, FAILS, RunOutcome};
use super::context::Chaos;
use super::machine::Cgroup;
use crate::workspace::cargo;

/// The socket of all servers, in the working folder.
const SOCKET: &str = "node.sock";
/// A small server whose memory ends with it.
const SERVE: [&str; 9] =
    ["serve", "--size", "8MiB", "--pages", "4k", "--socket", SOCKET, "--keep", "none"];
/// What operators do.
const OPERATORS: [&[&str]; 6] = [
    &["ls", "--socket", SOCKET],
    &["ls", "--sessions", "--socket", SOCKET],
    &["stat", "--socket", SOCKET],
    &["stat", "--json", "-", "--socket", SOCKET],
    &["evict", "1MiB", "--socket", SOCKET],
    &["drop", "--all", "--socket", SOCKET],
];

/// Everything about the surroundings of `kvmem serve`, `ls`, `stat`, `evict` and `drop`.
pub(super) fn nodes(chaos: &Chaos) -> Result<()> {
    options(chaos)?;
    limits(chaos)?;
    users(chaos)?;
    sockets(chaos)?;
    operators(chaos)?;
    memory_files(chaos)?;
    shm(chaos)?;
    ends(chaos)
}

/// How long a client of a server waits while processes of another user attack it, and a fetch from
/// a disk tier while values are stored, in an optimized build. The tests have the limits, and print
/// what they measure.
pub(super) fn service_level(chaos: &Chaos) -> Result<()> {
    let measures = |package: &[&str]| {
        let mut test = Command::new(cargo());
        test.current_dir(&chaos.root).args(["test", "--locked", "--release", "--package"]);
        test.args(package).args(["--", "--ignored", "--nocapture"]);
        Ok::<_, anyhow::Error>(test.status()?.success())
    };
    let beside_attacks = measures(&["kvmem-node", "--lib", "server::service_level"])?;
    ensure!(beside_attacks, "clients wait too long beside an attack");
    let beside_stores = measures(&["kvmem-tier", "--test", "it", "loads_first"])?;
    ensure!(beside_stores, "fetches wait too long beside stores");
    Ok(())
}

/// Runs a server. Once it serves, `then` is done, and SIGTERM ends it. A server that cannot serve
/// must say so by itself.
fn serve(attack: Attack<'_>, then: impl FnOnce() -> Result<()>) -> Result<RunOutcome> {
    let mut running = attack.start()?;
    let start = Instant::now();
    while !running.stdout().contains("serving ") {
        if running.has_ended()? || start.elapsed() > Duration::from_secs(30) {
            return running.wait();
        }
        thread::sleep(Duration::from_millis(2));
    }
    then()?;
    running.send("TERM")?;
    running.wait()
}

/// Runs a server that does nothing, and checks that it leaves no socket.
fn serve_alone(chaos: &Chaos, attack: Attack<'_>) -> Result<RunOutcome> {
    let outcome = serve(attack, || Ok(()))?;
    let socket = chaos.folder.join(SOCKET);
    if socket.exists() {
        chaos.complain(format!("{}: has left its socket", outcome.told));
        fs::remove_file(socket)?;
    }
    Ok(outcome)
}

/// Values that make no sense, for every option that takes one.
fn options(chaos: &Chaos) -> Result<()> {
    let named = [
        "--pages",
        "--numa",
        "--populate",
        "--max-blocks",
        "--align",
        "--lease",
        "--spin",
        "--max-rings",
        "--max-connections",
        "--max-handles",
        "--max-reserved",
        "--allow-group",
        "--namespace",
        "--operator",
        "--quota",
        "--default-quota",
        "--drain-seconds",
        "--tier",
        "--mooncake",
        "--scrub",
        "--memory-file",
        "--metrics",
        "--json",
    ];
    for value in ["", "0", "-1", "18446744073709551616", "x=", "/no/such/folder/x", "\x1b[31mred"] {
        for option in named {
            let option = format!("{option}={value}");
            let words: Vec<&str> = SERVE.iter().copied().chain([&*option]).collect();
            // `--pages` is there twice then, which is an error, too.
            serve_alone(chaos, chaos.kvmem(words))?;
        }
        for option in ["--size", "--socket", "--keep"] {
            let at = SERVE.iter().position(|word| *word == option).unwrap_or(0);
            let mut words = SERVE.to_vec();
            words[at + 1] = value;
            let attack = chaos.kvmem(words);
            // A name with an escape character is a name.
            let is_name = option == "--socket" && !value.is_empty() && !value.contains("folder");
            if is_name {
                serve(attack, || Ok(()))?;
            } else {
                serve(attack.ends(FAILS), || Ok(()))?;
            }
        }
    }
    for size in ["1PiB", "16TiB", "16EiB"] {
        let words = ["serve", "--size", size, "--socket", SOCKET, "--keep", "none"];
        serve_alone(chaos, chaos.kvmem(words).ends(FAILS))?;
    }
    Ok(())
}

/// Few descriptors, little address space, nothing locked, short files, few threads.
fn limits(chaos: &Chaos) -> Result<()> {
    let mut limits: Vec<String> = [3, 4, 5, 6, 8, 10, 12, 16, 24, 32]
        .iter()
        .map(|count| format!("ulimit -n {count}"))
        .collect();
    for kib in [400_000, 200_000, 120_000, 60_000] {
        limits.push(format!("ulimit -v {kib}"));
    }
    limits.extend(["ulimit -l 0".to_owned(), "ulimit -d 20000".to_owned()]);
    let memory_file = memory_path(chaos);
    let in_file: Vec<&str> = SERVE.into_iter().chain(["--memory-file", &memory_file]).collect();
    for limit in &limits {
        // What loads the command itself takes descriptors and addresses.
        let ends: &[i32] = &[0, 1, 2, 127];
        serve_alone(chaos, chaos.kvmem(SERVE).under(limit).ends(ends))?;
        serve_alone(chaos, chaos.kvmem(&in_file).under(limit).ends(ends))?;
    }
    remove_memory(chaos, &memory_file);
    for words in [&SERVE[..], &in_file] {
        let attack = chaos.kvmem(words).under("ulimit -f 8").ends(FAILS);
        serve_alone(chaos, attack.or_signal(libc::SIGXFSZ))?;
    }
    remove_memory(chaos, &memory_file);
    for count in [1, 2, 3, 5] {
        let group = match Cgroup::pids(count) {
            Ok(group) => group,
            Err(reason) => {
                chaos.skip(reason);
                break;
            }
        };
        serve_alone(chaos, chaos.kvmem(SERVE).under(group.join()))?;
    }
    if let Ok(group) = Cgroup::memory(48 << 20) {
        let big = ["serve", "--size", "256MiB", "--socket", SOCKET, "--keep", "none"];
        let attack = chaos.kvmem(big).under(group.join()).says(["cgroup.memory.max"]);
        serve_alone(chaos, attack.ends(FAILS))?;
        if group.killed() > 0 {
            chaos.complain("the kernel has killed a server for want of memory".to_owned());
        }
    }
    Ok(())
}

/// A user without any right: in a folder of others, and as a guest of a server of others.
fn users(chaos: &Chaos) -> Result<()> {
    let closed = chaos.folder.join("closed-node");
    fs::create_dir(&closed)?;
    fs::set_permissions(&closed, Permissions::from_mode(0o555))?;
    let socket = closed.join("sock");
    let socket = socket.to_str().unwrap_or_default();
    let words = ["serve", "--size", "8MiB", "--pages", "4k", "--socket", socket, "--keep"];
    for keep in ["none", "keeper"] {
        let attack = chaos.kvmem(words.iter().chain(&[keep])).by_nobody();
        serve(attack.ends(FAILS).says(["Permission denied"]), || Ok(()))?;
    }
    serve_alone(chaos, chaos.kvmem(SERVE).by_nobody())?;
    serve(chaos.kvmem(SERVE), || {
        for words in OPERATORS {
            chaos.kvmem(words).by_nobody().ends(FAILS).run()?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Paths where no server can be, and where something else is.
fn sockets(chaos: &Chaos) -> Result<()> {
    let long = "x".repeat(200);
    fs::create_dir(chaos.folder.join("node-folder"))?;
    chaos.file("node-file", "a letter")?;
    std::os::unix::fs::symlink("node-loop", chaos.folder.join("node-loop"))?;
    let stream = UnixListener::bind(chaos.folder.join("node-stream"))?;
    let paths =
        ["node-folder", "node-file", "node-loop", "node-stream", "/dev/null", &long, "", "a/b/c"];
    for path in paths {
        let mut words = SERVE;
        words[6] = path;
        serve(chaos.kvmem(words).ends(FAILS), || Ok(()))?;
        for operator in OPERATORS {
            let words = operator.iter().map(|word| if *word == SOCKET { path } else { word });
            chaos.kvmem(words).ends(FAILS).run()?;
        }
    }
    drop(stream);
    if fs::read(chaos.folder.join("node-file"))? != b"a letter" {
        chaos.complain("kvmem serve has destroyed a file at the path of its socket".to_owned());
    }
    Ok(())
}

/// Operators without a server, without outputs, with few descriptors; and a second server.
fn operators(chaos: &Chaos) -> Result<()> {
    for words in OPERATORS {
        chaos.kvmem(words).ends(FAILS).says(["no server"]).run()?;
    }
    serve(chaos.kvmem(SERVE), || {
        for words in OPERATORS {
            chaos.kvmem(words).ends(&[0]).run()?;
            for redirect in [">&-", "2>&-", ">&- 2>&-", "<&-", ">/dev/full"] {
                chaos.kvmem(words).redirect(redirect).run()?;
            }
            for limit in ["ulimit -n 3", "ulimit -n 4", "ulimit -n 6", "ulimit -v 60000"] {
                chaos.kvmem(words).under(limit).ends(&[0, 1, 2, 127]).run()?;
            }
        }
        for value in ["", "0", "-1", "18446744073709551616", "x", "\x1b[31mred"] {
            chaos.kvmem(["evict", value, "--socket", SOCKET]).run()?;
            chaos.kvmem(["drop", "--namespace", value, "--socket", SOCKET]).run()?;
            chaos.kvmem(["ls", "--namespace", value, "--socket", SOCKET]).run()?;
            let limit = format!("--limit={value}");
            chaos.kvmem(["ls", &limit, "--socket", SOCKET]).run()?;
            let watch = format!("--watch={value}");
            chaos.kvmem(["stat", &watch, "--count", "1", "--socket", SOCKET]).run()?;
        }
        chaos.kvmem(SERVE).ends(FAILS).says(["a server answers"]).run()?;
        Ok(())
    })?;
    for redirect in [">/dev/full", ">&-", "2>&-", ">&- 2>&-"] {
        // Without a first line nobody knows that it serves: what it cannot print ends it.
        let attack = chaos.kvmem(SERVE).redirect(redirect);
        let mut running = attack.start()?;
        let start = Instant::now();
        while !running.has_ended()? && start.elapsed() < Duration::from_millis(500) {
            thread::sleep(Duration::from_millis(10));
        }
        running.send("TERM")?;
        running.wait()?;
    }
    Ok(())
}

/// Returns a path for memory files of this run.
fn memory_path(chaos: &Chaos) -> String {
    let name = chaos.top.file_name().unwrap_or_default().to_string_lossy().into_owned();
    format!("/dev/shm/memory-of-{name}")
}

/// Removes all files whose names begin with a path.
fn remove_memory(chaos: &Chaos, path: &str) {
    let path = Path::new(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        let found = entry.file_name().to_string_lossy().into_owned();
        if found.starts_with(&name) && fs::remove_file(entry.path()).is_err() {
            chaos.complain(format!("{found} cannot be removed from /dev/shm"));
        }
    }
}

/// Memory files that are no memory, or are damaged: an error, and never another file.
fn memory_files(chaos: &Chaos) -> Result<()> {
    let memory = memory_path(chaos);
    let words: Vec<&str> = SERVE.iter().copied().chain(["--memory-file", &memory]).collect();
    let index = format!("{memory}.index");
    chaos.file("plain", "a letter")?;
    for path in ["plain", "node-folder", "node-loop", "/dev/null", "/proc/self/mem", "/", "a/b"] {
        let words = SERVE.iter().copied().chain(["--memory-file", path]);
        serve_alone(chaos, chaos.kvmem(words).ends(FAILS))?;
    }
    serve_alone(chaos, chaos.kvmem(&words).ends(&[0]))?;
    let (good, good_index) = (fs::read(&memory)?, fs::read(&index)?);
    for round in 0..if chaos.quick { 12 } else { 80 } {
        let mut bytes = good_index.clone();
        // Most of it in the header and the tables.
        let part = [96, 4096, 70_000, bytes.len() as u64][round % 4];
        for _ in 0..=chaos.random(3) {
            let at = chaos.random(part) as usize;
            let len = (1 << chaos.random(8) as usize).min(bytes.len() - at);
            bytes[at..at + len].fill_with(|| chaos.random(256) as u8);
        }
        if round % 5 == 0 {
            bytes.truncate(chaos.random(bytes.len() as u64) as usize);
        }
        fs::write(&index, &bytes)?;
        let outcome = serve_alone(chaos, chaos.kvmem(&words))?;
        if !outcome.status.success() && fs::read(&index)? != bytes {
            chaos.complain(format!("{}: has changed an index that it cannot use", outcome.told));
        }
        if fs::metadata(&memory)?.len() != good.len() as u64 {
            chaos.complain(format!("{}: has changed the size of the memory", outcome.told));
        }
        fs::write(&index, &good_index)?;
    }
    for len in [0, 1, 4095, good.len() as u64 / 2] {
        fs::File::options().write(true).open(&memory)?.set_len(len)?;
        serve_alone(chaos, chaos.kvmem(&words).ends(FAILS))?;
    }
    remove_memory(chaos, &memory);
    fs::write(&memory, "a letter")?;
    serve_alone(chaos, chaos.kvmem(&words).ends(FAILS).says(["--set-aside"]))?;
    if fs::read(&memory)? != b"a letter" {
        chaos.complain("kvmem serve has destroyed a file that is no memory".to_owned());
    }
    remove_memory(chaos, &memory);
    Ok(())
}

/// As little shared memory as some containers have.
fn shm(chaos: &Chaos) -> Result<()> {
    let can = std::process::Command::new("unshare").args(["-m", "true"]).output()?;
    if !can.status.success() {
        chaos.skip(String::from_utf8_lossy(&can.stderr).trim().to_owned());
        return Ok(());
    }
    let tiny = "mount -t tmpfs -o size=64k tmpfs /dev/shm && exec \"$@\"";
    let by = ["unshare", "-m", "sh", "-c", tiny, "sh"];
    // Memory without a name is not there.
    serve_alone(chaos, chaos.kvmem(SERVE).by(&by).ends(&[0]))?;
    let in_file = SERVE.iter().chain(&["--memory-file", "/dev/shm/node"]);
    let attack = chaos.kvmem(in_file).by(&by).ends(FAILS);
    serve_alone(chaos, attack.says(["of 65536", "size="]))?;
    Ok(())
}

/// Servers that are ended at random instants, and the ones after them.
fn ends(chaos: &Chaos) -> Result<()> {
    let memory = memory_path(chaos);
    let words = ["serve", "--size", "64MiB", "--pages", "4k", "--socket", SOCKET];
    let in_file: Vec<&str> = words.iter().copied().chain(["--memory-file", &memory]).collect();
    for round in 0..if chaos.quick { 6 } else { 40 } {
        let (signal, number) =
            [("INT", libc::SIGINT), ("TERM", libc::SIGTERM), ("KILL", libc::SIGKILL)]
                [chaos.random(3) as usize];
        let kept = round % 3 == 2;
        let attack = if kept { chaos.kvmem(words) } else { chaos.kvmem(&in_file) };
        let running = attack.or_signal(number).start()?;
        thread::sleep(Duration::from_millis(chaos.random(150)));
        if chaos.random(2) == 0 {
            chaos.kvmem(OPERATORS[chaos.random(6) as usize]).run()?;
        }
        running.send(signal)?;
        running.wait()?;
    }
    // Whatever was left, the next servers use it.
    let next = chaos.kvmem(&in_file).ends(&[0]);
    serve_alone(chaos, next)?;
    serve_alone(chaos, chaos.kvmem(words).ends(&[0]))?;
    let keeper = chaos.folder.join(format!("{SOCKET}.keeper"));
    let keeper = keeper.to_str().unwrap_or_default();
    chaos.kvmem(["keeper", "--stop", "--socket", keeper]).run()?;
    remove_memory(chaos, &memory);
    Ok(())
}
