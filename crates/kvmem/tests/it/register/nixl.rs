//! NIXL's agents over a stand-in that takes what the real library takes. The real one is met in
//! `tests/alone`.

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

use crate::standin::StandIn;

fn stand_in() -> StandIn {
    StandIn::new("nixl", &[])
}

fn load(library: &StandIn) -> Nixl {
    // SAFETY: the stand-in has the types of the header.
    unsafe { Nixl::load_from(library.path()) }.expect("compiled just now")
}

fn agent(library: &StandIn) -> Agent {
    load(library).open("UCX").expect("the usual backend")
}

static MEMORY: [u8; 64 << 10] = [0; 64 << 10];

/// Memory that lives as long as the process, from an offset on.
fn memory(at: usize) -> NonNull<u8> {
    NonNull::from(&MEMORY[at..]).cast()
}

/// Registers memory that is there.
fn register(agent: &Agent, at: usize, len: usize) -> Result<Key, RegistrarError> {
    assert!(at + len <= MEMORY.len());
    // SAFETY: the memory stays, and nothing writes to it.
    unsafe { agent.register(memory(at), len) }
}

/// What peers would get.
fn metadata(agent: &Agent) -> Result<Vec<u8>, RegistrarError> {
    // SAFETY: there are none.
    unsafe { agent.metadata() }
}

fn assert_nothing_lives(library: &StandIn) {
    for what in ["live_ranges", "live_objects", "live_blobs", "misuse"] {
        assert_eq!(library.get(what), 0, "{what}");
    }
}

/// A string that the stand-in keeps.
fn told(library: &StandIn, function: &str) -> String {
    // SAFETY: the type is the stand-in's, and the string is copied before anything else is called.
    unsafe {
        let told = library.function::<unsafe extern "C" fn() -> *const c_char>(function)();
        CStr::from_ptr(told).to_string_lossy().into_owned()
    }
}

#[test]
fn an_agent_gives_keys_that_are_its_descriptors() {
    let library = stand_in();
    let nixl = load(&library);
    let agent = nixl.open("UCX").expect("the usual backend");
    assert_eq!((agent.name(), agent.backend()), ("nixl:UCX", "UCX"));
    assert_eq!(agent.limits(), Limits::none("nixl:UCX"));
    let key = register(&agent, 4096, 8192).expect("a key");
    let at = memory(4096).addr().get() as u64;
    assert_eq!(key, Key { handle: at, lkey: 8192, rkey: None });
    assert_eq!((library.get("last_device"), library.get("last_length")), (0, 8192));
    assert_eq!((agent.live_keys(), library.get("live_ranges")), (1, 1));
    // Overlapping ranges are NIXL's to take.
    let within = register(&agent, 4096, 4096).expect("a part of it");
    agent.deregister(key).expect("it stands");
    assert_eq!((agent.live_keys(), library.get("live_ranges")), (1, 1));
    agent.deregister(within).expect("it stands");
    register(&agent, 0, 1).expect("one that goes with its agent");
    drop((nixl, agent));
    assert_nothing_lives(&library);
}

#[test]
fn agents_have_names_of_their_own() {
    let library = stand_in();
    let nixl = load(&library);
    let agents = [nixl.open("UCX"), nixl.open("UCX")].map(|agent| agent.expect("an agent"));
    assert_ne!(agents[0].agent(), agents[1].agent(), "peers know them by that");
    assert_eq!(told(&library, "standin_agent"), agents[1].agent());
    assert!(agents[0].agent().contains(&std::process::id().to_string()), "{}", agents[0].agent());
    let named = nixl.agent("prefill-3").open().expect("an agent");
    assert_eq!((named.name(), named.agent(), named.backend()), ("prefill-3", "prefill-3", "UCX"));
    let named = nixl.agent("decode-1").named("nixl:1").backend("POSIX").open().expect("an agent");
    assert_eq!((named.name(), named.agent(), named.backend()), ("nixl:1", "decode-1", "POSIX"));
    assert_eq!(told(&library, "standin_agent"), "decode-1");
    let made = library.calls("nixl_capi_create_agent");
    let error = nixl.agent("").open().expect_err("no name");
    assert!(error.reason.contains("without a name"), "{error}");
    for wrong in
        [nixl.agent("a\0b"), nixl.agent("a").backend("U\0"), nixl.agent("a").parameter("k", "\0")]
    {
        let error = wrong.open().expect_err("no string for C");
        assert!(error.reason.contains("has a zero in it"), "{error}");
    }
    assert_eq!(library.calls("nixl_capi_create_agent"), made);
}

