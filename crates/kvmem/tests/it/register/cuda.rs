//! The CUDA backend over a stand-in that behaves like the driver, and over the real driver if there
//! is a GPU.

use std::path::Path;

use kvmem::arena::{Errno, PageSize, Region};
use kvmem::register::cuda::{Cuda, Gpu, HostFlags};
use kvmem::register::{
    Key, Limits, NotAvailable, Plan, PlanOptions, Policy, RegisterError, RegisterLimit, Registrar,
    RegistrarError, RegistrationSet, plan,
};

use super::contract::{self, Backend, PAGE, contract, memory};
use crate::standin::StandIn;

fn stand_in() -> StandIn {
    StandIn::new("cuda", &[])
}

fn load(library: &StandIn) -> Result<Cuda, NotAvailable> {
    // SAFETY: the stand-in has the types of the driver.
    unsafe { Cuda::load_from(library.path()) }
}

fn gpu(library: &StandIn, ordinal: u32) -> Gpu {
    load(library).expect("compiled just now").open(ordinal).expect("there are two")
}

impl Backend for Cuda {
    type Device = Gpu;
    const SOURCE: &'static str = "cuda";
    const NAME: &'static str = "cuda";
    const INSTALL: &'static str = "--gpus all";
    const FUNCTIONS: &'static [&'static str] = &[
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuMemHostUnregister",
        "cuMemHostGetDevicePointer_v2",
    ];
    // Popping a context reports earlier errors.
    const CALLS: &'static [(&'static str, u64)] = &[
        ("cuDeviceGetCount", u64::MAX),
        ("cuDeviceGet", u64::MAX),
        ("cuDeviceGetName", u64::MAX),
        ("cuDevicePrimaryCtxRetain", u64::MAX),
        ("cuCtxPushCurrent_v2", 6),
        ("cuCtxPopCurrent_v2", 0),
        ("cuMemHostRegister_v2", u64::MAX),
        ("cuMemHostGetDevicePointer_v2", u64::MAX),
        ("cuMemHostUnregister", 2),
        ("cuDevicePrimaryCtxRelease_v2", 0),
    ];
    const ERRORS: &'static [(i32, &'static str)] = &[(999, "(999)")];
    const DEREGISTER: &'static str = "cuMemHostUnregister";
    const LOGS: [&'static [&'static str]; 2] = [
        &[
            "cuInit",
            "cuDeviceGetCount",
            "cuDeviceGet",
            "cuDeviceGetName",
            "cuDevicePrimaryCtxRetain",
        ],
        &[
            "cuCtxPushCurrent_v2",
            "cuMemHostUnregister",
            "cuCtxPopCurrent_v2",
            "cuDevicePrimaryCtxRelease_v2",
        ],
    ];
    const RETAINED: &'static [(&'static str, u64)] =
        &[("live_ranges", 1), ("retained", 2), ("released", 1), ("pushed", 0)];

    unsafe fn load(path: &Path) -> Result<Cuda, NotAvailable> {
        // SAFETY: the caller's promise.
        unsafe { Cuda::load_from(path) }
    }

    fn open(&self, number: usize) -> Result<Gpu, NotAvailable> {
        self.open(number as u32)
    }

    fn live_keys(gpu: &Gpu) -> u64 {
        gpu.live_keys()
    }

    fn assert_no_objects(library: &StandIn) {
        for what in ["live_ranges", "pushed", "misuse"] {
            assert_eq!(library.get(what), 0, "{what}");
        }
        assert_eq!((library.get("retained"), depth(library)), (library.get("released"), 0));
    }
}

contract!(
    Cuda:
    a_failure_of_any_call_leaks_nothing
    keys_that_are_not_live_are_not_passed_on
    a_key_that_cannot_be_deregistered_keeps_its_device
    objects_are_freed_in_reverse_order
    a_library_that_lacks_a_function_is_not_available
    a_file_that_is_no_library_is_not_available
    eight_threads_share_a_device
);

/// Registers `pages` pages from `page` on.
fn register(gpu: &Gpu, page: usize, pages: usize) -> Result<Key, RegistrarError> {
    contract::register(gpu, page, pages * PAGE)
}

fn assert_no_objects(library: &StandIn) {
    Cuda::assert_no_objects(library);
}

