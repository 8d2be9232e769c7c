//! NIXL's agents over a stand-in that accepts what the real library accepts. `tests/alone` tests
//! the real one.

use std::ffi::{CStr, c_char};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kvmem::arena::{Errno, Ladder, PageSize, Region};
use kvmem::register::nixl::{Agent, Nixl};
use kvmem::register::{
    Key, Limits, NotAvailable, Policy, RegisterError, Registrar, RegistrarError, RegistrationSet,
};

use super::contract::{Backend, PAGE, contract, memory};
use crate::standin::StandIn;

fn stand_in() -> StandIn {
    StandIn::new("nixl", &[])
}

fn load(library: &StandIn) -> Nixl {
    // SAFETY: the stand-in has the types of the header.
    unsafe { Nixl::load_from(library.path()) }.expect("compiled just now")
}

fn agent(library: &StandIn) -> Agent {
    load(library).open("UCX").expect("the default backend")
}

impl Backend for Nixl {
    type Device = Agent;
    const SOURCE: &'static str = "nixl";
    const NAME: &'static str = "nixl";
    const INSTALL: &'static str = "pip install --no-deps nixl-cu12";
    // The others are looked up in the same way; `tests/alone` makes every lookup fail.
    const FUNCTIONS: &'static [&'static str] = &[
        "nixl_capi_create_agent",
        "nixl_capi_destroy_reg_dlist",
        "nixl_capi_deregister_mem",
        "nixl_capi_get_local_md",
    ];
    const CALLS: &'static [(&'static str, u64)] = &[
        ("nixl_capi_create_agent", u64::MAX),
        ("nixl_capi_get_plugin_params", u64::MAX),
        ("nixl_capi_mem_list_size", u64::MAX),
        ("nixl_capi_mem_list_get", u64::MAX),
        ("nixl_capi_params_add", u64::MAX),
        ("nixl_capi_create_backend", u64::MAX),
        ("nixl_capi_create_opt_args", u64::MAX),
        ("nixl_capi_opt_args_add_backend", u64::MAX),
        ("nixl_capi_create_reg_dlist", 6),
        ("nixl_capi_reg_dlist_add_desc", 6),
        ("nixl_capi_register_mem", u64::MAX),
        ("nixl_capi_deregister_mem", 2),
        ("nixl_capi_get_local_md", u64::MAX),
    ];
    const ERRORS: &'static [(i32, &'static str)] =
        &[(-2, "NIXL_CAPI_ERROR_BACKEND"), (-4, "NIXL_CAPI_ERROR_EXCEPTION")];
    const DEREGISTER: &'static str = "nixl_capi_deregister_mem";
    const LOGS: [&'static [&'static str]; 2] = [
        &[
            "nixl_capi_create_agent",
            "nixl_capi_get_plugin_params",
            "nixl_capi_mem_list_size",
            "nixl_capi_mem_list_get",
            "nixl_capi_mem_list_get",
            "nixl_capi_params_add",
            "nixl_capi_create_backend",
            "nixl_capi_create_opt_args",
            "nixl_capi_opt_args_add_backend",
            "nixl_capi_destroy_mem_list",
            "nixl_capi_destroy_params",
        ],
        &[
            "nixl_capi_create_reg_dlist",
            "nixl_capi_reg_dlist_add_desc",
            "nixl_capi_deregister_mem",
            "nixl_capi_destroy_reg_dlist",
            "nixl_capi_destroy_opt_args",
            "nixl_capi_destroy_backend",
            "nixl_capi_destroy_agent",
        ],
    ];
    const RETAINED: &'static [(&'static str, u64)] =
        &[("live_ranges", 1), ("live_objects", 3), ("misuse", 0)];

    unsafe fn load(path: &Path) -> Result<Nixl, NotAvailable> {
        // SAFETY: the caller's promise.
        unsafe { Nixl::load_from(path) }
    }

    fn open(&self, number: usize) -> Result<Agent, NotAvailable> {
        self.agent(["one", "other"][number]).parameter("k", "v").open()
    }

    fn live_keys(agent: &Agent) -> u64 {
        agent.live_keys()
    }

    fn assert_no_objects(library: &StandIn) {
        for what in ["live_ranges", "live_objects", "live_blobs", "misuse"] {
            assert_eq!(library.get(what), 0, "{what}");
        }
    }

    fn use_more(agent: &Agent) -> Result<(), RegistrarError> {
        metadata(agent).map(drop)
    }
}