#[test]
fn metadata_is_of_what_is_registered_now() {
    let library = stand_in();
    let agent = load(&library).agent("one").open().expect("an agent");
    let told =
        || String::from_utf8(metadata(&agent).expect("bytes")).expect("the stand-in's are text");
    assert_eq!(told(), "one has 0");
    let key = register(&agent, 0, 1).expect("a key");
    assert_eq!(told(), "one has 1");
    agent.deregister(key).expect("it stands");
    assert_eq!(told(), "one has 0");
    library.fail("nixl_capi_get_local_md", 1, 1, -2);
    let refused = metadata(&agent).expect_err("refused");
    assert_eq!((refused.call.as_ref(), refused.errno), ("nixl_capi_get_local_md", Errno::EIO));
    assert_eq!(refused.detail.as_deref(), Some("NIXL_CAPI_ERROR_BACKEND (-2)"));
    assert!(refused.to_string().contains("one that peers can reach"), "{refused}");
    assert_eq!((library.get("live_blobs"), library.calls("nixl_capi_mem_free")), (0, 3));
    // Older libraries give what `free` takes.
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
    assert_eq!(told(&library, "standin_params"), "num_workers=2;device_list=mlx5_0;");
    let library = StandIn::new("nixl", &["nixl_capi_params_add"]);
    let nixl = load(&library);
    nixl.open("UCX").expect("without parameters it is not missed");
    let error =
        nixl.agent("one").parameter("num_workers", "2").open().expect_err("it cannot be told");
    assert!(error.reason.contains("no function nixl_capi_params_add"), "{error}");
    assert_nothing_lives(&library);
}

#[test]
fn a_range_has_one_key() {
    let library = stand_in();
    let [one, other] = [agent(&library), agent(&library)];
    let key = register(&one, 4096, 4096).expect("a key");
    let refused = register(&one, 4096, 4096).expect_err("it has a key");
    assert_eq!((refused.call.as_ref(), refused.errno), ("nixl_capi_register_mem", Errno::EEXIST));
    assert!(refused.to_string().contains("give it back before"), "{refused}");
    let refused = register(&one, 4096, 0).expect_err("no bytes");
    assert_eq!(refused.errno, Errno::EINVAL);
    assert_eq!(library.get("registered"), 1, "the library was not asked");
    let same = register(&other, 4096, 4096).expect("another agent has books of its own");
    assert_eq!(key, same);
    one.deregister(key).expect("it stands");
    let refused = one.deregister(key).expect_err("it was given back");
    assert_eq!((refused.call.as_ref(), refused.errno), ("nixl_capi_deregister_mem", Errno::ENOENT));
    assert_eq!(other.live_keys(), 1);
    register(&one, 4096, 4096).expect("it is free again");
    drop((one, other));
    assert_nothing_lives(&library);
}

#[test]
fn keys_that_are_not_live_are_not_passed_on() {
    let library = stand_in();
    let [one, other] = [agent(&library), agent(&library)];
    let key = register(&one, 0, 64).expect("a key");
    let foreign = register(&other, 128, 64).expect("a key");
    let requested = library.calls("nixl_capi_deregister_mem");
    let forged =
        [Key { lkey: 63, ..key }, Key { rkey: Some(0), ..key }, Key { handle: 0, ..key }, foreign];
    for wrong in forged {
        let refused = one.deregister(wrong).expect_err("not live");
        assert_eq!(refused.errno, Errno::ENOENT);
        assert!(refused.to_string().contains("give back a key once"), "{refused}");
    }
    assert_eq!(library.calls("nixl_capi_deregister_mem"), requested, "the library was asked");
    // The default: one after the other, each with its own answer.
    let answers = one.deregister_all(&[foreign, key, key]);
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, false]);
}

