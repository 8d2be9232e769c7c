//! The verbs backend over a stand-in that behaves like a driver, and over the real library if it is
//! installed.

use std::ffi::{c_int, c_void};
use std::fs;
use std::path::Path;
use std::ptr::NonNull;
use std::time::Duration;

use kvmem::arena::Errno;
use kvmem::register::verbs::{Access, Nic, Verbs};
use kvmem::register::{Key, NotAvailable, RegisterLimit, Registrar, RegistrarError};

use crate::standin::StandIn;

fn stand_in() -> StandIn {
    StandIn::new("ibverbs", &[])
}

fn load(library: &StandIn) -> Verbs {
    // SAFETY: the stand-in has the types of the header.
    unsafe { Verbs::load_from(library.path()) }.expect("compiled just now")
}

fn nic(library: &StandIn) -> Nic {
    load(library).open("mlx5_0").expect("the first device")
}

/// Returns memory that lives as long as the process.
fn memory() -> NonNull<u8> {
    static MEMORY: [u8; 64 << 10] = [0; 64 << 10];
    NonNull::from(&MEMORY).cast()
}

/// Registers memory of the process.
fn register(nic: &Nic, len: usize) -> Result<Key, RegistrarError> {
    assert!(len <= 64 << 10);
    // SAFETY: the memory is never unmapped, and no device writes to it.
    unsafe { nic.register(memory(), len) }
}

fn assert_no_objects(library: &StandIn) {
    for what in ["live_regions", "live_domains", "live_contexts", "live_lists", "misuse"] {
        assert_eq!(library.get(what), 0, "{what}");
    }
}

#[test]
fn devices_are_listed_and_issue_keys() {
    let library = stand_in();
    let verbs = load(&library);
    assert_eq!(verbs.devices().expect("two"), ["mlx5_0", "mlx5_1"]);
    let nics = ["mlx5_0", "mlx5_1"].map(|name| verbs.open(name).expect("a device"));
    assert_eq!((nics[1].name(), nics[1].limits().device), ("mlx5_1", "mlx5_1".to_owned()));
    let keys = [register(&nics[0], 4096), register(&nics[0], 1), register(&nics[1], 4096)];
    let keys = keys.map(|key| key.expect("within all limits"));
    // The stand-in counts its keys up: lkey, rkey, lkey, …
    assert_eq!(
        keys.map(|key| (key.lkey, key.rkey)),
        [0, 2, 4].map(|n| (0x100 + n, Some(0x101 + n as u32)))
    );
    assert_eq!((nics[0].live_keys(), nics[1].live_keys(), library.get("live_regions")), (2, 1, 3));
    for (nic, key) in [(&nics[0], keys[0]), (&nics[1], keys[2]), (&nics[0], keys[1])] {
        nic.deregister(key).expect("the key is live");
    }
    assert_eq!((nics[0].live_keys(), library.get("live_regions")), (0, 0));
    drop((nics, verbs));
    assert_no_objects(&library);
}

#[test]
fn limits_are_those_of_the_device() {
    let library = stand_in();
    for (size, bytes) in [(8192, 8192), (0, u64::MAX), (u64::MAX, u64::MAX)] {
        library.set("max_mr_size", size);
        assert_eq!(nic(&library).limits().max_bytes, bytes);
    }
    for (count, keys) in
        [(3, 3), (0, u64::MAX), (u64::MAX, u64::MAX), (i32::MAX as u64, i32::MAX as u64)]
    {
        library.set("max_mr", count);
        assert_eq!(nic(&library).limits().max_keys, keys);
    }
    library.set("max_mr_size", 8192);
    library.set("max_mr", 3);
    let nic = nic(&library);
    let error = register(&nic, 8193).expect_err("too long");
    assert_eq!(error.errno, Errno::EINVAL);
    assert_eq!(
        error.exceeded,
        Some(RegisterLimit::KeyBytes { limit_bytes: 8192, need_bytes: 8193 })
    );
    // A call within the limit fails for another reason.
    library.fail("ibv_reg_mr", 1, 1, libc::EINVAL);
    assert_eq!(register(&nic, 8192).expect_err("an injected fault").exceeded, None);
    let keys: Vec<Key> = (0..3).map(|_| register(&nic, 8192).expect("three")).collect();
    assert_eq!(nic.limits().max_keys, 0);
    let error = register(&nic, 1).expect_err("a fourth");
    assert_eq!(
        (error.errno, error.exceeded.clone()),
        (Errno::ENOMEM, Some(RegisterLimit::Keys { limit: 0, need: 1 }))
    );
    assert!(error.to_string().contains("larger chunks or fewer regions"), "{error}");
    nic.deregister(keys[1]).expect("the key is live");
    assert_eq!(nic.limits().max_keys, 1);
    register(&nic, 1).expect("a key is free again");
    drop(nic);
    assert_no_objects(&library);
}