contract!(
    Nixl:
    a_failure_of_any_call_leaks_nothing
    keys_that_are_not_live_are_not_passed_on
    a_key_that_cannot_be_deregistered_keeps_its_device
    objects_are_freed_in_reverse_order
    a_library_that_lacks_a_function_is_not_available
    a_file_that_is_no_library_is_not_available
);

/// Registers memory of the process.
fn register(agent: &Agent, at: usize, len: usize) -> Result<Key, RegistrarError> {
    assert!(at + len <= 16 * PAGE);
    // SAFETY: within memory that is never unmapped, and nothing writes to it.
    unsafe { agent.register(memory(0).add(at), len) }
}

fn assert_no_objects(library: &StandIn) {
    Nixl::assert_no_objects(library);
}

/// Returns the metadata for peers.
fn metadata(agent: &Agent) -> Result<Vec<u8>, RegistrarError> {
    // SAFETY: there are no peers.
    unsafe { agent.metadata() }
}

/// Returns a string of the stand-in.
fn text(library: &StandIn, function: &str) -> String {
    // SAFETY: the type is the stand-in's, and the string is copied before anything else is called.
    unsafe {
        let text = library.function::<unsafe extern "C" fn() -> *const c_char>(function)();
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

#[test]
fn an_agent_gives_keys_that_are_its_descriptors() {
    let library = stand_in();
    let nixl = load(&library);
    let agent = nixl.open("UCX").expect("the default backend");
    assert_eq!((agent.name(), agent.backend()), ("nixl:UCX", "UCX"));
    assert_eq!(agent.limits(), Limits::none("nixl:UCX"));
    let key = register(&agent, 4096, 8192).expect("a key");
    let at = memory(1).addr().get() as u64;
    assert_eq!(key, Key { handle: at, lkey: 8192, rkey: None });
    assert_eq!((library.get("last_device"), library.get("last_length")), (0, 8192));
    assert_eq!((agent.live_keys(), library.get("live_ranges")), (1, 1));
    // NIXL accepts overlapping ranges.
    let within = register(&agent, 4096, 4096).expect("a part of it");
    agent.deregister(key).expect("the key is live");
    assert_eq!((agent.live_keys(), library.get("live_ranges")), (1, 1));
    agent.deregister(within).expect("the key is live");
    register(&agent, 0, 1).expect("deregistered with its agent");
    drop((nixl, agent));
    assert_no_objects(&library);
}

#[test]
fn agents_have_unique_names() {
    let library = stand_in();
    let nixl = load(&library);
    let agents = [nixl.open("UCX"), nixl.open("UCX")].map(|agent| agent.expect("an agent"));
    assert_ne!(agents[0].agent(), agents[1].agent(), "peers know agents by their names");
    assert_eq!(text(&library, "standin_agent"), agents[1].agent());
    assert!(agents[0].agent().contains(&std::process::id().to_string()), "{}", agents[0].agent());
    let named = nixl.agent("prefill-3").open().expect("an agent");
    assert_eq!((named.name(), named.agent(), named.backend()), ("prefill-3", "prefill-3", "UCX"));
    let named = nixl.agent("decode-1").named("nixl:1").backend("POSIX").open().expect("an agent");
    assert_eq!((named.name(), named.agent(), named.backend()), ("nixl:1", "decode-1", "POSIX"));
    assert_eq!(text(&library, "standin_agent"), "decode-1");
    let made = library.calls("nixl_capi_create_agent");
    let error = nixl.agent("").open().expect_err("no name");
    assert!(error.reason.contains("has no name"), "{error}");
    for wrong in
        [nixl.agent("a\0b"), nixl.agent("a").backend("U\0"), nixl.agent("a").parameter("k", "\0")]
    {
        let error = wrong.open().expect_err("no string for C");
        assert!(error.reason.contains("contains a NUL"), "{error}");
    }
    assert_eq!(library.calls("nixl_capi_create_agent"), made);
}

#[test]
fn metadata_describes_the_registered_memory() {
    let library = stand_in();
    let agent = load(&library).agent("one").open().expect("an agent");
    let text =
        || String::from_utf8(metadata(&agent).expect("bytes")).expect("the stand-in's are text");
    assert_eq!(text(), "one has 0");
    let key = register(&agent, 0, 1).expect("a key");
    assert_eq!(text(), "one has 1");
    agent.deregister(key).expect("the key is live");
    assert_eq!(text(), "one has 0");
    library.fail("nixl_capi_get_local_md", 1, 1, -2);
    let error = metadata(&agent).expect_err("an injected fault");
    assert_eq!((error.call.as_ref(), error.errno), ("nixl_capi_get_local_md", Errno::EIO));
    assert_eq!(error.detail.as_deref(), Some("NIXL_CAPI_ERROR_BACKEND (-2)"));
    assert!(error.to_string().contains("a backend that peers can reach"), "{error}");
    assert_eq!((library.get("live_blobs"), library.calls("nixl_capi_mem_free")), (0, 3));
    // Older libraries allocate it for `free`.
    let library = StandIn::new("nixl", &["nixl_capi_mem_free"]);
    let agent = load(&library).agent("one").open().expect("an agent");
    assert_eq!(metadata(&agent).expect("bytes"), b"one has 0");
}

#[test]
fn parameters_reach_the_backend() {
    let library = stand_in();
    let nixl = load(&library);
    let agent = nixl.agent("one").parameter("num_workers", "2").parameter("device_list", "mlx5_0");
    agent.open().expect("an agent");
    assert_eq!(text(&library, "standin_params"), "num_workers=2;device_list=mlx5_0;");
    let library = StandIn::new("nixl", &["nixl_capi_params_add"]);
    let nixl = load(&library);
    nixl.open("UCX").expect("not needed without parameters");
    let error = nixl
        .agent("one")
        .parameter("num_workers", "2")
        .open()
        .expect_err("parameters are not supported");
    assert!(error.reason.contains("no function nixl_capi_params_add"), "{error}");
    assert_no_objects(&library);
}

#[test]
fn a_range_has_one_key() {
    let library = stand_in();
    let [one, other] = [agent(&library), agent(&library)];
    let key = register(&one, 4096, 4096).expect("a key");
    let error = register(&one, 4096, 4096).expect_err("it has a key");
    assert_eq!((error.call.as_ref(), error.errno), ("nixl_capi_register_mem", Errno::EEXIST));
    assert!(error.to_string().contains("or deregister it first"), "{error}");
    let error = register(&one, 4096, 0).expect_err("no bytes");
    assert_eq!(error.errno, Errno::EINVAL);
    assert_eq!(library.get("registered"), 1, "the library was not called");
    let same = register(&other, 4096, 4096).expect("another agent has its own keys");
    assert_eq!(key, same);
    one.deregister(key).expect("the key is live");
    let error = one.deregister(key).expect_err("it is deregistered");
    assert_eq!((error.call.as_ref(), error.errno), ("nixl_capi_deregister_mem", Errno::ENOENT));
    assert_eq!(other.live_keys(), 1);
    register(&one, 4096, 4096).expect("it is free again");
    drop((one, other));
    assert_no_objects(&library);
}

/// The stand-in's number for a call that succeeds and creates nothing.
const NOTHING: i32 = 1000;

#[test]
fn a_call_that_creates_nothing_is_a_failure() {
    let library = stand_in();
    let nixl = load(&library);
    for call in [
        "nixl_capi_create_agent",
        "nixl_capi_get_plugin_params",
        "nixl_capi_create_backend",
        "nixl_capi_create_opt_args",
        "nixl_capi_create_reg_dlist",
        "nixl_capi_get_local_md",
    ] {
        library.fail(call, 1, 1, NOTHING);
        let text = match nixl.open("UCX") {
            Err(error) => error.to_string(),
            Ok(agent) => {
                let key = register(&agent, 0, 1).and_then(|_| metadata(&agent));
                key.expect_err("no object was created").to_string()
            }
        };
        let said = text.contains(call) && text.contains("success, but no object was created");
        assert!(said, "{text}");
        assert_no_objects(&library);
    }
}

#[test]
fn a_failed_deregistration_says_why() {
    let library = stand_in();
    let agent = agent(&library);
    let key = register(&agent, 0, 1).expect("a key");
    for (status, errno, word) in [
        (-2, Errno::EIO, "standard error"),
        (-10, Errno::EBUSY, "transfers still use it"),
        (-6, Errno::ENOENT, "other code has deregistered it"),
    ] {
        library.fail("nixl_capi_deregister_mem", 1, 1, status);
        let error = agent.deregister(key).expect_err("an injected fault");
        assert_eq!(error.errno, errno);
        assert!(error.remedy.contains(word), "{error}");
    }
}

#[test]
fn an_agent_handles_one_call_at_a_time() {
    let library = stand_in();
    let agent = agent(&library);
    library.latency(Duration::from_micros(300));
    thread::scope(|scope| {
        for worker in 0..4 {
            let (agent, library) = (&agent, &library);
            scope.spawn(move || {
                for at in 0..4 {
                    let key = register(agent, worker * 4096 + at, 1).expect("its own bytes");
                    metadata(agent).expect("bytes");
                    agent.with_raw(|raw, _| {
                        type GetMd =
                            unsafe extern "C" fn(NonNull<u8>, *mut *mut u8, *mut usize) -> i32;
                        let (mut data, mut len) = (std::ptr::null_mut(), 0);
                        // SAFETY: the types are those of the header, and the agent is alive.
                        unsafe {
                            let status = library.function::<GetMd>("nixl_capi_get_local_md")(
                                raw.cast(),
                                &mut data,
                                &mut len,
                            );
                            assert_eq!(status, 0);
                            library.function::<unsafe extern "C" fn(*mut u8)>("nixl_capi_mem_free")(
                                data,
                            );
                        }
                    });
                    agent.deregister(key).expect("the key is live");
                }
            });
        }
    });
    library.latency(Duration::ZERO);
    assert_eq!(agent.live_keys(), 0);
    // A panic of the caller leaves the agent usable.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        agent.with_raw(|_, _| panic!("mine"))
    }));
    panicked.expect_err("an injected panic");
    register(&agent, 0, 1).expect("a key");
    drop(agent);
    assert_no_objects(&library);
}

