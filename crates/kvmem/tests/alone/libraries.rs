//! Libraries loaded at run time: faults of the loader, and the limit on pinned memory.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::ptr::NonNull;

use super::child::{again, passes, role};
use super::standin::StandIn;
use super::{alone, descriptors};
use kvmem::arena::{Call, Errno};
use kvmem::fault;
use kvmem::register::cuda::Cuda;
use kvmem::register::nixl::Nixl;
use kvmem::register::verbs::{Access, Verbs};
use kvmem::register::{Account, Memlock, NotAvailable, RegisterLimit, Registrar};

/// Returns whether a file is mapped into this process.
fn is_loaded(path: &Path) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("our own maps");
    maps.contains(path.to_str().expect("a plain path"))
}

/// Makes each lookup in the loader fail in turn, until a load succeeds without meeting the fault.
fn every_fault(library: &StandIn, load: impl Fn() -> Result<String, NotAvailable>) -> Vec<String> {
    let mut text = Vec::new();
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
                    text.push(error.reason);
                }
                // Optional functions may be missing.
                Ok(without) if failed == 1 => text.push(without),
                Ok(_) => break,
            }
        }
        // The faults are counted by kind of lookup; the second kind begins with a library that
        // loads.
        load().expect("no faults remain");
    }
    assert_eq!(descriptors(), before);
    assert!(is_loaded(library.path()), "the guard keeps it loaded");
    text
}

#[test]
fn a_failing_loader_is_an_error_and_leaks_nothing() {
    let _alone = alone();
    let library = StandIn::new("ibverbs", &[]);
    let text = every_fault(&library, || {
        // SAFETY: the stand-in has the types of the header.
        let nic = unsafe { Verbs::load_from(library.path()) }?.open("mlx5_0")?;
        Ok(nic.with_access(Access::RELAXED_ORDERING).access().to_string())
    });
    assert_eq!(text.len(), 1 + 11);
    assert!(text[0].starts_with("no library: "), "{}", text[0]);
    assert_eq!(text.iter().filter(|text| text.contains("has no function ibv_")).count(), 10);
    // All but ibv_reg_mr_iova2, which is optional.
    assert_eq!(text.iter().filter(|text| *text == "none").count(), 1);
    assert_eq!((library.get("live_contexts"), library.get("live_domains")), (0, 0));
    let path = library.path().to_owned();
    drop(library);
    assert!(!is_loaded(&path), "every failed load unloads it");

    let library = StandIn::new("cuda", &[]);
    let text = every_fault(&library, || {
        // SAFETY: the stand-in has the types of the driver.
        let cuda = unsafe { Cuda::load_from(library.path()) }?;
        Ok(cuda.open(0)?.model().to_owned())
    });
    assert_eq!(text.len(), 1 + 12);
    assert_eq!(text.iter().filter(|text| text.contains("has no function cu")).count(), 9);
    // The newer of two names, for two functions, and the names of errors are optional.
    assert_eq!(text.iter().filter(|text| *text == "Stand-in 0").count(), 3);
    let retained = library.get("retained");
    assert!(retained > 0 && retained == library.get("released"));

    let library = StandIn::new("nixl", &[]);
    let text = every_fault(&library, || {
        // SAFETY: the stand-in has the types of the header.
        let nixl = unsafe { Nixl::load_from(library.path()) }?;
        let agent = nixl.open("UCX")?;
        // SAFETY: no peer gets it.
        unsafe { agent.metadata() }
            .map_err(|error| NotAvailable::new("nixl", error.to_string(), ""))?;
        Ok(format!("{} {nixl:?}", agent.backend()))
    });
    assert_eq!(text.len(), 1 + 25);
    assert!(text[0].starts_with("no library: "), "{}", text[0]);
    assert_eq!(text.iter().filter(|text| text.contains("has no function nixl_capi_")).count(), 22);
    // The function that identifies old libraries, the one that adds parameters, and the one that
    // frees are optional.
    let without: Vec<_> = text.iter().filter(|text| text.starts_with("UCX ")).collect();
    assert_eq!(without.len(), 3);
    assert_eq!(without.iter().filter(|text| text.contains("takes_parameters: false")).count(), 1);
    // The stand-in does not see the blob that plain `free` released.
    assert_eq!(
        (library.get("live_objects"), library.get("live_blobs"), library.get("misuse")),
        (0, 1, 0)
    );
}

/// Runs a test again in a child process without `CAP_IPC_LOCK` that may lock `bytes` bytes.
fn passes_with_memlock(test: &str, bytes: u64) {
    let mut command = again(&format!("libraries::{test}"), &bytes.to_string());
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    let limit_it = move || {
        // CAP_IPC_LOCK. The call fails in a process without capabilities, which does not have this
        // one either. SAFETY: takes numbers.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, 14, 0, 0, 0) };
        // SAFETY: reads a structure.
        match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: only two system calls are made between fork and exec.
    passes(unsafe { command.pre_exec(limit_it) });
}

#[test]
fn the_limit_on_pinned_memory_is_reported() {
    let _alone = alone();
    let Some(limit_bytes) = role().and_then(|role| role.parse::<u64>().ok()) else {
        for bytes in [0, 64 << 10] {
            passes_with_memlock("the_limit_on_pinned_memory_is_reported", bytes);
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
    // With a limit of 0 the kernel does not count: it returns EPERM.
    let errno = if limit_bytes == 0 { Errno::EPERM } else { Errno::ENOMEM };
    library.fail("ibv_reg_mr", 1, u64::MAX, errno.number());
    // SAFETY: the memory outlives the card, and no device writes to it.
    let error = unsafe { nic.register(at, memory.len()) }.expect_err("too much");
    let need_bytes = memory.len() as u64;
    let exceeded =
        RegisterLimit::Memlock { account: Account::Pinned, limit_bytes, used_bytes: 0, need_bytes };
    assert_eq!((error.errno, error.exceeded.clone()), (errno, Some(exceeded)));
    let text = error.to_string();
    assert!(text.contains("raise it to 128 KiB or more (`ulimit -l unlimited`"), "{text}");
    if limit_bytes > 0 {
        // A call within the limit fails for another reason.
        // SAFETY: the memory outlives the card, and no device writes to it.
        let error = unsafe { nic.register(at, 4096) }.expect_err("an injected fault");
        assert_eq!(error.exceeded, None);
    }
}