/// All functions that can fail on the way from an agent to a key and back.
const CALLS: [&str; 13] = [
    "nixl_capi_create_agent",
    "nixl_capi_get_plugin_params",
    "nixl_capi_mem_list_size",
    "nixl_capi_mem_list_get",
    "nixl_capi_params_add",
    "nixl_capi_create_backend",
    "nixl_capi_create_opt_args",
    "nixl_capi_opt_args_add_backend",
    "nixl_capi_create_reg_dlist",
    "nixl_capi_reg_dlist_add_desc",
    "nixl_capi_register_mem",
    "nixl_capi_deregister_mem",
    "nixl_capi_get_local_md",
];

/// The stand-in's number for a call that succeeds and makes nothing.
const NOTHING: i32 = 1000;

#[test]
fn a_failure_at_any_call_leaves_nothing_alive() {
    let library = stand_in();
    let nixl = load(&library);
    let scenario = || -> Result<(), String> {
        let unavailable = |error: NotAvailable| error.to_string();
        let refused = |error: RegistrarError| error.to_string();
        let agents = [
            nixl.agent("one").parameter("k", "v").open().map_err(unavailable)?,
            nixl.agent("other").parameter("k", "v").open().map_err(unavailable)?,
        ];
        let mut keys = Vec::new();
        for (at, agent) in agents.iter().cycle().take(4).enumerate() {
            keys.push((agent, register(agent, at * 4096, 4096).map_err(refused)?));
        }
        for (agent, key) in keys.drain(..2) {
            metadata(agent).map_err(refused)?;
            agent.deregister(key).map_err(refused)?;
        }
        // The other two go with their agents.
        Ok(())
    };
    scenario().expect("no fault yet");
    for call in CALLS {
        for (status, word) in [(-2, "NIXL_CAPI_ERROR_BACKEND"), (-4, "NIXL_CAPI_ERROR_EXCEPTION")] {
            let mut failures = 0;
            for nth in 1.. {
                let before = library.calls(call);
                library.fail(call, nth, 1, status);
                let result = scenario();
                let due = library.calls(call) - before >= nth;
                library.fail(call, 1, 0, 0);
                assert_nothing_lives(&library);
                match result {
                    Err(error) => {
                        assert!(due && error.contains(call) && error.contains(word), "{error}");
                        failures += 1;
                    }
                    // When an agent goes, what is left is given back again and again.
                    Ok(()) if due && nth > 2 && giving_back(call) => {}
                    Ok(()) => {
                        assert!(!due, "{call} failed and nobody said so");
                        break;
                    }
                }
            }
            assert!(failures >= 2, "{call}");
        }
    }
    for call in [
        "nixl_capi_create_agent",
        "nixl_capi_get_plugin_params",
        "nixl_capi_create_backend",
        "nixl_capi_create_opt_args",
        "nixl_capi_create_reg_dlist",
        "nixl_capi_get_local_md",
    ] {
        library.fail(call, 1, 1, NOTHING);
        let error = scenario().expect_err("nothing was made");
        assert!(error.contains(call) && error.contains("success, and nothing was made"), "{error}");
        assert_nothing_lives(&library);
    }
}

/// Whether a call has part in giving back what is left when an agent goes.
fn giving_back(call: &str) -> bool {
    ["nixl_capi_deregister_mem", "nixl_capi_create_reg_dlist", "nixl_capi_reg_dlist_add_desc"]
        .contains(&call)
}