#[test]
fn access_is_exactly_as_requested() {
    let library = stand_in();
    let verbs = load(&library);
    let register_with = |access: Option<Access>| {
        let nic = verbs.open("mlx5_1").expect("a device");
        let nic = match access {
            Some(access) => nic.with_access(access),
            None => nic,
        };
        library.log();
        let result = register(&nic, 4096);
        let requested = library.get_at("access", library.get("registered") - 1);
        assert_eq!(requested, u64::from(nic.access().bits()));
        (requested, library.log()[0].clone(), result)
    };
    let plain = "ibv_reg_mr".to_owned();
    assert_eq!((register_with(None).0, register_with(None).1), (7, plain.clone()));
    for bits in 0..16 {
        let all =
            [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
        let some = all.into_iter().enumerate().filter(|(at, _)| bits & 1 << at != 0);
        let access = some.fold(Access::NONE, |access, (_, flag)| access | flag);
        let (requested, call, result) = register_with(Some(access));
        assert_eq!((requested, &call), (bits, &plain));
        // The device rejects what the standard does not allow; the library does not correct it.
        if bits & 0b1010 != 0 && bits & 1 == 0 {
            let error = result.expect_err("no local write");
            assert_eq!((error.errno, error.exceeded.as_ref()), (Errno::EINVAL, None));
            assert!(error.to_string().contains("add local_write"), "{error}");
        } else {
            result.expect("allowed");
        }
        let (requested, call, _) = register_with(Some(access | Access::RELAXED_ORDERING));
        assert_eq!((requested, call.as_str()), (bits | 1 << 20, "ibv_reg_mr_iova2"));
    }
    assert_eq!(library.get("foreign_iova"), 0, "peers use our addresses");
    assert_no_objects(&library);
}

#[test]
fn relaxed_ordering_is_omitted_if_the_library_does_not_support_it() {
    let library = StandIn::new("ibverbs", &["ibv_reg_mr_iova2"]);
    let requested = Access::default() | Access::RELAXED_ORDERING;
    let nic = nic(&library).with_access(requested);
    assert_eq!(nic.access(), Access::default(), "the registrar reports it");
    register(&nic, 4096).expect("without it");
    assert_eq!((library.get_at("access", 0), library.calls("ibv_reg_mr")), (7, 1));
}

/// The functions that can fail.
const CALLS: [&str; 6] = [
    "ibv_get_device_list",
    "ibv_open_device",
    "ibv_query_device",
    "ibv_alloc_pd",
    "ibv_reg_mr",
    "ibv_dereg_mr",
];

#[test]
fn a_failure_of_any_call_leaks_nothing() {
    let library = stand_in();
    let verbs = load(&library);
    let scenario = || -> Result<(), String> {
        let to_text = |error: NotAvailable| error.to_string();
        let nics = [verbs.open("mlx5_0").map_err(to_text)?, verbs.open("mlx5_1").map_err(to_text)?];
        let mut keys = Vec::new();
        for nic in nics.iter().cycle().take(4) {
            keys.push((nic, register(nic, 4096).map_err(|error| error.to_string())?));
        }
        for (nic, key) in keys.drain(..2) {
            nic.deregister(key).map_err(|error| error.to_string())?;
        }
        // Dropping the cards deregisters the other two.
        Ok(())
    };
    for call in CALLS {
        for errno in [Errno::ENOMEM, Errno::EIO, Errno::EACCES] {
            let mut failures = 0;
            for nth in 1.. {
                let before = library.calls(call);
                library.fail(call, nth, 1, errno.number());
                let result = scenario();
                let due = library.calls(call) - before >= nth;
                library.fail(call, 1, 0, 0);
                assert_no_objects(&library);
                match result {
                    Err(error) => {
                        assert!(
                            due && error.contains(call) && error.contains(errno.name().unwrap()),
                            "{error}"
                        );
                        failures += 1;
                    }
                    // Dropping a card retries the remaining keys.
                    Ok(()) if call == "ibv_dereg_mr" && due => {}
                    Ok(()) => {
                        assert!(!due, "{call} failed without an error");
                        break;
                    }
                }
            }
            assert!(failures >= 2, "{call}");
        }
    }
}

#[test]
fn a_key_that_cannot_be_deregistered_keeps_its_domain() {
    let library = stand_in();
    let nic = nic(&library);
    let keys = [1, 2].map(|len| register(&nic, len).expect("two keys"));
    library.fail("ibv_dereg_mr", 1, 1, Errno::EBUSY.number());
    let error = nic.deregister(keys[0]).expect_err("busy");
    assert_eq!((error.call.as_ref(), error.errno), ("ibv_dereg_mr", Errno::EBUSY));
    assert_eq!(nic.live_keys(), 2, "the key is live");
    nic.deregister(keys[0]).expect("no fault any more");
    register(&nic, 3).expect("another");
    library.fail("ibv_dereg_mr", 1, u64::MAX, Errno::EIO.number());
    library.log();
    drop(nic);
    assert_eq!(library.log(), ["ibv_dereg_mr"; 6], "three attempts each");
    assert_eq!(
        ["live_regions", "live_domains", "live_contexts", "misuse"].map(|what| library.get(what)),
        [2, 1, 1, 0]
    );
    // The library stays loaded for them, too.
    let path = library.path().to_owned();
    drop(library);
    assert!(is_loaded(&path));
}

#[test]
fn a_domain_that_cannot_be_freed_keeps_its_device() {
    let library = stand_in();
    let nic = nic(&library);
    library.fail("ibv_dealloc_pd", 1, 1, Errno::EBUSY.number());
    library.log();
    drop(nic);
    assert_eq!(library.log(), ["ibv_dealloc_pd"]);
    assert_eq!((library.get("live_contexts"), library.get("misuse")), (1, 0));
}

#[test]
fn every_form_of_an_error_number_is_understood() {
    let library = stand_in();
    let nic = nic(&library);
    let key = register(&nic, 1).expect("a key");
    // Returned; returned negated; −1 with errno.
    for (returned, errno) in [
        (Errno::EBUSY.number(), Errno::EBUSY),
        (-Errno::EBUSY.number(), Errno::EBUSY),
        (-1, Errno::EIO),
    ] {
        library.fail("ibv_dereg_mr", 1, 1, returned);
        assert_eq!(nic.deregister(key).expect_err("an injected fault").errno, errno, "{returned}");
    }
    nic.deregister(key).expect("the key is live");
}

#[test]
fn objects_are_freed_in_reverse_order() {
    let library = stand_in();
    let verbs = load(&library);
    let nic = verbs.open("mlx5_0").expect("a device");
    for _ in 0..3 {
        register(&nic, 1).expect("a key");
    }
    let log = library.log();
    let open = [
        "ibv_get_device_list",
        "ibv_open_device",
        "ibv_alloc_pd",
        "ibv_query_device",
        "ibv_free_device_list",
    ];
    assert_eq!(log[..5], open);
    // The handle of the library may be dropped earlier.
    drop(verbs);
    drop(nic);
    let log = library.log();
    assert_eq!(log[..3], ["ibv_dereg_mr"; 3]);
    assert_eq!(log[3..], ["ibv_dealloc_pd", "ibv_close_device"]);
    assert_no_objects(&library);
}

/// Returns whether a file is mapped into this process, even if it was removed.
fn is_loaded(path: &Path) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").expect("our own maps");
    maps.contains(path.to_str().expect("a plain path"))
}