/// Returns the number of contexts on this thread's stack.
fn depth(library: &StandIn) -> u64 {
    // SAFETY: the type is that of cuda.c.
    unsafe { library.function::<unsafe extern "C" fn() -> u64>("standin_depth")() }
}

#[test]
fn gpus_are_listed_and_issue_keys() {
    let library = stand_in();
    let cuda = load(&library).expect("compiled just now");
    assert_eq!(cuda.devices().expect("two"), ["Stand-in 0", "Stand-in 1"]);
    let gpus = [0, 1].map(|ordinal| cuda.open(ordinal).expect("there are two"));
    assert_eq!(
        (gpus[1].name(), gpus[1].model(), gpus[0].name()),
        ("cuda:1", "Stand-in 1", "cuda:0")
    );
    let limits = gpus[1].limits();
    assert_eq!(
        (limits.device.as_str(), limits.max_bytes, limits.max_keys),
        ("cuda:1", max_bytes(), u64::MAX)
    );
    assert_eq!(limits.preferred_chunk_bytes, Some(1 << 30));
    assert_eq!(limits.memlock, None);
    let keys = [register(&gpus[0], 0, 2), register(&gpus[1], 2, 1), register(&gpus[1], 3, 1)];
    let keys = keys.map(|key| key.expect("their own pages"));
    for (key, page) in keys.iter().zip([0, 2, 3]) {
        let at = memory(page).addr().get() as u64;
        assert_eq!((key.handle, key.lkey, key.rkey), (at, at | 1 << 63, None));
    }
    // Each call used its own GPU's context, and none is left on the stack.
    assert_eq!([0, 1, 2].map(|nth| library.get_at("context", nth)), [0, 1, 1]);
    assert_eq!(depth(&library), 0);
    gpus[1].deregister(keys[1]).expect("the key is live");
    assert_eq!((gpus[0].live_keys(), gpus[1].live_keys(), library.get("live_ranges")), (1, 1, 2));
    // Dropping the GPUs deregisters the rest.
    drop((cuda, gpus));
    assert_no_objects(&library);
}

#[test]
fn flags_are_exactly_as_requested() {
    let library = stand_in();
    let plain = gpu(&library, 0);
    assert_eq!(plain.flags(), HostFlags::PORTABLE | HostFlags::DEVICE_MAP);
    register(&plain, 0, 1).expect("a key");
    assert_eq!(library.get_at("flags", 0), 3);
    drop(plain);
    for bits in 0..16u64 {
        let all = [
            HostFlags::PORTABLE,
            HostFlags::DEVICE_MAP,
            HostFlags::IO_MEMORY,
            HostFlags::READ_ONLY,
        ];
        let some = all.into_iter().enumerate().filter(|(at, _)| bits & 1 << at != 0);
        let flags = some.fold(HostFlags::NONE, |flags, (_, flag)| flags | flag);
        let gpu = gpu(&library, 1).with_flags(flags);
        let key = register(&gpu, 0, 1).expect("a key");
        assert_eq!(library.get_at("flags", library.get("registered") - 1), bits);
        assert_eq!(key.lkey != 0, flags.contains(HostFlags::DEVICE_MAP), "{flags}");
    }
    assert_no_objects(&library);
}

#[test]
fn a_range_is_registered_once() {
    let library = stand_in();
    let [one, other] = [0, 1].map(|ordinal| gpu(&library, ordinal));
    let key = register(&one, 2, 2).expect("a key");
    for (gpu, page, pages) in [(&one, 2, 2), (&other, 2, 2), (&other, 0, 3), (&other, 3, 4)] {
        let error = register(gpu, page, pages).expect_err("a part of it is registered");
        assert_eq!((error.call.as_ref(), error.errno), ("cuMemHostRegister_v2", Errno::EEXIST));
        assert_eq!(
            error.detail.as_deref(),
            Some("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED (712)")
        );
        assert!(error.to_string().contains("register it with one GPU only"), "{error}");
    }
    one.deregister(key).expect("the key is live");
    register(&other, 2, 2).expect("now it is free");
    drop((one, other));
    assert_no_objects(&library);
}