#[test]
fn what_cannot_be_given_back_keeps_its_agent() {
    let library = stand_in();
    let agent = agent(&library);
    let keys = [1, 2].map(|len| register(&agent, 0, len).expect("two keys"));
    for (status, errno, word) in [
        (-2, Errno::EIO, "standard error"),
        (-10, Errno::EBUSY, "transfers still use it"),
        (-6, Errno::ENOENT, "somebody else has given it back"),
    ] {
        library.fail("nixl_capi_deregister_mem", 1, 1, status);
        let refused = agent.deregister(keys[0]).expect_err("refused");
        assert_eq!((refused.call.as_ref(), refused.errno), ("nixl_capi_deregister_mem", errno));
        assert!(refused.remedy.contains(word), "{refused}");
        assert_eq!(agent.live_keys(), 2, "it stands");
    }
    agent.deregister(keys[0]).expect("now it goes");
    library.fail("nixl_capi_deregister_mem", 1, u64::MAX, -2);
    library.log();
    drop(agent);
    let log = library.log();
    assert_eq!(
        log.iter().filter(|call| *call == "nixl_capi_deregister_mem").count(),
        3,
        "three times"
    );
    assert!(!log.iter().any(|call| call.starts_with("nixl_capi_destroy_agent")), "{log:?}");
    // Agent, backend and arguments; the lists of descriptors are gone.
    assert_eq!(
        (library.get("live_ranges"), library.get("live_objects"), library.get("misuse")),
        (1, 3, 0)
    );
}

#[test]
fn things_go_in_the_order_opposite_to_that_in_which_they_came() {
    let library = stand_in();
    let nixl = load(&library);
    let agent = nixl.open("UCX").expect("an agent");
    // The handle on the library may go before.
    drop(nixl);
    let made = library.log();
    let order = ["create_agent", "create_backend", "create_opt_args"].map(|call| {
        made.iter()
            .position(|made| *made == format!("nixl_capi_{call}"))
            .unwrap_or_else(|| panic!("{made:?}"))
    });
    assert!(order.is_sorted(), "{made:?}");
    register(&agent, 0, 1).expect("a key");
    library.log();
    drop(agent);
    let gone = library.log();
    let expected = [
        "deregister_mem",
        "destroy_reg_dlist",
        "destroy_opt_args",
        "destroy_backend",
        "destroy_agent",
    ];
    let expected = expected.map(|call| format!("nixl_capi_{call}"));
    assert_eq!(gone[gone.len() - expected.len()..], expected);
    assert_nothing_lives(&library);
}

#[test]
fn an_agent_takes_one_call_at_a_time() {
    let library = stand_in();
    let agent = agent(&library);
    library.latency(Duration::from_micros(300));
    thread::scope(|scope| {
        for worker in 0..4 {
            let (agent, library) = (&agent, &library);
            scope.spawn(move || {
                for at in 0..4 {
                    let key = register(agent, worker * 4096 + at, 1).expect("bytes of its own");
                    metadata(agent).expect("bytes");
                    agent.with_raw(|raw, _| {
                        type GetMd =
                            unsafe extern "C" fn(NonNull<u8>, *mut *mut u8, *mut usize) -> i32;
                        let (mut data, mut len) = (std::ptr::null_mut(), 0);
                        // SAFETY: the types are those of the header, and the agent lives.
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
                    agent.deregister(key).expect("it stands");
                }
            });
        }
    });
    library.latency(Duration::ZERO);
    assert_eq!(agent.live_keys(), 0);
    // A panic of the caller's leaves the agent usable.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        agent.with_raw(|_, _| panic!("mine"))
    }));
    panicked.expect_err("it was told");
    register(&agent, 0, 1).expect("a key");
    drop(agent);
    assert_nothing_lives(&library);
}