#[test]
fn the_library_is_unloaded_after_its_last_object() {
    let library = stand_in();
    let path = library.path().to_owned();
    let verbs = load(&library);
    let nic = verbs.open("mlx5_0").expect("a device");
    let key = register(&nic, 1).expect("a key");
    drop((library, verbs));
    assert!(is_loaded(&path));
    nic.deregister(key).expect("the key is live");
    drop(nic);
    assert!(!is_loaded(&path));
}

#[test]
fn keys_that_are_not_live_are_not_passed_on() {
    let library = stand_in();
    let verbs = load(&library);
    let [nic, other] = ["mlx5_0", "mlx5_1"].map(|name| verbs.open(name).expect("a device"));
    let key = register(&nic, 1).expect("a key");
    let foreign = register(&other, 1).expect("a key");
    nic.deregister(key).expect("the key is live");
    let calls = library.calls("ibv_dereg_mr");
    let never = Key { handle: 0, lkey: 0, rkey: None };
    let forged =
        [Key { rkey: None, ..foreign }, Key { lkey: 0, ..foreign }, Key { handle: 8, ..foreign }];
    for wrong in [key, foreign, never, Key { handle: u64::MAX, ..key }] {
        let error = nic.deregister(wrong).expect_err("not live");
        assert_eq!((error.call.as_ref(), error.errno), ("ibv_dereg_mr", Errno::ENOENT));
        assert!(error.to_string().contains("deregister a key once"), "{error}");
    }
    for wrong in forged {
        other.deregister(wrong).expect_err("not live");
    }
    assert_eq!(library.calls("ibv_dereg_mr"), calls, "the library was not called");
    // A stale key whose address is reused does not deregister the new one.
    let again = register(&nic, 1).expect("a key");
    nic.deregister(key).expect_err("old");
    nic.deregister(again).expect("the key is live");
    other.deregister(foreign).expect("the key is live");
    drop((nic, other, verbs));
    assert_no_objects(&library);
}

