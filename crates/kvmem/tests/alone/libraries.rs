//! Libraries that are loaded while the process runs: faults of the loader, and the limit on pinned
//! memory.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;

use super::standin::StandIn;
use super::{alone, descriptors, role};
use kvmem::arena::{Call, Errno};
use kvmem::fault;
use kvmem::register::cuda::Cuda;
use kvmem::register::nixl::Nixl;
use kvmem::register::verbs::{Access, Verbs};
use kvmem::register::{Account, Memlock, NotAvailable, RegisterLimit, Registrar};

/// Whether a file is mapped into this process.
fn is_loaded(path: &Path) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("our own maps");
    maps.contains(path.to_str().expect("a plain path"))
}

/// Makes each look at the loader fail in turn, until a load gets through without having met the
/// fault.
fn every_fault(library: &StandIn, load: impl Fn() -> Result<String, NotAvailable>) -> Vec<String> {
    let mut told = Vec::new();
    let before = descriptors();
    for call in [Call::OpenLibrary, Call::Symbol] {
        for nth in 1.. {
            let guard = fault::fail(call, nth, Errno::ENOMEM);
            let result = load();
            let failed = guard.failed();
            drop(guard);
            match result {
                Err(error) => {
                    assert_eq!(failed, 1);
                    assert!(error.reason.contains("ENOMEM: "), "{error}");
                    told.push(error.reason);
                }
                // What may be missing is done without.
                Ok(without) if failed == 1 => told.push(without),
                Ok(_) => break,
            }
        }
        // The faults are counted by what was asked, so a second kind begins with a library that
        // loads.
        load().expect("no fault any more");
    }
    assert_eq!(descriptors(), before);
    assert!(is_loaded(library.path()), "by its guard");
    told
}

#[test]
fn a_loader_that_fails_is_an_error_and_leaves_nothing() {
    let _alone = alone();
    let library = StandIn::new("ibverbs", &[]);
    let told = every_fault(&library, || {
        // SAFETY: the stand-in has the types of the header.
        let nic = unsafe { Verbs::load_from(library.path()) }?.open("mlx5_0")?;
        Ok(nic.with_access(Access::RELAXED_ORDERING).access().to_string())
    });
    assert_eq!(told.len(), 1 + 11);
    assert!(told[0].starts_with("no library: "), "{}", told[0]);
    assert_eq!(told.iter().filter(|told| told.contains("has no function ibv_")).count(), 10);
    // Without ibv_reg_mr_iova2, which may be missing.
    assert_eq!(told.iter().filter(|told| *told == "none").count(), 1);
    assert_eq!((library.get("live_contexts"), library.get("live_domains")), (0, 0));
    let path = library.path().to_owned();
    drop(library);
    assert!(!is_loaded(&path), "every failed load has let go of it");

    let library = StandIn::new("cuda", &[]);
    let told = every_fault(&library, || {
        // SAFETY: the stand-in has the types of the driver.
        let cuda = unsafe { Cuda::load_from(library.path()) }?;
        Ok(cuda.open(0)?.model().to_owned())
    });
    assert_eq!(told.len(), 1 + 12);
    assert_eq!(told.iter().filter(|told| told.contains("has no function cu")).count(), 9);
    // The newer of two names, twice, and the names of errors.
    assert_eq!(told.iter().filter(|told| *told == "Stand-in 0").count(), 3);
    let retained = library.get("retained");
    assert!(retained > 0 && retained == library.get("released"));

    let library = StandIn::new("nixl", &[]);
    let told = every_fault(&library, || {
        // SAFETY: the stand-in has the types of the header.
        let nixl = unsafe { Nixl::load_from(library.path()) }?;
        let agent = nixl.open("UCX")?;
        // SAFETY: nobody gets it.
        unsafe { agent.metadata() }
            .map_err(|error| NotAvailable::new("nixl", error.to_string(), ""))?;
        Ok(format!("{} {nixl:?}", agent.backend()))
    });
    assert_eq!(told.len(), 1 + 25);
    assert!(told[0].starts_with("no library: "), "{}", told[0]);
    assert_eq!(told.iter().filter(|told| told.contains("has no function nixl_capi_")).count(), 22);
    // By which old ones are known, the one that tells parameters, and the one that frees.
    let without: Vec<_> = told.iter().filter(|told| told.starts_with("UCX ")).collect();
    assert_eq!(without.len(), 3);
    assert_eq!(without.iter().filter(|told| told.contains("takes_parameters: false")).count(), 1);
    // The blob that plain `free` took is not counted back by the stand-in.
    assert_eq!(
        (library.get("live_objects"), library.get("live_blobs"), library.get("misuse")),
        (0, 1, 0)
    );
}

/// Runs a test again in a child without `CAP_IPC_LOCK` that may lock so many bytes.
fn passes_with_memlock(test: &str, bytes: u64) {
    let mut command = Command::new(std::env::current_exe().expect("our own path"));
    command.args([&format!("libraries::{test}"), "--exact", "--nocapture", "--test-threads=1"]);
    command.env("KVMEM_TEST_ROLE", bytes.to_string());
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    let limit_it = move || {
        // CAP_IPC_LOCK. Refused to those who have no capabilities, and they have not this one
        // either. SAFETY: takes numbers.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, 14, 0, 0, 0) };
        // SAFETY: reads a structure.
        match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec two system calls are made, and nothing else.
    let output = unsafe { command.pre_exec(limit_it) }.output().expect("a child");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told} {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_limit_on_pinned_memory_is_told() {
    let _alone = alone();
    let Some(limit_bytes) = role().and_then(|role| role.parse::<u64>().ok()) else {
        for bytes in [0, 64 << 10] {
            passes_with_memlock("the_limit_on_pinned_memory_is_told", bytes);
        }
        return;
    };
    let library = StandIn::new("ibverbs", &[]);
    library.set("memlock", limit_bytes);
    // SAFETY: the stand-in has the types of the header.
    let verbs = unsafe { Verbs::load_from(library.path()) }.expect("compiled just now");
    let nic = verbs.open("mlx5_0").expect("a device");
    let memlock = Memlock { account: Account::Pinned, limit_bytes, used_bytes: 0 };
    assert_eq!(nic.limits().memlock, Some(memlock));
    let memory = vec![0u8; 128 << 10];
    let at = NonNull::from(&memory[..]).cast::<u8>();
    // With nothing allowed the kernel does not count: it says that the process may not.
    let errno = if limit_bytes == 0 { Errno::EPERM } else { Errno::ENOMEM };
    library.fail("ibv_reg_mr", 1, u64::MAX, errno.number());
    // SAFETY: the memory outlives the card, and no device writes to it.
    let refused = unsafe { nic.register(at, memory.len()) }.expect_err("too much");
    let need_bytes = memory.len() as u64;
    let exceeded =
        RegisterLimit::Memlock { account: Account::Pinned, limit_bytes, used_bytes: 0, need_bytes };
    assert_eq!((refused.errno, refused.exceeded.clone()), (errno, Some(exceeded)));
    let told = refused.to_string();
    assert!(told.contains("raise it to 128 KiB or more (`ulimit -l unlimited`"), "{told}");
    if limit_bytes > 0 {
        // What is within the limit was refused for another reason.
        // SAFETY: see above.
        let refused = unsafe { nic.register(at, 4096) }.expect_err("refused");
        assert_eq!(refused.exceeded, None);
    }
}