/// A region of base pages.
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
    // Side by side: the agents share nothing.
    library.latency(Duration::from_millis(2));
    let mut set = builder.register(Arc::clone(&region)).expect("registered");
    library.latency(Duration::ZERO);
    assert_eq!(library.get("most_waiting"), 2, "{}", set.outcome());
    assert_eq!(set.outcome().threads, 2);
    let key = set.key_for("nixl:1", 3 * CHUNK..3 * CHUNK + 5).expect("one chunk's");
    assert_eq!(key.handle, region.base().addr().get() as u64 + 3 * CHUNK as u64);
    assert_eq!(key.lkey, CHUNK as u64);
    assert_eq!(library.get("live_ranges"), 16);
    // What stands is not registered again with the same agent.
    let error = builder.register(Arc::clone(&region)).expect_err("it has keys");
    assert!(error.to_string().contains("EEXIST"), "{error}");
    assert_eq!(library.get("live_ranges"), 16, "and what stood still does");
    set.deregister().expect("taken back");
    assert_eq!(library.get("live_ranges"), 0);
    for nth in 1..=16 {
        library.fail("nixl_capi_register_mem", nth, 1, -2);
        let error = builder.register(Arc::clone(&region)).expect_err("one is refused");
        let RegisterError::Refused { error, kept } = &error else { panic!("{error}") };
        assert!(kept.is_empty());
        assert_eq!(error.refusal.call, "nixl_capi_register_mem");
        assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
        assert_eq!(library.get("live_ranges"), 0, "call {nth}");
    }
    drop((set, builder, agents));
    assert_nothing_lives(&library);
}

#[test]
fn backends_are_listed_and_a_wrong_one_is_told_apart() {
    let library = stand_in();
    let nixl = load(&library);
    assert_eq!(nixl.backends().expect("a list"), ["GDS", "POSIX", "UCX", "VRAM_ONLY"]);
    assert_nothing_lives(&library);
    for (backend, word) in [
        ("RDMA", "no backend is called RDMA: there are GDS, POSIX, UCX, VRAM_ONLY"),
        ("GDS", "nixl:GDS: nixl_capi_get_plugin_params: NIXL_CAPI_ERROR_BACKEND (-2)"),
        ("VRAM_ONLY", "nixl:VRAM_ONLY: the backend does not take memory of the host"),
    ] {
        let error = nixl.open(backend).expect_err("not this one");
        assert_eq!((error.backend.as_ref(), error.reason.as_str()), ("nixl", word));
        assert_nothing_lives(&library);
    }
    for call in [
        "nixl_capi_create_agent",
        "nixl_capi_get_available_plugins",
        "nixl_capi_string_list_size",
        "nixl_capi_string_list_get",
    ] {
        library.fail(call, 1, 1, -2);
        let error = nixl.backends().expect_err("refused");
        assert!(error.reason.contains(&format!("{call}: NIXL_CAPI_ERROR_BACKEND")), "{error}");
        let word = if call == "nixl_capi_create_agent" { "HOME" } else { "standard error" };
        assert!(error.remedy.contains(word), "{error}");
        assert_nothing_lives(&library);
    }
    library.fail("nixl_capi_string_list_get", 1, 1, NOTHING);
    let error = nixl.backends().expect_err("a name is missing");
    assert!(error.reason.contains("nothing was made"), "{error}");
    assert_nothing_lives(&library);
}

#[test]
fn a_library_without_a_function_is_none() {
    // Each of the others is looked for alike; `tests/alone` makes every look fail.
    for missing in ["create_agent", "destroy_reg_dlist", "deregister_mem", "get_local_md"] {
        let missing = format!("nixl_capi_{missing}");
        let library = StandIn::new("nixl", &[&missing]);
        // SAFETY: it is not used.
        let error = unsafe { Nixl::load_from(library.path()) }.expect_err("a function is missing");
        assert_eq!(error.backend, "nixl");
        assert!(error.reason.contains(&format!("has no function {missing}:")), "{error}");
    }
    // A macro of this name gives it the function by which old ones are known.
    let library = StandIn::new("nixl", &["OLD"]);
    // SAFETY: it is not used.
    let error = unsafe { Nixl::load_from(library.path()) }.expect_err("another ABI");
    assert!(error.reason.contains("a NIXL before 1.0"), "{error}");
}

#[test]
fn what_is_no_library_is_not_available() {
    for path in [
        "/nonexistent/libnixl_capi.so",
        "/dev/null",
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
    ] {
        // SAFETY: none of them is a library.
        let error = unsafe { Nixl::load_from(Path::new(path)) }.expect_err("no library");
        assert!(error.reason.starts_with("no library: ") && error.reason.contains(path), "{error}");
        assert!(error.to_string().contains("pip install --no-deps nixl-cu12"), "{error}");
    }
}