#[test]
fn a_range_above_the_limit_fails_without_a_call() {
    let library = stand_in();
    let gpu = gpu(&library, 0);
    // Only addresses; nothing is written to them.
    let page = PageSize::Base;
    let limit_bytes = max_bytes();
    let max = usize::try_from(limit_bytes).expect("64 bits");
    let region = Region::builder(max + 1).ladder(page).map().expect("addresses are plenty");
    // SAFETY: the memory is mapped until the end of this test.
    let error = unsafe { gpu.register(region.base(), max + 1) }.expect_err("too long");
    let exceeded = RegisterLimit::KeyBytes { limit_bytes, need_bytes: limit_bytes + 1 };
    assert_eq!(error.exceeded, Some(exceeded));
    assert_eq!(library.get("registered"), 0);
    // SAFETY: the memory is mapped until the end of this test.
    let key = unsafe { gpu.register(region.base(), max) }.expect("exactly the limit");
    gpu.deregister(key).expect("the key is live");
}

/// Only the owner of a layout knows where an edge cuts no value.
#[test]
fn a_region_has_one_key_unless_its_owner_sets_the_pieces() {
    let library = stand_in();
    let gpu = gpu(&library, 0);
    let limits = gpu.limits();
    assert!(limits.copies_by_address);
    // Only addresses; nothing is written to them.
    let page = PageSize::Base;
    let region = Region::builder(5 << 29).ladder(page).map().expect("addresses are plenty");
    let planned = |limits: &[Limits], chunk_bytes| {
        let options = PlanOptions { chunk_bytes, ..PlanOptions::new(Policy::Sequential, 1) };
        plan(region.receipt(), limits, &options)
    };
    let lens = |plan: &Plan, device: usize| -> Vec<usize> {
        plan.devices[device].chunks.iter().map(|chunk| chunk.len()).collect()
    };
    let unlimited = Limits { max_bytes: 256 << 30, ..limits };
    let whole = planned(std::slice::from_ref(&unlimited), None).expect("one key");
    assert_eq!((lens(&whole, 0), whole.boundary_bytes), (vec![5 << 29], None));
    // A ring beside it has pieces of its own.
    let preferred_chunk_bytes = Some(256 << 20);
    let ring = Limits { max_bytes: 1 << 30, preferred_chunk_bytes, ..Limits::none("ring") };
    let both = planned(&[ring, unlimited.clone()], None).expect("keys are plenty");
    assert_eq!((lens(&both, 0).len(), lens(&both, 1)), (10, vec![5 << 29]));
    // A requested length counts.
    let pieces = planned(std::slice::from_ref(&unlimited), Some(1 << 30)).expect("three keys");
    assert_eq!(lens(&pieces, 0), [1 << 30, 1 << 30, 1 << 29]);
    assert_eq!(pieces.boundary_bytes, Some(1 << 30));
    // Where a key covers less, no edge comes in where none is expected.
    let short = Limits { max_bytes: 1 << 30, ..unlimited };
    for (chunk_bytes, need_bytes) in [(None, 5 << 29), (Some(2 << 30), 2 << 30)] {
        let error = planned(std::slice::from_ref(&short), chunk_bytes).expect_err("too long");
        let exceeded = RegisterLimit::KeyBytes { limit_bytes: 1 << 30, need_bytes };
        let text = error.to_string();
        assert_eq!(error, RegisterError::Limited { device: "cuda:0".to_owned(), exceeded });
        assert!(text.contains("transfer no range that lies in two of them"), "{text}");
    }
    assert!(planned(std::slice::from_ref(&short), Some(1 << 30)).is_ok());
}

/// A copy by the stand-in, between memory of the host and another place.
type Copy = unsafe extern "C" fn(*mut u8, *const u8, usize) -> i32;