#[test]
fn a_library_that_lacks_a_function_is_not_available() {
    for missing in [
        "ibv_get_device_list",
        "ibv_free_device_list",
        "ibv_get_device_name",
        "ibv_open_device",
        "ibv_close_device",
        "ibv_query_device",
        "ibv_alloc_pd",
        "ibv_dealloc_pd",
        "ibv_reg_mr",
        "ibv_dereg_mr",
    ] {
        let library = StandIn::new("ibverbs", &[missing]);
        // SAFETY: the library is not used.
        let error = unsafe { Verbs::load_from(library.path()) }.expect_err("a function is missing");
        assert_eq!(error.backend, "verbs");
        assert!(error.reason.contains(&format!("has no function {missing}:")), "{error}");
        let path = library.path().to_owned();
        drop(library);
        assert!(!is_loaded(&path), "unloaded after the failure");
    }
}

#[test]
fn a_file_that_is_no_library_is_not_available() {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let nul = Path::new("a\0b");
    for path in [
        text.as_path(),
        Path::new("/nonexistent/libibverbs.so.1"),
        Path::new("/"),
        Path::new("/dev/null"),
        nul,
    ] {
        // SAFETY: none of them is a library.
        let error = unsafe { Verbs::load_from(path) }.expect_err("no library");
        assert!(error.reason.starts_with("no library: "), "{error}");
        // The loader's message names the file, unless the name is invalid.
        assert!(path == nul || error.reason.contains(path.to_str().expect("plain")), "{error}");
        assert!(error.to_string().contains("libibverbs1"), "{error}");
    }
}

#[test]
fn missing_devices_are_explained() {
    let library = stand_in();
    let verbs = load(&library);
    let error = verbs.open("mlx5_7").expect_err("there are two");
    assert!(
        error.reason.contains("no device is called mlx5_7: there are mlx5_0, mlx5_1"),
        "{error}"
    );
    library.set("devices", 0);
    for error in
        [verbs.devices().expect_err("none"), verbs.open("mlx5_0").map(drop).expect_err("none")]
    {
        assert!(error.reason.starts_with("no device: the library finds none"), "{error}");
        assert!(error.remedy.contains("--device=/dev/infiniband"), "{error}");
    }
    library.set("devices", 2);
    for (errno, word) in [
        (libc::ENOSYS, "no device: the kernel does not support RDMA"),
        (libc::EPERM, "ibv_get_device_list: EPERM"),
    ] {
        library.fail("ibv_get_device_list", 1, 1, errno);
        let error = verbs.devices().expect_err("an injected fault");
        assert!(error.reason.contains(word), "{error}");
    }
    for (call, errno, word) in [
        ("ibv_open_device", libc::EACCES, "uverbs"),
        ("ibv_open_device", libc::ENODEV, "ib_uverbs"),
        ("ibv_alloc_pd", libc::ENOMEM, "ulimit"),
        ("ibv_query_device", libc::EIO, "dmesg"),
    ] {
        library.fail(call, 1, 1, errno);
        let error = verbs.open("mlx5_1").expect_err("an injected fault");
        assert!(error.reason.contains(&format!("mlx5_1: {call}: ")), "{error}");
        assert!(error.remedy.contains(word), "{error}");
    }
    assert_no_objects(&library);
}

