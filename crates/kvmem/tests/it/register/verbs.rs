//! The verbs backend over a stand-in that behaves like a driver, and over the real library if it is
//! installed.

use std::ffi::{c_int, c_void};
use std::fs;
use std::path::Path;
use std::ptr::NonNull;

use kvmem::arena::Errno;
use kvmem::register::verbs::{Access, Nic, Verbs};
use kvmem::register::{Key, NotAvailable, RegisterLimit, Registrar, RegistrarError};

use super::contract::{self, Backend, contract, is_loaded};
use crate::standin::StandIn;

impl Backend for Verbs {
    type Device = Nic;
    const SOURCE: &'static str = "ibverbs";
    const NAME: &'static str = "verbs";
    const INSTALL: &'static str = "libibverbs1";
    const FUNCTIONS: &'static [&'static str] = &[
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
    ];
    const CALLS: &'static [(&'static str, u64)] = &[
        ("ibv_get_device_list", u64::MAX),
        ("ibv_open_device", u64::MAX),
        ("ibv_query_device", u64::MAX),
        ("ibv_alloc_pd", u64::MAX),
        ("ibv_reg_mr", u64::MAX),
        ("ibv_dereg_mr", 2),
    ];
    const ERRORS: &'static [(i32, &'static str)] =
        &[(libc::ENOMEM, "ENOMEM"), (libc::EIO, "EIO"), (libc::EACCES, "EACCES")];
    const DEREGISTER: &'static str = "ibv_dereg_mr";
    const LOGS: [&'static [&'static str]; 2] = [
        &[
            "ibv_get_device_list",
            "ibv_open_device",
            "ibv_alloc_pd",
            "ibv_query_device",
            "ibv_free_device_list",
        ],
        &["ibv_dereg_mr", "ibv_dealloc_pd", "ibv_close_device"],
    ];
    const RETAINED: &'static [(&'static str, u64)] =
        &[("live_regions", 1), ("live_domains", 1), ("live_contexts", 1), ("misuse", 0)];

    unsafe fn load(path: &Path) -> Result<Verbs, NotAvailable> {
        // SAFETY: the caller's promise.
        unsafe { Verbs::load_from(path) }
    }

    fn open(&self, number: usize) -> Result<Nic, NotAvailable> {
        self.open(["mlx5_0", "mlx5_1"][number])
    }

    fn live_keys(nic: &Nic) -> u64 {
        nic.live_keys()
    }

    fn assert_no_objects(library: &StandIn) {
        for what in ["live_regions", "live_domains", "live_contexts", "live_lists", "misuse"] {
            assert_eq!(library.get(what), 0, "{what}");
        }
    }
}

contract!(
    Verbs:
    a_failure_of_any_call_leaks_nothing
    keys_that_are_not_live_are_not_passed_on
    a_key_that_cannot_be_deregistered_keeps_its_device
    objects_are_freed_in_reverse_order
    a_library_that_lacks_a_function_is_not_available
    a_file_that_is_no_library_is_not_available
    eight_threads_share_a_device
);

fn load(library: &StandIn) -> Verbs {
    Verbs::loaded(library)
}

fn stand_in() -> StandIn {
    StandIn::new("ibverbs", &[])
}

fn register(nic: &Nic, len: usize) -> Result<Key, RegistrarError> {
    contract::register(nic, 0, len)
}

fn assert_no_objects(library: &StandIn) {
    Verbs::assert_no_objects(library);
}

fn nic(library: &StandIn) -> Nic {
    load(library).open("mlx5_0").expect("the first device")
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
fn the_library_is_unloaded_after_its_last_object() {
    let library = stand_in();
    let path = library.path().to_owned();
    let verbs = load(&library);
    let nic = verbs.open("mlx5_0").expect("a device");
    let key = register(&nic, 1).expect("a key");
    drop((library, verbs));
    assert!(is_loaded(&path));
    nic.deregister(key).expect("the key is live");
    // A stale key whose address is reused does not deregister the new one.
    let again = register(&nic, 1).expect("a key");
    nic.deregister(key).expect_err("deregistered before");
    nic.deregister(again).expect("the key is live");
    drop(nic);
    assert!(!is_loaded(&path));
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