#[test]
fn a_copy_lies_in_one_piece_or_in_none() {
    let library = stand_in();
    let gpu = gpu(&library, 0);
    let keys = [register(&gpu, 2, 2), register(&gpu, 4, 2)].map(|key| key.expect("a key"));
    // SAFETY: the type is that of cuda.c; a context is current while the copies are made.
    let push = unsafe {
        library
            .function::<unsafe extern "C" fn(*mut std::ffi::c_void) -> i32>("cuCtxPushCurrent_v2")
    };
    // SAFETY: the stand-in keeps the address alone.
    assert_eq!(unsafe { push(std::ptr::from_ref(&library).cast_mut().cast()) }, 0);
    let mut other = vec![0; 8 * PAGE];
    let mut copy = |page: usize, bytes: usize| {
        let from = memory(page).as_ptr().cast_const();
        ["cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpy", "cuMemcpyAsync"].map(|name| {
            // SAFETY: the types are those of cuda.c, where the stream is one more word that is not
            // read, and both places have that many bytes.
            unsafe { library.function::<Copy>(name)(other.as_mut_ptr(), from, bytes) }
        })
    };
    for (page, bytes) in [(2, 2 * PAGE), (4, 1), (5, PAGE), (0, 2 * PAGE), (6, PAGE)] {
        assert_eq!(copy(page, bytes), [0; 4], "{page} {bytes}");
    }
    let crossing = [(3, 2 * PAGE), (2, 2 * PAGE + 1), (1, PAGE + 1), (5, 2 * PAGE), (1, 7 * PAGE)];
    for (page, bytes) in crossing {
        assert_eq!(copy(page, bytes), [1; 4], "{page} {bytes}");
    }
    assert_eq!((library.get("copied"), library.get("crossed")), (20, 20));
    keys.into_iter().for_each(|key| gpu.deregister(key).expect("the key is live"));
    assert_eq!(copy(3, 2 * PAGE), [0; 4]);
}

#[test]
fn a_range_of_two_pieces_has_no_key() {
    let library = stand_in();
    let set = RegistrationSet::builder()
        .registrar(gpu(&library, 0))
        .chunk_bytes(2 * PAGE as u64)
        .register(Region::builder(8 * PAGE).ladder(PageSize::Base).map().expect("eight pages"))
        .expect("four pieces");
    assert!(set.key_for("cuda:0", 2 * PAGE..4 * PAGE).is_ok());
    let error = set.key_for("cuda:0", PAGE..3 * PAGE).expect_err("it lies in two pieces");
    let text = error.to_string();
    let (start, end, edge) = (PAGE, 3 * PAGE, 2 * PAGE);
    assert_eq!(error, RegisterError::Straddles { device: "cuda:0".to_owned(), start, end, edge });
    assert!(text.contains("4096..12288") && text.contains("cuda:0 at 8192: split"), "{text}");
}

/// Returns the largest number of bytes per key on the kernel that runs the test.
fn max_bytes() -> u64 {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let affected = ["6.11.", "6.12.", "6.13."].iter().any(|begin| release.starts_with(begin));
    if affected { 1 << 30 } else { 256 << 30 }
}

#[test]
fn the_older_function_is_used_if_the_newer_one_is_missing() {
    let library = StandIn::new("cuda", &["cuMemHostRegister_v2"]);
    let gpu = gpu(&library, 0);
    register(&gpu, 0, 1).expect("a key");
    assert_eq!(library.calls("cuMemHostRegister"), 1);
    library.fail("cuMemHostRegister", 1, 1, 2);
    assert_eq!(register(&gpu, 1, 1).expect_err("an injected fault").call, "cuMemHostRegister");
}

#[test]
fn errors_without_names_have_numbers() {
    let unnamed = StandIn::new("cuda", &["cuGetErrorName"]);
    for (library, number) in [(stand_in(), 4242), (unnamed, 2)] {
        let gpu = gpu(&library, 0);
        library.fail("cuMemHostRegister_v2", 1, 1, number);
        let error = register(&gpu, 0, 1).expect_err("an injected fault");
        assert_eq!(error.detail, Some(format!("an error without a name ({number})")));
    }
}

#[test]
fn one_of_two_names_of_a_function_suffices() {
    for names in [
        ["cuMemHostRegister_v2", "cuMemHostRegister"],
        ["cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease"],
    ] {
        let error = load(&StandIn::new("cuda", &names)).expect_err("both are missing");
        assert!(error.reason.contains(&format!("{}:", names[1])), "{error}");
    }
}

