//! Slabs as the global allocator of a whole program: this one.

use std::alloc::{GlobalAlloc, Layout};
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc;
use std::thread;

use kvmem::slab::SlabGlobal;

#[global_allocator]
static HEAP: SlabGlobal = SlabGlobal::new();

#[test]
fn collections_threads_and_strings() {
    let (sender, receiver) = mpsc::channel();
    let workers: Vec<_> = (0..8u64)
        .map(|seed| {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut tree = BTreeMap::new();
                for key in 0..5000 {
                    tree.insert(
                        key * (seed + 1) % 7919,
                        format!("{seed}:{key}").repeat(key as usize % 40),
                    );
                }
                sender.send(tree).unwrap();
            })
        })
        .collect();
    drop(sender);
    let mut all: HashMap<u64, Vec<String>> = HashMap::new();
    for tree in receiver {
        for (key, text) in tree {
            all.entry(key).or_default().push(text);
        }
    }
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert!(all.len() > 5000);
    HEAP.allocator().expect("the program has allocated before").trim();
    for texts in all.values() {
        for text in texts.iter().filter(|text| !text.is_empty()) {
            let (seed, rest) = text.split_once(':').unwrap();
            assert!(
                seed.parse::<u64>().unwrap() < 8
                    && rest.starts_with(|digit: char| digit.is_ascii_digit())
            );
        }
    }
}

#[test]
fn threads_come_and_go() {
    for round in 0..200 {
        let worker = thread::spawn(move || vec![round; 1 + round % 3000]);
        assert_eq!(worker.join().unwrap().len(), 1 + round % 3000);
    }
    let caches = HEAP.allocator().unwrap();
    caches.trim();
    let stats = caches.stats();
    assert!(stats.slab_bytes < 64 << 20, "{}", stats.slab_bytes);
}

#[test]
fn every_layout() {
    for size in (1..600).chain([1000, 4096, 8192, 8193, 100_000]) {
        for align in [1, 2, 8, 16, 32, 64, 128, 4096] {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: the layout is not empty; the block is used within its size and freed once,
            // with the size that it has then.
            unsafe {
                let block = HEAP.alloc_zeroed(layout);
                assert!(!block.is_null() && block.addr().is_multiple_of(align), "{layout:?}");
                let bytes = std::slice::from_raw_parts_mut(block, size);
                assert!(bytes.iter().all(|byte| *byte == 0));
                bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
                let grown_bytes = size * 3 + 1;
                let grown = HEAP.realloc(block, layout, grown_bytes);
                assert!(!grown.is_null() && grown.addr().is_multiple_of(align), "{layout:?}");
                let bytes = std::slice::from_raw_parts(grown, size);
                assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
                let layout = Layout::from_size_align(grown_bytes, align).unwrap();
                let shrunk = HEAP.realloc(grown, layout, 1);
                assert_eq!(*shrunk, 0);
                HEAP.dealloc(shrunk, Layout::from_size_align(1, align).unwrap());
            }
        }
    }
}

/// Runs this file's other tests again in a process with this setting; returns its output.
fn rerun_with(value: &str) -> String {
    let mut command = std::process::Command::new(std::env::current_exe().expect("our own path"));
    command.args(["--skip", "settings", "--skip", "forks"]).env("KVMEM_SLAB", value);
    let output = command.output().expect("a child");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{value}: {printed}\n{}",
        String::from_utf8_lossy(&output.stdout)
    );
    printed
}

#[test]
fn settings_hold_for_the_whole_program() {
    for value in ["always-malloc", "all"] {
        assert!(!rerun_with(value).contains("kvmem:"), "{value}");
    }
    let printed = rerun_with("debug");
    assert!(printed.contains(r#"kvmem: KVMEM_SLAB="debug": "debug" is unknown"#), "{printed}");
}

#[test]
fn debugging_finds_nothing_wrong_with_this_program() {
    if std::env::var_os("KVMEM_SLAB").is_none() {
        assert!(!rerun_with("debug-blocks").contains("kvmem:"));
    }
}

#[test]
fn forks_can_allocate() {
    let done = std::sync::atomic::AtomicBool::new(false);
    let done = &done;
    thread::scope(|scope| {
        for seed in 0..2 {
            scope.spawn(move || {
                let mut text = String::new();
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let words: Vec<String> = (0..100).map(|word| format!("{seed}{word}")).collect();
                    text = words.concat();
                }
                text.len()
            });
        }
        for _ in 0..20 {
            // SAFETY: the child uses memory, which is allowed after a fork, and ends with _exit; a
            // lock that is never free ends it too.
            let status = unsafe {
                match libc::fork() {
                    0 => {
                        libc::alarm(20);
                        let mut map = BTreeMap::new();
                        (0..2000).for_each(|key| drop(map.insert(key, vec![key; 10])));
                        libc::_exit(i32::from(map.len() != 2000))
                    }
                    pid => {
                        let mut status = -1;
                        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
                        status
                    }
                }
            };
            assert_eq!(status, 0);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// Ranges whose metadata grows on this heap while another thread forks: the holder of the
/// metadata's lock waits for nothing that the forking thread holds.
#[test]
fn forks_beside_a_cached_space() {
    use std::sync::atomic::{AtomicBool, Ordering};

    static DONE: AtomicBool = AtomicBool::new(false);
    thread::spawn(|| {
        // A deadlock would last forever.
        thread::sleep(std::time::Duration::from_secs(600));
        if !DONE.load(Ordering::Relaxed) {
            eprintln!("no end");
            std::process::abort();
        }
    });
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !DONE.load(Ordering::Relaxed) {
                    let space = kvmem::slab::ExtentCache::new(1 << 40).expect("a space");
                    let held: Vec<_> =
                        (0..2000).map(|i| space.allocate(1 + i % 50).expect("room")).collect();
                    assert!(space.map().len() >= held.len());
                    drop(held);
                    space.check().expect("the metadata is consistent");
                }
            });
        }
        let mut failed = false;
        for _ in 0..100 {
            // SAFETY: the child allocates memory and ends with _exit.
            match unsafe { libc::fork() } {
                // SAFETY: the child allocates memory and ends with _exit.
                0 => unsafe {
                    libc::alarm(20);
                    libc::_exit(i32::from(vec![1u8; 5000].len() != 5000))
                },
                child => {
                    let mut status = 0;
                    // SAFETY: waits for this process's own child.
                    unsafe { libc::waitpid(child, &mut status, 0) };
                    failed |= status != 0;
                }
            }
        }
        DONE.store(true, Ordering::Relaxed);
        assert!(!failed);
    });
}