/// Maps a region of base pages.
fn region(bytes: usize) -> Arc<Region> {
    Arc::new(
        Region::builder(bytes).ladder(Ladder::only(PageSize::Base)).map().expect("a little memory"),
    )
}

#[test]
fn agents_are_planned_registered_and_rolled_back_like_others() {
    const CHUNK: usize = 1 << 20;
    let library = stand_in();
    let nixl = load(&library);
    let agents = ["nixl:0", "nixl:1"].map(|name| {
        let agent = nixl.agent(format!("agent-of-{name}")).named(name).open().expect("an agent");
        Arc::new(agent)
    });
    let region = region(8 * CHUNK);
    let builder = RegistrationSet::builder()
        .registrars(agents.iter().map(|agent| Arc::clone(agent) as Arc<dyn Registrar>))
        .policy(Policy::all_at_once())
        .chunk_bytes(CHUNK as u64);
    let plan = builder.plan(&region).expect("no limit is hit").to_string();
    assert!(plan.contains("8 chunk(s) of up to 1 MiB, each with nixl:0, nixl:1"), "{plan}");
    // The agents share no lock and are called concurrently.
    library.set("meet", 2);
    library.latency(Duration::from_millis(1));
    let mut set = builder.register(Arc::clone(&region)).expect("registered");
    library.latency(Duration::ZERO);
    assert_eq!(library.get("max_waiting"), 2, "{}", set.outcome());
    assert_eq!(set.outcome().threads, 2);
    let key = set.key_for("nixl:1", 3 * CHUNK..3 * CHUNK + 5).expect("within one chunk");
    assert_eq!(key.handle, region.base().addr().get() as u64 + 3 * CHUNK as u64);
    assert_eq!(key.lkey, CHUNK as u64);
    assert_eq!(library.get("live_ranges"), 16);
    // A registered range is not registered again with the same agent.
    let error = builder.register(Arc::clone(&region)).expect_err("it has keys");
    assert!(error.to_string().contains("EEXIST"), "{error}");
    assert_eq!(library.get("live_ranges"), 16, "earlier keys stay");
    set.deregister().expect("every key is deregistered");
    assert_eq!(library.get("live_ranges"), 0);
    for nth in 1..=16 {
        library.fail("nixl_capi_register_mem", nth, 1, -2);
        let error = builder.register(Arc::clone(&region)).expect_err("one call fails");
        let RegisterError::ChunkFailed { error, kept } = &error else { panic!("{error}") };
        assert!(kept.is_empty());
        assert_eq!(error.cause.call, "nixl_capi_register_mem");
        assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
        assert_eq!(library.get("live_ranges"), 0, "call {nth}");
    }
    drop((set, builder, agents));
    assert_no_objects(&library);
}