#[test]
fn missing_driver_and_gpu_are_distinguished() {
    let library = stand_in();
    for (number, reason, remedy) in [
        (999, "no driver: cuInit: CUDA_ERROR_UNKNOWN (999)", "kernel module"),
        (803, "no driver: cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "different versions"),
        (34, "no driver: cuInit: CUDA_ERROR_STUB_LIBRARY (34)", "stubs"),
        (802, "no driver: cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)", "fabric manager"),
        (3, "no driver: cuInit: CUDA_ERROR_NOT_INITIALIZED (3)", "child process"),
        (100, "no GPU: cuInit: CUDA_ERROR_NO_DEVICE (100)", "CUDA_VISIBLE_DEVICES"),
    ] {
        library.fail("cuInit", 1, 1, number);
        let error = load(&library).expect_err("not started");
        assert_eq!(error.reason, reason);
        assert!(error.remedy.contains(remedy), "{error}");
    }
    let cuda = load(&library).expect("now it starts");
    library.set("devices", 0);
    for error in [cuda.devices().expect_err("none"), cuda.open(0).map(drop).expect_err("none")] {
        assert!(error.reason.starts_with("no GPU: the driver finds none"), "{error}");
    }
    library.set("devices", 2);
    for ordinal in [2, u32::MAX] {
        let error = cuda.open(ordinal).expect_err("there are two");
        assert!(
            error.reason.contains(&format!("no cuda:{ordinal}: there are cuda:0 to cuda:1")),
            "{error}"
        );
    }
    for (call, number, reason, remedy) in [
        (
            "cuDeviceGetCount",
            100,
            "no GPU: cuDeviceGetCount: CUDA_ERROR_NO_DEVICE (100)",
            "CUDA_VISIBLE_DEVICES",
        ),
        ("cuDeviceGet", 101, "cuda:1: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101)", "that exists"),
        (
            "cuDeviceGetName",
            1,
            "cuda:1: cuDeviceGetName: CUDA_ERROR_INVALID_VALUE (1)",
            "nvidia-smi",
        ),
        (
            "cuDevicePrimaryCtxRetain",
            2,
            "cuda:1: cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (2)",
            "memory",
        ),
        (
            "cuDevicePrimaryCtxRetain",
            46,
            "cuda:1: cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE (46)",
            "mode",
        ),
    ] {
        library.fail(call, 1, 1, number);
        let error = cuda.open(1).expect_err("an injected fault");
        assert_eq!(error.reason, reason);
        assert!(error.remedy.contains(remedy), "{error}");
    }
    assert_no_objects(&library);
}

#[test]
fn failures_say_what_to_do() {
    let library = stand_in();
    let gpu = gpu(&library, 0);
    for (number, errno, remedy) in [
        (1, Errno::EINVAL, "that is mapped"),
        (2, Errno::ENOMEM, "register less"),
        (3, Errno::ENODEV, "child"),
        (304, Errno::EIO, "dmesg"),
        (800, Errno::EPERM, "io_memory"),
        (801, Errno::EOPNOTSUPP, "omit read_only"),
        (802, Errno::EAGAIN, "nvidia-smi"),
        (999, Errno::EIO, "nvidia-smi"),
    ] {
        library.fail("cuMemHostRegister_v2", 1, 1, number);
        let error = register(&gpu, 0, 1).expect_err("an injected fault");
        assert_eq!(error.errno, errno, "{error}");
        assert!(
            error.detail.as_deref().is_some_and(|text| text.ends_with(&format!("({number})"))),
            "{error}"
        );
        assert!(error.to_string().contains(remedy), "{error}");
    }
}

#[test]
fn the_real_driver_registers_memory() {
    let gpu = match Cuda::load().and_then(|cuda| cuda.open(0)) {
        Ok(gpu) => gpu,
        Err(error) => {
            println!("skipped: {error}");
            let text = ["no library: ", "no driver: ", "no GPU: ", "cuda:0: "];
            assert!(text.iter().any(|start| error.reason.starts_with(start)), "{error}");
            return;
        }
    };
    println!("{} is a {}", gpu.name(), gpu.model());
    let region = Region::builder(8 << 20).ladder(PageSize::Base).map().expect("little memory");
    let half = 4 << 20;
    // SAFETY: two halves of the region, which is mapped until the end of this test.
    let keys =
        [0, half].map(|at| unsafe { gpu.register(region.base().add(at), half) }.expect("pinned"));
    assert!(keys.iter().all(|key| key.lkey != 0 && key.rkey.is_none()));
    // SAFETY: the region is mapped until the end of this test.
    let error = unsafe { gpu.register(region.base(), half) }.expect_err("registered already");
    assert_eq!(error.errno, Errno::EEXIST, "{error}");
    for key in keys {
        gpu.deregister(key).expect("the key is live");
        gpu.deregister(key).expect_err("it is gone");
    }
    // SAFETY: the region is mapped until the end of this test.
    let key = unsafe { gpu.register(region.base(), 2 * half) }.expect("free again");
    gpu.deregister(key).expect("the key is live");
}