#[test]
fn failures_say_what_to_do() {
    let library = stand_in();
    let nic = nic(&library);
    for (errno, word) in [
        (Errno::ENOMEM, "no more memory"),
        (Errno::EINVAL, "local_write"),
        (Errno::EFAULT, "for reading, and for writing"),
        (Errno::EOPNOTSUPP, "access flags"),
        (Errno::EACCES, "/dev/infiniband"),
        (Errno::EPERM, "RLIMIT_MEMLOCK"),
        (Errno::ENODEV, "open it again"),
        (Errno::EBUSY, "dmesg"),
    ] {
        library.fail("ibv_reg_mr", 1, 1, errno.number());
        let error = register(&nic, 1).expect_err("an injected fault");
        assert_eq!((error.call.as_ref(), error.errno), ("ibv_reg_mr", errno));
        let text = error.to_string();
        assert!(text.contains(errno.name().expect("one of ours")), "{text}");
        // With a limit of 0 on locked memory, EPERM means that limit.
        assert!(text.contains(word) || text.contains("RLIMIT_MEMLOCK"), "{text}");
    }
    // A failure without an error number becomes EIO.
    library.fail("ibv_reg_mr", 1, 1, -1);
    assert_eq!(register(&nic, 1).expect_err("an injected fault").errno, Errno::EIO);
}

#[test]
fn a_foreign_domain_can_be_used() {
    let library = stand_in();
    let verbs = load(&library);
    // SAFETY: the types are those of the header, and only objects of the stand-in are passed to it.
    let (context, pd) = unsafe {
        type List = *mut *mut c_void;
        let list = library
            .function::<unsafe extern "C" fn(*mut c_int) -> List>("ibv_get_device_list")(
            &mut 0
        );
        let open =
            library.function::<unsafe extern "C" fn(*mut c_void) -> *mut c_void>("ibv_open_device");
        let context = open(*list);
        library.function::<unsafe extern "C" fn(List)>("ibv_free_device_list")(list);
        (
            context,
            library.function::<unsafe extern "C" fn(*mut c_void) -> *mut c_void>("ibv_alloc_pd")(
                context,
            ),
        )
    };
    let pd = NonNull::new(pd).expect("a domain");
    library.fail("ibv_query_device", 1, 1, libc::EIO);
    // SAFETY: the domain is the stand-in's, and is freed after the card.
    unsafe { Nic::from_raw(&verbs, "engine:0", pd) }.expect_err("its limits are unknown");
    library.set("max_mr", 5);
    // SAFETY: the domain is the stand-in's, and is freed after the card.
    let nic = unsafe { Nic::from_raw(&verbs, "engine:0", pd) }.expect("a domain");
    assert_eq!((nic.name(), nic.limits().max_keys), ("engine:0", 5));
    let key = register(&nic, 1).expect("a key");
    register(&nic, 1).expect("a key");
    nic.deregister(key).expect("the key is live");
    library.log();
    drop(nic);
    assert_eq!(library.log(), ["ibv_dereg_mr"], "foreign objects stay");
    assert_eq!(
        ["live_regions", "live_domains", "live_contexts"].map(|what| library.get(what)),
        [0, 1, 1]
    );
    // SAFETY: they are not used any more.
    unsafe {
        library.function::<unsafe extern "C" fn(*mut c_void) -> c_int>("ibv_dealloc_pd")(
            pd.as_ptr(),
        );
        library.function::<unsafe extern "C" fn(*mut c_void) -> c_int>("ibv_close_device")(context);
    }
    assert_no_objects(&library);
}

