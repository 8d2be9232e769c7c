//! *Cost of C++*: the time of allocate and free through the C++ headers, compared with Rust.
//!
//! `cargo run --release -p kvmem-capi --example cost_cpp [rounds] [runs]` compiles `cost.cpp` with
//! `$CXX` or g++, loads it, and lets it time its own loops and those below in turns.

use std::ffi::CStr;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvmem::offset::{AllocError, OffsetAllocator};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

const CAPACITY: u64 = 1 << 40;
const LIVE: usize = 1000;

/// Returns the time in nanoseconds.
type Clock = extern "C" fn() -> f64;

/// Runs a loop of `cost.cpp`, selected by number, with `allocate`. Returns nanoseconds per round.
fn run<G>(
    which: u32,
    count: u64,
    now: Clock,
    mut allocate: impl FnMut(u64) -> Result<G, AllocError>,
) -> f64 {
    let mut live: Vec<Option<G>> = (0..LIVE).map(|_| allocate(4096).ok()).collect();
    let (mut x, mut failed) = (1_u32, 0_u64);
    let start = now();
    match which {
        0 => {
            for i in 0..count {
                failed += u64::from(black_box(allocate(4096 + (i & 7) * 4096)).is_err());
            }
        }
        1 => {
            for _ in 0..count {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = &mut live[(x >> 8) as usize % LIVE];
                *at = None;
                *at = allocate(4096 + u64::from(x >> 20 & 15) * 512).ok();
                failed += u64::from(at.is_none());
            }
        }
        2 => {
            for _ in 0..count {
                failed += u64::from(black_box(allocate(CAPACITY)).is_ok());
            }
        }
        _ => {
            for _ in 0..count {
                failed += u64::from(black_box(allocate(2 * CAPACITY)).is_ok());
            }
        }
    }
    let took = (now() - start) / count as f64;
    assert_eq!(failed, 0, "requests had the wrong result");
    took
}

/// With handles that free themselves.
extern "C" fn rust(which: u32, count: u64, now: Clock) -> f64 {
    let space = OffsetAllocator::new(CAPACITY).expect("it is small enough");
    run(which, count, now, |bytes| space.allocate(bytes))
}

/// With plain data.
extern "C" fn rust_raw(which: u32, count: u64, now: Clock) -> f64 {
    struct Raw<'a>(&'a OffsetAllocator, kvmem::offset::RawHandle);
    impl Drop for Raw<'_> {
        fn drop(&mut self) {
            let _ = self.0.free_raw(self.1);
        }
    }
    let space = OffsetAllocator::new(CAPACITY).expect("it is small enough");
    run(which, count, now, |bytes| space.allocate_raw(bytes).map(|raw| Raw(&space, raw.handle)))
}

fn main() {
    let number =
        |nth, default| std::env::args().nth(nth).map_or(default, |n| n.parse().expect("a number"));
    let (rounds, runs) = (number(1, 1_000_000_u64), number(2, 15_u64) as u32);

    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let here = std::env::current_exe().expect("the path of this program");
    let folder: PathBuf = here.parent().and_then(Path::parent).expect("a target folder").into();
    let library = folder.join("deps/libkvmem_capi.so");
    let loops = here.with_file_name("libcost.so");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    let built = Command::new(compiler)
        .args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-I"])
        .arg(sources.join("include"))
        .arg(sources.join("examples/cost.cpp"))
        .arg(&library)
        .arg("-o")
        .arg(&loops)
        .status()
        .expect("a C++ compiler: install g++, or say which with CXX");
    assert!(built.success(), "cost.cpp does not compile");

    type Loop = extern "C" fn(u32, u64, Clock) -> f64;
    // SAFETY: both libraries were just built from this crate, and run nothing when they are loaded.
    // The first one is loaded before the second, which refers to it by name.
    let greatest = unsafe {
        let _kvmem =
            Library::open(Some(&library), RTLD_NOW | RTLD_GLOBAL).expect("libkvmem_capi.so");
        let loops = Library::open(Some(&loops), RTLD_NOW).expect("what was just compiled");
        let name = CStr::to_bytes_with_nul(c"cost");
        let cost =
            loops.get::<extern "C" fn(Loop, Loop, u64, u32) -> f64>(name).expect("its function");
        cost(rust, rust_raw, rounds, runs)
    };
    println!("the compat header takes at most {greatest:.1} ns more than Rust");
}
