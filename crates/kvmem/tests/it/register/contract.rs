//! The contract of every backend of a loaded library, over a stand-in that behaves like the
//! library.

use std::fs;
use std::path::Path;
use std::ptr::NonNull;
use std::time::Duration;

use kvmem::arena::Errno;
use kvmem::register::{Key, NotAvailable, Registrar, RegistrarError};

use crate::standin::StandIn;

pub(crate) const PAGE: usize = 4096;

/// Returns sixteen pages that live as long as the process, from a page on.
pub(crate) fn memory(page: usize) -> NonNull<u8> {
    static MEMORY: [u8; 16 * PAGE] = [0; 16 * PAGE];
    NonNull::from(&MEMORY[page * PAGE..]).cast()
}

/// Registers `len` bytes of these pages, from `page` on.
pub(crate) fn register(
    device: &impl Registrar,
    page: usize,
    len: usize,
) -> Result<Key, RegistrarError> {
    assert!(page * PAGE + len <= 16 * PAGE);
    // SAFETY: the memory is never unmapped, and no device writes to it.
    unsafe { device.register(memory(page), len) }
}

/// Returns whether a file is mapped into this process, even if it was removed.
pub(crate) fn is_loaded(path: &Path) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").expect("our own maps");
    maps.contains(path.to_str().expect("a plain path"))
}

/// A backend: its library, and what the contract has to know of it.
pub(crate) trait Backend: Sized {
    type Device: Registrar;
    /// The stand-in's source.
    const SOURCE: &'static str;
    /// The backend's name in errors.
    const NAME: &'static str;
    /// A word of the remedy for a missing library.
    const INSTALL: &'static str;
    /// Functions that the library must have.
    const FUNCTIONS: &'static [&'static str];
    /// Functions that can fail, and how many calls of the scenario must report that. Later ones
    /// belong to a drop, which tries again.
    const CALLS: &'static [(&'static str, u64)];
    /// Numbers of injected errors, and what the message calls them.
    const ERRORS: &'static [(i32, &'static str)];
    /// The function that deregisters.
    const DEREGISTER: &'static str;
    /// The calls of opening a device, and those of dropping one with a key.
    const LOGS: [&'static [&'static str]; 2];
    /// The stand-in's counts after a key could not be deregistered and its device was dropped.
    const RETAINED: &'static [(&'static str, u64)];

    /// Loads a library.
    ///
    /// # Safety
    /// The file is a stand-in of this backend, or no library.
    unsafe fn load(path: &Path) -> Result<Self, NotAvailable>;
    /// Opens one of two devices.
    fn open(&self, number: usize) -> Result<Self::Device, NotAvailable>;
    fn live_keys(device: &Self::Device) -> u64;
    /// Asserts that the stand-in has no objects any more.
    fn assert_no_objects(library: &StandIn);

    /// Does what else a device can.
    fn use_more(_: &Self::Device) -> Result<(), RegistrarError> {
        Ok(())
    }

    fn loaded(library: &StandIn) -> Self {
        // SAFETY: the stand-in has the types of the header.
        unsafe { Self::load(library.path()) }.expect("compiled just now")
    }
}

fn stand_in<B: Backend>() -> StandIn {
    StandIn::new(B::SOURCE, &[])
}

fn opened<B: Backend>(library: &StandIn) -> [B::Device; 2] {
    let backend = B::loaded(library);
    [0, 1].map(|number| backend.open(number).expect("there are two"))
}

pub(crate) fn a_failure_of_any_call_leaks_nothing<B: Backend>() {
    let library = stand_in::<B>();
    let backend = B::loaded(&library);
    let scenario = || -> Result<(), String> {
        let unavailable = |error: NotAvailable| error.to_string();
        let text = |error: RegistrarError| error.to_string();
        let devices =
            [backend.open(0).map_err(unavailable)?, backend.open(1).map_err(unavailable)?];
        let mut keys = Vec::new();
        for (page, device) in devices.iter().cycle().take(4).enumerate() {
            keys.push((device, register(device, page, PAGE).map_err(text)?));
        }
        for (device, key) in keys.drain(..2) {
            B::use_more(device).map_err(text)?;
            device.deregister(key).map_err(text)?;
        }
        // Dropping the devices deregisters the other two.
        Ok(())
    };
    scenario().expect("no fault yet");
    for &(call, reported) in B::CALLS {
        for &(number, word) in B::ERRORS {
            for nth in 1.. {
                let before = library.calls(call);
                library.fail(call, nth, 1, number);
                let result = scenario();
                let due = library.calls(call) - before >= nth;
                library.fail(call, 1, 0, 0);
                B::assert_no_objects(&library);
                assert_eq!(result.is_err(), due && nth <= reported, "{call} {nth}: {result:?}");
                if let Err(error) = result {
                    assert!(error.contains(call) && error.contains(word), "{error}");
                }
                if !due {
                    assert!(nth > 2, "{call}");
                    break;
                }
            }
        }
    }
}

