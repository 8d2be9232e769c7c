//! Several processes of one memory cgroup, and several threads of one process, populate at the same
//! time: the kernel kills none of them.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use super::child::{again, role};
use super::limits::{Group, join};
use super::{MIB, alone};
use kvmem::arena::{
    ArenaError, Call, Ladder, Limit, PageSize, Populate, ProgressOptions, Region, RegionBuilder,
};

/// The bytes that each process requests, and the limit of the group: two of six processes fit, with
/// the room of a third one for everything else.
const SHARE: usize = 80 * MIB;
const LIMIT: usize = 208 * MIB;
const PROCESSES: usize = 6;

/// Prepares the same test in a separate process.
fn start(test: &str, role: &str) -> Command {
    let mut command = again(&format!("concurrent_population::{test}"), role);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn spawn(test: &str, role: &str) -> Child {
    start(test, role).spawn().expect("a child")
}

/// Builds a region of one kind of memory after the other.
fn share(kind: usize, bytes: usize) -> RegionBuilder {
    let ladder = if kind.is_multiple_of(2) {
        Ladder::new([PageSize::Thp, PageSize::Base])
    } else {
        Ladder::from(PageSize::Base)
    };
    let populate = [Populate::Auto, Populate::threads(1), Populate::threads(2)][kind % 3];
    Region::builder(bytes)
        .ladder(ladder)
        .backing(if kind % 4 == 3 {
            kvmem::arena::Backing::Shared
        } else {
            kvmem::arena::Backing::Private
        })
        .populate(populate)
}

/// Maps a region, prints the outcome, and keeps the region for a moment.
fn take(kind: usize) {
    match share(kind, SHARE).map() {
        Ok(region) => {
            println!("\nmapped {}", region.len());
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(error) => {
            check_error(&error, SHARE);
            println!("\nfailed");
        }
    }
}

fn check_error(error: &ArenaError, bytes: usize) {
    let ArenaError::NoHeadroom { need, limit: Limit::Cgroup { limit, remaining: left, .. } } =
        error
    else {
        panic!("{error}")
    };
    assert!(*limit == LIMIT as u64 && left < need && *need >= bytes as u64 / 20, "{error}");
    let text = error.to_string();
    assert!(text.contains(&LIMIT.to_string()) && text.contains("raise the memory limit"), "{text}");
}

fn output_of(output: &Output) -> String {
    assert_ne!(output.status.signal(), Some(libc::SIGKILL), "killed for want of memory");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out} {err}");
    out.into_owned()
}

macro_rules! group {
    () => {
        match Group::new(LIMIT) {
            Ok(group) => group,
            Err(reason) => return println!("skipped: {reason}"),
        }
    };
}

/// Returns the number of rounds: `KVMEM_TEST_ROUNDS`, or 20.
fn rounds() -> usize {
    std::env::var("KVMEM_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(20)
}

#[test]
fn concurrent_processes_populate_or_fail() {
    let _alone = alone();
    let test = "concurrent_processes_populate_or_fail";
    if let Some(role) = role() {
        let (kind, path) = role.split_once(' ').expect("two words");
        join(path);
        return take(kind.parse().expect("a number"));
    }
    let group = group!();
    let path = group.0.to_str().expect("a plain path");
    let mut served = 0;
    for round in 0..rounds() {
        let children: Vec<Child> =
            (0..PROCESSES).map(|n| spawn(test, &format!("{} {path}", round + n))).collect();
        let outputs: Vec<String> = children
            .into_iter()
            .map(|child| output_of(&child.wait_with_output().expect("our child")))
            .collect();
        let mapped = outputs.iter().filter(|out| out.contains("\nmapped")).count();
        let failed = outputs.iter().filter(|out| out.contains("\nfailed")).count();
        assert_eq!(mapped + failed, PROCESSES);
        assert!(mapped >= 1, "round {round}: there is room for two");
        served += mapped;
    }
    println!("{served} of {} were served", rounds() * PROCESSES);
}

#[test]
fn threads_of_one_process_populate_or_fail() {
    let _alone = alone();
    let test = "threads_of_one_process_populate_or_fail";
    if let Some(path) = role() {
        join(&path);
        for round in 0..rounds() / 5 + 1 {
            let results: Vec<_> = std::thread::scope(|scope| {
                let map = |n: usize| move || share(round + n, SHARE / 2).map();
                let threads: Vec<_> = (0..8).map(|n| scope.spawn(map(n))).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            assert!(results.iter().any(Result::is_ok));
            assert!(results.iter().any(Result::is_err), "eight shares are too many");
            results
                .iter()
                .filter_map(|result| result.as_ref().err())
                .for_each(|error| check_error(error, SHARE / 2));
        }
        return;
    }
    let group = group!();
    output_of(
        &spawn(test, group.0.to_str().expect("a plain path"))
            .wait_with_output()
            .expect("our child"),
    );
}

#[test]
fn an_uncontended_reservation_takes_one_call_per_chunk() {
    let _alone = alone();
    let counted = kvmem::fault::count();
    let region =
        Region::builder(256 * MIB).ladder(PageSize::Base).populate(Populate::threads(1)).map();
    drop(region.expect("a little memory"));
    // Every limit has a file. Each chunk of 32 MiB lowers the reservation; near a limit, each chunk
    // of 4 MiB does.
    let limits = counted.made(Call::OpenToLock);
    let (reserved, turns) = (counted.made(Call::LockRange), counted.made(Call::LockFile));
    assert!(limits >= 1 && reserved <= limits * (1 + 64), "{reserved} calls for {limits} limits");
    // A turn is a lock and an unlock. It takes more than one if other processes have reserved the
    // remaining bytes, or hold the turn.
    assert!(turns >= 2 * limits, "{turns} calls for {limits} limits");
    let before = counted.made(Call::OpenToLock);
    // Pages that exist need no reservation, and neither does a region that is not populated.
    drop(Region::builder(256 * MIB).ladder(PageSize::Base).map().expect("addresses"));
    assert_eq!(counted.made(Call::OpenToLock), before);
}

/// Reserves a share, reports it in the middle of populating it, and then does nothing until it is
/// killed.
fn hold() {
    let watch = ProgressOptions::new().progress(|progress| {
        println!("\nholds {}", progress.done_bytes);
        std::thread::sleep(Duration::from_secs(600));
    });
    let region = Region::builder(2 * SHARE).ladder(PageSize::Base).map().expect("addresses");
    let _ = region.populate(.., Populate::threads(1), &watch);
}

fn wait_for(child: &mut Child, word: &str) {
    let lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
    assert!(
        lines.map_while(Result::ok).any(|line| line.starts_with(word)),
        "it ends without `{word}`"
    );
}

/// A child that is killed when this value is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_reservation_is_seen_by_all_and_ends_with_its_process() {
    let _alone = alone();
    let test = "a_reservation_is_seen_by_all_and_ends_with_its_process";
    if let Some(role) = role() {
        let (what, path) = role.split_once(' ').expect("two words");
        if what != "joined" {
            join(path);
        }
        return match what {
            "hold" => hold(),
            // More than the bytes that remain beside the reservation, less than those that remain
            // without it.
            "ask" => take(0),
            "joined" => {
                let started = std::time::Instant::now();
                take(0);
                println!("after {} ms", started.elapsed().as_millis());
            }
            _ => {
                share(0, SHARE / 4).map().expect("room beside the reservation");
                println!("\nmapped");
            }
        };
    }
    let group = group!();
    let path = group.0.to_str().expect("a plain path");
    let mut holder = Killed(spawn(test, &format!("hold {path}")));
    wait_for(&mut holder.0, "holds");
    // The holder pauses with most of its share still reserved. Processes that fit beside it
    // populate.
    let beside = |role: &str| output_of(&start(test, role).output().expect("a child"));
    assert!(beside(&format!("fit {path}")).contains("\nmapped"));
    assert!(beside(&format!("ask {path}")).contains("\nfailed"));
    // It waits for the holder, but not until its end.
    assert!(holder.0.try_wait().expect("our child").is_none(), "the holder has ended");
    let mut container = start(test, &format!("joined {path}"));
    let mounts =
        ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].into_iter().find(|top| path.starts_with(top));
    let [mount, group_path] = [mounts.expect("the path of the group"), path]
        .map(|path| std::ffi::CString::new(path).expect("no zero"));
    // SAFETY: the child makes only system calls before it executes.
    unsafe { container.pre_exec(move || as_in_a_container(&group_path, &mount)) };
    match container.output() {
        // It sees the reservation and waits, but not that it is root's: this user may not look into
        // the processes of another one. The pages of the holder are no reservation.
        Ok(output) => {
            let output = output_of(&output);
            let waited =
                output.lines().find_map(|line| line.strip_prefix("after ")?.split_once(' '));
            let waited: u64 = waited.expect("a time").0.parse().expect("a number");
            assert!(output.contains("\nmapped") && waited >= 1000, "{output}");
        }
        Err(error) => {
            println!("skipped: the part with a read-only mount and another user: {error}")
        }
    }
    drop(holder);
    assert!(beside(&format!("ask {path}")).contains("\nmapped"), "killed, it holds nothing");
}

/// Joins the group, makes its mount read-only, and becomes another user. Makes only system calls.
fn as_in_a_container(group: &std::ffi::CStr, mount: &std::ffi::CStr) -> std::io::Result<()> {
    let check = |returned: libc::c_int| match returned {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    };
    let (top, none) = (mount.as_ptr(), std::ptr::null());
    let read_only = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY;
    // SAFETY: system calls whose strings end with a zero and outlive them.
    unsafe {
        let folder = libc::open(group.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
        let file = libc::openat(folder, c"cgroup.procs".as_ptr(), libc::O_WRONLY);
        check(if libc::write(file, c"0".as_ptr().cast(), 1) == 1 { 0 } else { -1 })?;
        check(libc::close(file) | libc::close(folder))?;
        check(libc::unshare(libc::CLONE_NEWNS))?;
        check(libc::mount(
            none,
            c"/".as_ptr(),
            none,
            libc::MS_REC | libc::MS_PRIVATE,
            none.cast(),
        ))?;
        check(libc::mount(top, top, none, libc::MS_BIND, none.cast()))?;
        check(libc::mount(none, top, none, read_only, none.cast()))?;
        check(libc::setgroups(0, none.cast()) | libc::setgid(65534))?;
        check(libc::setuid(65534))
    }
}