#[test]
fn backends_are_listed_and_unusable_ones_are_distinguished() {
    let library = stand_in();
    let nixl = load(&library);
    assert_eq!(nixl.backends().expect("a list"), ["GDS", "POSIX", "UCX", "VRAM_ONLY"]);
    assert_no_objects(&library);
    for (backend, word) in [
        ("RDMA", "no backend is called RDMA: there are GDS, POSIX, UCX, VRAM_ONLY"),
        ("GDS", "nixl:GDS: nixl_capi_get_plugin_params: NIXL_CAPI_ERROR_BACKEND (-2)"),
        ("VRAM_ONLY", "nixl:VRAM_ONLY: the backend does not support host memory"),
    ] {
        let error = nixl.open(backend).expect_err("not this one");
        assert_eq!((error.backend.as_ref(), error.reason.as_str()), ("nixl", word));
        assert_no_objects(&library);
    }
    for call in [
        "nixl_capi_create_agent",
        "nixl_capi_get_available_plugins",
        "nixl_capi_string_list_size",
        "nixl_capi_string_list_get",
    ] {
        library.fail(call, 1, 1, -2);
        let error = nixl.backends().expect_err("an injected fault");
        assert!(error.reason.contains(&format!("{call}: NIXL_CAPI_ERROR_BACKEND")), "{error}");
        let word = if call == "nixl_capi_create_agent" { "HOME" } else { "standard error" };
        assert!(error.remedy.contains(word), "{error}");
        assert_no_objects(&library);
    }
    library.fail("nixl_capi_string_list_get", 1, 1, NOTHING);
    let error = nixl.backends().expect_err("a name is missing");
    assert!(error.reason.contains("no object was created"), "{error}");
    assert_no_objects(&library);
}

#[test]
fn a_library_before_1_0_is_not_available() {
    // A macro of this name adds the function that identifies old libraries.
    let library = StandIn::new("nixl", &["OLD"]);
    // SAFETY: the library is not used.
    let error = unsafe { Nixl::load_from(library.path()) }.expect_err("another ABI");
    assert!(error.reason.contains("a NIXL before 1.0"), "{error}");
}