pub(crate) fn keys_that_are_not_live_are_not_passed_on<B: Backend>() {
    let library = stand_in::<B>();
    let [one, other] = opened::<B>(&library);
    let key = register(&one, 0, PAGE).expect("a key");
    let live = register(&one, 1, PAGE).expect("a key");
    let foreign = register(&other, 2, PAGE).expect("a key");
    one.deregister(key).expect("the key is live");
    let calls = library.calls(B::DEREGISTER);
    let forged = [
        Key { lkey: live.lkey + 1, ..live },
        Key { rkey: live.rkey.map_or(Some(0), |_| None), ..live },
        Key { handle: live.handle + 8, ..live },
        Key { handle: u64::MAX, ..live },
        Key { handle: 0, lkey: 0, rkey: None },
    ];
    for wrong in forged.into_iter().chain([key, foreign]) {
        let error = one.deregister(wrong).expect_err("not live");
        assert_eq!((error.call.as_ref(), error.errno), (B::DEREGISTER, Errno::ENOENT));
        assert!(error.to_string().contains("deregister a key once"), "{error}");
    }
    assert_eq!(library.calls(B::DEREGISTER), calls, "the library was not called");
    // The default implementation: one after the other, each with its own result.
    let answers = one.deregister_all(&[foreign, live, live]);
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!((B::live_keys(&one), B::live_keys(&other)), (0, 1));
    drop((one, other));
    B::assert_no_objects(&library);
}

pub(crate) fn a_key_that_cannot_be_deregistered_keeps_its_device<B: Backend>() {
    let library = stand_in::<B>();
    let [device, _] = opened::<B>(&library);
    let keys = [0, 1].map(|page| register(&device, page, PAGE).expect("two keys"));
    let number = B::ERRORS[0].0;
    library.fail(B::DEREGISTER, 1, 1, number);
    let error = device.deregister(keys[0]).expect_err("an injected fault");
    assert_eq!((error.call.as_ref(), B::live_keys(&device)), (B::DEREGISTER, 2), "{error}");
    device.deregister(keys[0]).expect("no fault any more");
    library.fail(B::DEREGISTER, 1, u64::MAX, number);
    library.log();
    drop(device);
    let log = library.log();
    assert_eq!(log.iter().filter(|call| *call == B::DEREGISTER).count(), 3, "three attempts");
    assert!(!log.contains(&B::LOGS[1].last().expect("some calls").to_string()), "{log:?}");
    for &(what, count) in B::RETAINED {
        assert_eq!(library.get(what), count, "{what}");
    }
    // The library stays loaded for them, too.
    let path = library.path().to_owned();
    drop(library);
    assert!(is_loaded(&path));
}

pub(crate) fn objects_are_freed_in_reverse_order<B: Backend>() {
    let library = stand_in::<B>();
    let backend = B::loaded(&library);
    let device = backend.open(0).expect("there are two");
    assert_eq!(library.log(), B::LOGS[0]);
    register(&device, 0, PAGE).expect("a key");
    library.log();
    // The handle of the library may be dropped earlier.
    drop(backend);
    drop(device);
    assert_eq!(library.log(), B::LOGS[1]);
    B::assert_no_objects(&library);
}

pub(crate) fn a_library_that_lacks_a_function_is_not_available<B: Backend>() {
    for missing in B::FUNCTIONS {
        let library = StandIn::new(B::SOURCE, &[missing]);
        // SAFETY: the library is not used.
        let error = unsafe { B::load(library.path()) }.err().expect("a function is missing");
        assert_eq!(error.backend, B::NAME);
        assert!(error.reason.contains(&format!("has no function {missing}:")), "{error}");
        assert_eq!(library.log(), Vec::<String>::new(), "none was called");
        let path = library.path().to_owned();
        drop(library);
        assert!(!is_loaded(&path), "unloaded after the failure");
    }
}

pub(crate) fn a_file_that_is_no_library_is_not_available<B: Backend>() {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for path in [text, "/nonexistent/lib.so.1", "/", "/dev/null", "a\0b"] {
        // SAFETY: none of them is a library.
        let error = unsafe { B::load(Path::new(path)) }.err().expect("no library");
        assert!(error.reason.starts_with("no library: "), "{error}");
        // The loader's message names the file, unless the name is invalid.
        assert!(path == "a\0b" || error.reason.contains(path), "{error}");
        assert!(error.to_string().contains(B::INSTALL), "{error}");
    }
}

/// The library is called by several threads at once; a key is deregistered once.
pub(crate) fn eight_threads_share_a_device<B: Backend>() {
    let library = stand_in::<B>();
    library.latency(Duration::from_micros(300));
    let [device, _] = opened::<B>(&library);
    library.set("meet", 2);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let device = &device;
            scope.spawn(move || {
                for _ in 0..20 {
                    let keys = [0, 1].map(|page| {
                        register(device, 2 * thread + page, 1 + page).expect("its own pages")
                    });
                    for key in keys {
                        device.deregister(key).expect("the key is live");
                        // Another thread may have got the same address meanwhile, but not the
                        // same key.
                        device.deregister(key).expect_err("it is deregistered");
                    }
                }
            });
        }
    });
    assert!(library.get("max_waiting") >= 2, "calls are concurrent");
    assert_eq!((B::live_keys(&device), library.calls(B::DEREGISTER)), (0, 8 * 20 * 2));
    let key = register(&device, 0, 1).expect("a key");
    let successes = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| device.deregister(key).is_ok())).collect();
        all.into_iter().filter_map(|thread| thread.join().expect("no panic").then_some(())).count()
    });
    assert_eq!((successes, B::live_keys(&device)), (1, 0));
    drop(device);
    B::assert_no_objects(&library);
}

/// Makes tests of these parts of the contract for a backend.
macro_rules! contract {
    ($backend:ty: $($test:ident)*) => {
        $(#[test]
        fn $test() {
            $crate::register::contract::$test::<$backend>();
        })*
    };
}

pub(crate) use contract;
