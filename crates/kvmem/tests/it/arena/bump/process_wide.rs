//! The process-wide arena, in separate processes: it is made once per process, and all tests share
//! the environment.

use std::process::Command;

use kvmem::arena::{ArenaSettings, ProcessArena, SetupError};

const ROLE: &str = "KVMEM_TEST_ROLE";

/// Runs [`child`] in a new process.
fn run(role: &str, environment: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().expect("this test has a path"));
    for name in [
        "KVMEM_ARENA_POOL_SIZE",
        "KVMEM_DISABLE_ARENA",
        "MC_MMAP_ARENA_POOL_SIZE",
        "MC_DISABLE_MMAP_ARENA",
    ] {
        command.env_remove(name);
    }
    command.args(["--exact", "arena::bump::process_wide::child", "--ignored", "--nocapture"]);
    let output =
        command.env(ROLE, role).envs(environment.iter().copied()).output().expect("it can be run");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains(&format!("played {role}")), "{role}: {text}");
}

#[test]
#[ignore = "a part of the tests beside it, which run it in processes of their own"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        println!("skipped: {ROLE} is not set");
        return;
    };
    match role.as_str() {
        "on" => {
            let threads: Vec<_> =
                (0..8).map(|_| std::thread::spawn(|| ProcessArena::get().unwrap())).collect();
            let arena = ProcessArena::get().unwrap();
            for thread in threads {
                assert!(std::ptr::eq(arena, thread.join().unwrap()), "there are two");
            }
            // The requested size in whole pages of 2 MiB.
            assert_eq!(arena.stats().pool.unwrap().capacity, 4 << 20);
            assert_eq!(
                ProcessArena::configure(ArenaSettings::off()).unwrap_err(),
                SetupError::InUse
            );
            arena.allocate(100, 64).unwrap();
            assert_eq!(arena.stats().pool_allocations, 1);
        }
        "off" => assert_eq!(ProcessArena::get().unwrap().stats().pool, None),
        "wrong" => {
            // Wrong settings fail each time, and do not prevent correct ones later.
            for _ in 0..2 {
                let error = ProcessArena::get().unwrap_err();
                assert!(matches!(error, SetupError::Setting(_)), "{error}");
                assert!(error.to_string().contains("MC_MMAP_ARENA_POOL_SIZE=\"lots\""), "{error}");
            }
            let error =
                ProcessArena::configure(ArenaSettings::pool(isize::MAX as usize)).unwrap_err();
            assert!(matches!(error, SetupError::Map { .. }), "{error}");
            let arena = ProcessArena::configure(ArenaSettings::pool(1 << 20)).unwrap();
            assert!(std::ptr::eq(arena, ProcessArena::get().unwrap()));
            assert_eq!(arena.stats().pool.unwrap().capacity, 1 << 20);
        }
        "trim" => {
            const ROUNDS: usize = 64;
            let arena = ProcessArena::get().unwrap();
            let page = rustix::param::page_size();
            let before = mapped_pages();
            let live: Vec<_> = (0..ROUNDS)
                .map(|_| arena.allocate(page + 1, 1 << 30).unwrap().cast::<u8>())
                .collect();
            // Two pages each; the heap may have grown a little.
            let grown = mapped_pages() - before;
            assert!(
                (2 * ROUNDS..2 * ROUNDS + 1000).contains(&grown),
                "{grown} pages for {ROUNDS} mappings of two"
            );
            for address in live {
                // SAFETY: the allocation is not used afterwards.
                unsafe { arena.free(address) }.unwrap();
            }
            let kept = mapped_pages() - before;
            assert!(kept < grown - 2 * ROUNDS + 10, "{kept} pages of {grown} are still mapped");
        }
        other => panic!("unknown role {other}"),
    }
    println!("played {role}");
}

#[test]
fn the_environment_turns_it_on() {
    run("on", &[("KVMEM_ARENA_POOL_SIZE", "3m")]);
    run("on", &[("MC_MMAP_ARENA_POOL_SIZE", "3MB"), ("MC_DISABLE_MMAP_ARENA", "0")]);
}

#[test]
fn the_environment_leaves_it_off() {
    run("off", &[]);
    run("off", &[("KVMEM_ARENA_POOL_SIZE", "3m"), ("MC_DISABLE_MMAP_ARENA", "1")]);
}

/// Returns the number of mapped pages of this process.
fn mapped_pages() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("there is /proc");
    statm.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number comes first")
}

/// The slack of an aligned mapping is unmapped at once, the rest when it is freed.
#[test]
fn nothing_stays_mapped() {
    run("trim", &[]);
}

#[test]
fn wrong_settings_fail_and_can_be_corrected() {
    run("wrong", &[("MC_MMAP_ARENA_POOL_SIZE", "lots")]);
}
