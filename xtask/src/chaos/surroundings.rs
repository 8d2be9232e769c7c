//! *Surroundings*: values that make no sense, limits that are small, rights that are missing.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use anyhow::Result;

use super::attack::FAILS;
use super::context::Chaos;
use super::machine::Cgroup;

/// Small work of each kind. The benchmarks have heaps of their own, which no limit may touch.
const WORK: [&[&str]; 6] = [
    &["doctor", "--size", "64MiB"],
    &["mount", "--size", "16MiB", "--pages", "thp,4k"],
    &["mount", "--size", "8MiB", "--pages", "4k", "--populate", "2", "--devices", "io_uring:2"],
    &["mount", "--size", "8MiB", "--pages", "4k", "--devices", "mlock"],
    &["tour", "--no-figures", "--seconds", "1", "--pool", "16MiB"],
    &["replay", "trace.jsonl", "--pool", "64GiB"],
];

/// Values that make no sense, for every option that takes one.
pub(super) fn options(chaos: &Chaos) -> Result<()> {
    let long = "9".repeat(100_000);
    let sizes = [
        "",
        "0",
        "-1",
        "1PiB",
        "16EiB",
        "99999999999999999999",
        "1 XB",
        "1e400",
        "nan",
        "\x1b[31mred",
        "½GiB",
        &long,
    ];
    for size in sizes {
        for arguments in [["mount", "--size"], ["doctor", "--size"], ["tour", "--pool"]] {
            let doctor = arguments[0] == "doctor" && size == "1PiB";
            // Of a size that is only too large, the doctor says so; a limit is a verdict, and not a
            // failure.
            let ends: &[i32] = if doctor { &[0, 1, 2] } else { FAILS };
            chaos.kvmem([arguments[0], &format!("{}={size}", arguments[1])]).ends(ends).run()?;
        }
    }
    for size in ["1PiB", "16TiB"] {
        let mount = chaos.kvmem(["mount", "--size", size]).ends(FAILS);
        mount.says(["bytes", "request less"]).run()?;
    }
    let trace = chaos.folder.join("trace.jsonl");
    let trace = trace.to_str().unwrap_or_default();
    let values = ["0", "-1", "18446744073709551616", "x", "", "\x1b]0;title\x07"];
    for value in values {
        for option in [
            "--pool",
            "--threads",
            "--requests",
            "--page-tokens",
            "--object-bytes",
            "--model",
            "--policy",
        ] {
            chaos.kvmem(["replay", trace, &format!("{option}={value}")]).run()?;
        }
        for (command, option) in [
            ("mount", "--pages"),
            ("mount", "--numa"),
            ("mount", "--populate"),
            ("mount", "--devices"),
            ("mount", "--policy"),
            ("mount", "--chunk"),
            ("mount", "--time-limit"),
            ("doctor", "--nodes"),
            ("doctor", "--pages"),
        ] {
            let option = format!("{option}={value}");
            chaos.kvmem([command, "--size=1MiB", &option]).run()?;
        }
    }
    // More threads than any machine has.
    for threads in ["1000000", "18446744073709551615"] {
        chaos.kvmem(["replay", trace, "--threads", threads]).run()?;
    }
    Ok(())
}

/// Little or no memory may be locked.
pub(super) fn memlock(chaos: &Chaos) -> Result<()> {
    for kib in [0u64, 64] {
        for device in ["io_uring:1", "mlock"] {
            for size in ["64KiB", "1MiB"] {
                let mount =
                    chaos.kvmem(["mount", "--size", size, "--pages", "4k", "--devices", device]);
                let mount = mount.under(format!("ulimit -l {kib}")).by_nobody();
                let outcome = mount
                    .says(["RLIMIT_MEMLOCK", &(kib << 10).to_string(), "raise it to"])
                    .run()?;
                if outcome.stderr.contains(&format!("raise it to {kib} KiB")) {
                    chaos.complain(format!(
                        "{}: says to raise the limit to what it is",
                        outcome.told
                    ));
                }
            }
        }
        for work in WORK {
            chaos.kvmem(work).under(format!("ulimit -l {kib}")).by_nobody().run()?;
        }
    }
    Ok(())
}

/// The process may have few descriptors.
pub(super) fn descriptors(chaos: &Chaos) -> Result<()> {
    for limit in [3, 5, 8, 12] {
        for work in WORK {
            // What loads the command itself takes one.
            let under = format!("ulimit -n {limit}");
            let attack = chaos.kvmem(work).under(under);
            attack.ends(if limit == 3 { &[0, 1, 2, 127] } else { &[0, 1, 2] }).run()?;
        }
        let rings =
            chaos.kvmem(["mount", "--size", "1MiB", "--pages", "4k", "--devices", "io_uring:64"]);
        rings
            .under(format!("ulimit -n {}", limit + 4))
            .ends(FAILS)
            .says(["raise RLIMIT_NOFILE"])
            .run()?;
    }
    Ok(())
}