#[test]
fn eight_threads_share_a_card() {
    let library = stand_in();
    library.latency(Duration::from_micros(300));
    let nic = nic(&library);
    library.set("meet", 2);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for round in 0..20 {
                    let keys = [1, 2, 3].map(|len| register(&nic, len).expect("a key"));
                    for key in keys {
                        nic.deregister(key).expect("the key is live");
                        // Another thread may have got the same address meanwhile, but not the same
                        // key.
                        nic.deregister(key).expect_err("it is deregistered");
                    }
                    assert!(nic.live_keys() <= 24, "{round}");
                }
            });
        }
    });
    assert!(library.get("max_waiting") >= 2, "calls are concurrent");
    assert_eq!((nic.live_keys(), library.calls("ibv_dereg_mr")), (0, 8 * 20 * 3));
    // A key that eight threads deregister is deregistered once.
    let key = register(&nic, 1).expect("a key");
    let successes = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| nic.deregister(key).is_ok())).collect();
        all.into_iter()
            .filter(|_| true)
            .map(|thread| thread.join().expect("no panic"))
            .filter(|won| *won)
            .count()
    });
    assert_eq!(successes, 1);
    drop(nic);
    assert_no_objects(&library);
}

/// Returns whether the loader finds a library.
fn installed(name: &str) -> bool {
    // SAFETY: the code that runs when it is loaded is sound.
    unsafe { libloading::Library::new(name) }.is_ok()
}

#[test]
fn the_real_library_is_usable() {
    if !installed(Verbs::LIBRARY) {
        println!("skipped: there is no {} (Debian: libibverbs1)", Verbs::LIBRARY);
        let error = Verbs::load().expect_err("it is missing");
        assert!(error.reason.starts_with("no library: "), "{error}");
        return;
    }
    let verbs = Verbs::load().expect("all functions exist");
    if Path::new("/sys/class/infiniband").read_dir().is_ok_and(|mut all| all.next().is_some()) {
        println!("there are devices here: {:?}", verbs.devices());
        return;
    }
    for error in [
        verbs.devices().expect_err("no device"),
        verbs.open("mlx5_0").map(drop).expect_err("no device"),
    ] {
        println!("{error}");
        assert!(error.reason.starts_with("no device: "), "{error}");
        assert!(error.to_string().contains("--device=/dev/infiniband"), "{error}");
    }
}

#[test]
fn the_layouts_match_the_header() {
    let header = Path::new("/usr/include/infiniband/verbs.h");
    if !header.exists() {
        println!("skipped: there is no {} (Debian: libibverbs-dev)", header.display());
        return;
    }
    // The assertions of abi.rs, checked for the header's structures.
    let code = r"
        #include <stddef.h>
        #include <infiniband/verbs.h>
        #define AT(type, field, at) _Static_assert(offsetof(struct type, field) == at, #field)
        _Static_assert(sizeof(struct ibv_mr) == 48, `size`);
        _Static_assert(sizeof(struct ibv_device_attr) == 232, `size`);
        AT(ibv_pd, context, 0); AT(ibv_pd, handle, 8);
        AT(ibv_mr, context, 0); AT(ibv_mr, pd, 8); AT(ibv_mr, addr, 16); AT(ibv_mr, length, 24);
        AT(ibv_mr, handle, 32); AT(ibv_mr, lkey, 36); AT(ibv_mr, rkey, 40);
        AT(ibv_device_attr, max_mr_size, 80); AT(ibv_device_attr, max_mr, 136);
        AT(ibv_device_attr, phys_port_cnt, 227);
        _Static_assert(IBV_ACCESS_LOCAL_WRITE == 1 && IBV_ACCESS_REMOTE_WRITE == 2, `flags`);
        _Static_assert(IBV_ACCESS_REMOTE_READ == 4 && IBV_ACCESS_REMOTE_ATOMIC == 8, `flags`);
        _Static_assert(IBV_ACCESS_RELAXED_ORDERING == 1 << 20, `flags`);
        _Static_assert(IBV_ACCESS_OPTIONAL_RANGE == 0x3ff00000, `flags`);
    "
    .replace('`', "\"");
    let file =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("layouts-{}.c", std::process::id()));
    fs::write(&file, code).expect("a folder for tests");
    let output = std::process::Command::new("cc")
        .arg("-fsyntax-only")
        .arg(&file)
        .output()
        .expect("a C compiler");
    fs::remove_file(&file).expect("written just now");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