/// The process may have little address space, and write short files only.
pub(super) fn addresses(chaos: &Chaos) -> Result<()> {
    let huge = chaos.kvmem(["mount", "--size", "1GiB", "--pages", "4k"]).under("ulimit -v 600000");
    huge.ends(FAILS).says(["RLIMIT_AS is 614400000 bytes", "raise RLIMIT_AS"]).run()?;
    let data = chaos.kvmem(["mount", "--size", "1GiB", "--pages", "4k"]).under("ulimit -d 200000");
    data.ends(FAILS).says(["RLIMIT_DATA is 204800000 bytes", "raise RLIMIT_DATA"]).run()?;
    for kib in [400_000, 200_000, 120_000] {
        for work in WORK {
            chaos.kvmem(work).under(format!("ulimit -v {kib}")).run()?;
        }
    }
    // The kernel answers what is too long with a signal, unless it is ignored.
    for work in &WORK[1..] {
        let attack = chaos.kvmem(*work).under("ulimit -f 8");
        attack.or_signal(libc::SIGXFSZ).run()?;
    }
    Ok(())
}

/// The process may have few threads.
pub(super) fn threads(chaos: &Chaos) -> Result<()> {
    let trace = chaos.folder.join("trace.jsonl");
    let trace = trace.to_str().unwrap_or_default();
    let more: [&[&str]; 3] = [
        &["replay", trace, "--threads", "16", "--pool", "64GiB"],
        &["bench", "slab", "--quick", "--table=fixed", "--contender=kvmem", "--reps=1"],
        &["bench", "concurrency", "--quick", "--table=impossible", "--contender=null", "--reps=1"],
    ];
    for limit in [1u64, 2, 3, 5, 8] {
        let group = match Cgroup::pids(limit) {
            Ok(group) => group,
            Err(reason) => {
                chaos.skip(reason);
                break;
            }
        };
        for work in WORK.iter().chain(&more) {
            chaos.kvmem(*work).under(group.join()).within(15).run()?;
        }
    }
    Ok(())
}

/// Another user, in folders that are not his.
pub(super) fn user(chaos: &Chaos) -> Result<()> {
    for work in WORK {
        chaos.kvmem(work).by_nobody().run()?;
    }
    let trace = chaos.folder.join("trace.jsonl");
    let closed = chaos.folder.join("closed");
    fs::create_dir(&closed)?;
    fs::set_permissions(&closed, Permissions::from_mode(0o555))?;
    let json = closed.join("report.json");
    let json = json.to_str().unwrap_or_default();
    let says = ["report.json", "Permission denied"];
    let trace = trace.to_str().unwrap_or_default();
    for arguments in [
        ["mount", "--size=1MiB", "--pages=4k", "--json", json],
        ["replay", trace, "--pool=64GiB", "--json", json],
    ] {
        chaos.kvmem(arguments).by_nobody().ends(FAILS).says(says).run()?;
    }
    // The tour writes to the current folder, or to that for temporary files; here both are closed.
    let tour = chaos.kvmem(["tour", "--no-figures", "--seconds", "1", "--pool", "16MiB"]);
    let outcome =
        tour.under(format!("cd {0}; export TMPDIR={0}", closed.display())).by_nobody().run()?;
    if outcome.status.success() && !outcome.stdout.contains("missing     a disk tier") {
        chaos.complain(format!("{}: does not say that there is no disk tier", outcome.told));
    }
    let secret = chaos.file("secret.jsonl", "{}\n")?;
    fs::set_permissions(&secret, Permissions::from_mode(0o600))?;
    let replay = chaos.kvmem(["replay", secret.to_str().unwrap_or_default()]).by_nobody();
    replay.ends(FAILS).says(["secret.jsonl", "Permission denied"]).run()?;
    Ok(())
}

/// As little shared memory as some containers have: none to speak of.
pub(super) fn shm(chaos: &Chaos) -> Result<()> {
    let can = std::process::Command::new("unshare").args(["-m", "true"]).output()?;
    if !can.status.success() {
        chaos.skip(String::from_utf8_lossy(&can.stderr).trim().to_owned());
        return Ok(());
    }
    let tiny = "mount -t tmpfs -o size=64k tmpfs /dev/shm && exec \"$@\"";
    let by = ["unshare", "-m", "sh", "-c", tiny, "sh"];
    let mut all = WORK.to_vec();
    all.push(&["doctor", "--shared", "--size", "1GiB"]);
    for work in all {
        chaos.kvmem(work).by(&by).run()?;
    }
    Ok(())
}

/// A profile that forbids rings, as container runtimes have.
pub(super) fn seccomp(chaos: &Chaos) -> Result<()> {
    for work in WORK {
        let attack = chaos.kvmem(work).before_exec(forbid_rings);
        attack.says(["io_uring", "seccomp"]).run()?;
    }
    Ok(())
}

/// Makes `io_uring_setup` fail in this process and its children.
fn forbid_rings() -> std::io::Result<()> {
    // From <linux/bpf_common.h> and <linux/seccomp.h>: load the number of the call; if it is that
    // one, skip nothing and refuse.
    let load = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let is_setup =
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: libc::SYS_io_uring_setup as u32 };
    let end = |k| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k };
    let refuse = end(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let mut program = [load, is_setup, refuse, end(libc::SECCOMP_RET_ALLOW)];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: system calls; the program lives as long as the second one.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
