//! NIXL itself: what it has registered can be transferred, and nothing else.
//!
//! It stays loaded, with threads and hooks on `mmap`, so each test of it runs in a process of its
//! own.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmem::arena::{Errno, Ladder, PageSize, Region};
use kvmem::register::nixl::{Agent, Nixl};
use kvmem::register::{DeviceSpec, Key, Registrar, RegistrarError, RegistrationSet};

use super::standin::StandIn;
use super::{MIB, alone, role};

/// Where `cargo xtask test` puts engines' wheels, in the workspace.
const VENV: &str = "target/engines";

/// The real library: the one that the environment names, the wheel's in the workspace, or the
/// system's; or how to get it.
fn real() -> Result<PathBuf, String> {
    if let Some(path) = env::var_os(Nixl::ENVIRONMENT).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pythons =
        std::fs::read_dir(workspace.join(VENV).join("lib")).into_iter().flatten().flatten();
    let packages = pythons.map(|python| python.path().join("site-packages"));
    let libraries = packages.flat_map(|packages| {
        ["cu12", "cu13"]
            .map(|cuda| packages.join(format!(".nixl_{cuda}.mesonpy.libs/{}", Nixl::LIBRARY)))
    });
    let system =
        ["/lib", "/usr/lib", "/usr/local/lib", "/opt/nvidia/nvda_nixl/lib/x86_64-linux-gnu"];
    let libraries = libraries.chain(system.map(|folder| Path::new(folder).join(Nixl::LIBRARY)));
    libraries.into_iter().find(|path| path.exists()).ok_or_else(|| {
        format!(
            "no NIXL: python3 -m venv {VENV} && {VENV}/bin/pip install --no-deps nixl-cu12 nixl numpy; or let {} name \
             its {}",
            Nixl::ENVIRONMENT,
            Nixl::LIBRARY
        )
    })
}

/// A test of this file in a process of its own, in which the environment names the library.
fn child(test: &str, role: &str, library: &Path) -> Command {
    let mut command = Command::new(env::current_exe().expect("our own path"));
    command.args([&format!("nixl::{test}"), "--exact", "--nocapture", "--test-threads=1"]);
    command.env("KVMEM_TEST_ROLE", role).env(Nixl::ENVIRONMENT, library);
    // NIXL wants to look for its settings there, and these tests want none of them.
    command.env("HOME", env::temp_dir());
    // On one host, whatever cards it has.
    command.env("UCX_TLS", "tcp,sm,self").env("UCX_NET_DEVICES", "lo");
    // With the system's drivers for RDMA (ibverbs-providers), UCX's module for InfiniBand crashes
    // at the end of a process: that it is not loaded is what the library sees to.
    command.env_remove("UCX_MODULES");
    command
}

/// Runs a test in a process of its own with the real library; prints why not where there is none,
/// or fails where there must be one.
fn with_real(test: &str) {
    let library = match real() {
        Ok(library) => library,
        Err(why) => {
            assert!(
                env::var_os("KVMEM_REQUIRE_ENGINES").is_none_or(|required| required != "1"),
                "{why}"
            );
            return println!("skipped: {why}");
        }
    };
    passes(&mut child(test, "one", &library));
}

fn passes(command: &mut Command) -> String {
    let output = command.output().expect("a child");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{}: {told} {complaints}",
        output.status
    );
    told
}

/// Resident memory of base pages, filled by `fill`.
fn region(bytes: usize, fill: u8) -> Arc<Region> {
    let region = Region::builder(bytes).ladder(Ladder::only(PageSize::Base));
    let region = region.map().expect("a little memory");
    // SAFETY: mapped for writing, so many bytes, and nobody else has them.
    unsafe { region.base().as_ptr().write_bytes(fill, bytes) };
    Arc::new(region)
}

/// What is there now.
fn bytes(region: &Region, at: usize, len: usize) -> Vec<u8> {
    assert!(at + len <= region.len());
    let mut bytes = vec![0; len];
    // SAFETY: within the region, which lives; transfers have ended.
    unsafe { region.base().as_ptr().add(at).copy_to(bytes.as_mut_ptr(), len) };
    bytes
}

/// What peers get.
fn metadata(agent: &Agent) -> Result<Vec<u8>, RegistrarError> {
    // SAFETY: they are of these tests, and end or forget it before memory is unmapped.
    unsafe { agent.metadata() }
}

/// The functions that transfers need, of the same library.
struct Transfers(libloading::Library);

/// A descriptor: address and bytes.
type Part = (usize, usize);
type Status = c_int;
type Raw = *mut c_void;
type Of = unsafe extern "C" fn(NonNull<c_void>, Raw) -> Status;
type Gone = unsafe extern "C" fn(Raw) -> Status;

/// `NIXL_CAPI_IN_PROG`.
const IN_PROGRESS: Status = 1;
/// `NIXL_CAPI_ERROR_NOT_FOUND`.
const NOT_FOUND: Status = -6;
/// `NIXL_CAPI_ERROR_BACKEND`, which requests say for it until NIXL 1.5. Descriptors are told apart
/// there already.
const BACKEND: Status = -2;

/// Of this agent itself, where a peer is named: `NIXL_INIT_AGENT`.
const MINE: &str = "";

impl Transfers {
    fn of(library: &Path) -> Transfers {
        // SAFETY: it is loaded already.
        Transfers(unsafe { libloading::Library::new(library) }.expect("it was loaded before"))
    }

    /// # Safety
    /// `F` is the function's type.
    unsafe fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller's promise.
        *unsafe { self.0.get::<F>(format!("nixl_capi_{name}")) }.expect("NIXL has it")
    }

    /// Makes a peer known by its metadata; returns its name.
    fn meet(&self, agent: &Agent, metadata: &[u8]) -> String {
        type Load =
            unsafe extern "C" fn(NonNull<c_void>, *const u8, usize, *mut *mut c_char) -> Status;
        let mut name = null_mut();
        // SAFETY: the types are those of the header; the agent lives; the name is a string that
        // `free` takes.
        agent.with_raw(|raw, _| unsafe {
            let load = self.function::<Load>("load_remote_md");
            assert_eq!(load(raw, metadata.as_ptr(), metadata.len(), &mut name), 0);
            let copied = CStr::from_ptr(name).to_string_lossy().into_owned();
            libc::free(name.cast());
            copied
        })
    }

    /// Makes the agent forget a peer.
    fn forget(&self, agent: &Agent, peer: &str) {
        type Forget = unsafe extern "C" fn(NonNull<c_void>, *const c_char) -> Status;
        let peer = CString::new(peer).expect("a name");
        // SAFETY: the type is that of the header, and the agent lives.
        agent.with_raw(|raw, _| unsafe {
            assert_eq!(self.function::<Forget>("invalidate_remote_md")(raw, peer.as_ptr()), 0);
        });
    }

    /// Asks for a descriptor to be made ready for transfers: one of the agent's own, or of a
    /// peer's.
    fn prepare(&self, agent: &Agent, whose: &str, (at, len): Part) -> Result<(), Status> {
        type Prepare =
            unsafe extern "C" fn(NonNull<c_void>, *const c_char, Raw, *mut Raw, Raw) -> Status;
        let whose = CString::new(whose).expect("a name");
        let (list, mut ready) = (self.list((at, len)), null_mut());
        // SAFETY: the types are those of the header; agent and list live, and each is ended once.
        agent.with_raw(|raw, _| unsafe {
            let prepare = self.function::<Prepare>("prep_xfer_dlist");
            let status = prepare(raw, whose.as_ptr(), list, &mut ready, null_mut());
            if status == 0 {
                assert_eq!(self.function::<Of>("release_xfer_dlist_handle")(raw, ready), 0);
            }
            self.function::<Gone>("destroy_xfer_dlist")(list);
            if status == 0 { Ok(()) } else { Err(status) }
        })
    }

    /// A list of one descriptor.
    fn list(&self, (at, len): Part) -> Raw {
        type Made = unsafe extern "C" fn(c_uint, *mut Raw) -> Status;
        type Add = unsafe extern "C" fn(Raw, usize, usize, u64) -> Status;
        let mut list = null_mut();
        // SAFETY: the types are those of the header.
        unsafe {
            assert_eq!(self.function::<Made>("create_xfer_dlist")(0, &mut list), 0);
            assert_eq!(self.function::<Add>("xfer_dlist_add_desc")(list, at, len, 0), 0);
        }
        list
    }

    /// Holds that a write is refused, because one of the two is not registered: `strange`, of
    /// `whose`.
    #[track_caller]
    fn refused(&self, agent: &Agent, from: Part, peer: &str, to: Part, whose: &str, strange: Part) {
        assert_eq!(self.prepare(agent, whose, strange), Err(NOT_FOUND));
        let refused = self.write(agent, from, peer, to).expect_err("not registered");
        assert!([NOT_FOUND, BACKEND].contains(&refused), "{refused}");
    }

    /// Writes `from` here to `to` at the peer, and waits for the end.
    fn write(&self, agent: &Agent, from: Part, peer: &str, to: Part) -> Result<(), Status> {
        type Request = unsafe extern "C" fn(
            NonNull<c_void>,
            c_uint,
            Raw,
            Raw,
            *const c_char,
            *mut Raw,
            Raw,
        ) -> Status;
        type Post = unsafe extern "C" fn(NonNull<c_void>, Raw, Raw) -> Status;
        let peer = CString::new(peer).expect("a name");
        let (from, to) = (self.list(from), self.list(to));
        let mut request = null_mut();
        // SAFETY: the types are those of the header; agent and lists live, and no other call is
        // made meanwhile.
        let status = agent.with_raw(|raw, _| unsafe {
            let create = self.function::<Request>("create_xfer_req");
            let status = create(raw, 1, from, to, peer.as_ptr(), &mut request, null_mut());
            if status == 0 {
                self.function::<Post>("post_xfer_req")(raw, request, null_mut())
            } else {
                status
            }
        });
        let begun = Instant::now();
        let mut ended = status;
        while ended == IN_PROGRESS {
            assert!(begun.elapsed() < Duration::from_secs(30), "the transfer does not end");
            // SAFETY: see above.
            ended = agent
                .with_raw(|raw, _| unsafe { self.function::<Of>("get_xfer_status")(raw, request) });
        }
        // SAFETY: see above; each is ended once.
        agent.with_raw(|raw, _| unsafe {
            if !request.is_null() {
                self.function::<Of>("release_xfer_req")(raw, request);
                self.function::<Gone>("destroy_xfer_req")(request);
            }
            for list in [from, to] {
                self.function::<Gone>("destroy_xfer_dlist")(list);
            }
        });
        if ended == 0 { Ok(()) } else { Err(ended) }
    }
}

/// The key's memory, as a descriptor.
fn part(key: Key) -> Part {
    (key.handle as usize, key.lkey as usize)
}

#[test]
fn what_is_registered_is_transferred_and_nothing_else() {
    let _alone = alone();
    if role().is_none() {
        return with_real("what_is_registered_is_transferred_and_nothing_else");
    }
    let nixl = Nixl::load().expect("the real library");
    let backends = nixl.backends().expect("a list");
    assert!(backends.iter().any(|name| name == "UCX"), "{backends:?}");
    let transfers = Transfers::of(&real().expect("in the environment"));
    let [here, there] =
        ["here", "there"].map(|name| Arc::new(nixl.agent(name).open().expect("an agent with UCX")));
    let (mine, theirs) = (region(4 * MIB, 0x11), region(4 * MIB, 0x22));

    // Planned, registered and measured like with any registrar, in four chunks.
    let builder = |agent: &Arc<Agent>| {
        let agent: Arc<dyn Registrar> = Arc::clone(agent) as _;
        RegistrationSet::builder().registrars([agent]).chunk_bytes(MIB as u64)
    };
    println!("{}", builder(&here).plan(&mine).expect("no limit"));
    let mut ours = builder(&here).register(Arc::clone(&mine)).expect("registered");
    let mut yours = builder(&there).register(Arc::clone(&theirs)).expect("registered");
    println!("{}", ours.outcome());
    assert_eq!((here.live_keys(), there.live_keys()), (4, 4));
    let from = part(ours.key_for("here", MIB..2 * MIB).expect("one chunk's"));
    let to = part(yours.key_for("there", 2 * MIB..3 * MIB).expect("one chunk's"));

    let peer = transfers.meet(&here, &metadata(&there).expect("bytes"));
    assert_eq!(peer, "there");
    transfers.write(&here, from, &peer, to).expect("both ends are registered");
    assert_eq!(bytes(&theirs, 2 * MIB, MIB), vec![0x11; MIB]);
    assert_eq!(
        (bytes(&theirs, 2 * MIB - 1, 1), bytes(&theirs, 3 * MIB, 1)),
        (vec![0x22], vec![0x22])
    );
    // A part of a chunk.
    let within = |(at, _): Part| (at + 4096, 512);
    transfers
        .write(&here, within(from), &peer, (to.0 - MIB, 512))
        .expect("a part of what is registered");
    assert_eq!(bytes(&theirs, MIB, 513), [vec![0x11; 512], vec![0x22]].concat());

    // Not registered: here, there.
    let strange = region(MIB, 0x33);
    let strange = (strange.base().addr().get(), MIB);
    transfers.prepare(&here, MINE, from).expect("registered here");
    transfers.prepare(&here, &peer, to).expect("registered there");
    transfers.refused(&here, strange, &peer, to, MINE, strange);
    transfers.refused(&here, from, &peer, strange, &peer, strange);
    // Nor any more: what was given back is gone.
    ours.deregister().expect("taken back");
    assert_eq!(here.live_keys(), 0);
    transfers.refused(&here, from, &peer, to, MINE, from);
    assert_eq!(bytes(&theirs, 2 * MIB, MIB), vec![0x11; MIB]);

    // The other side's books: peers forget before memory is given back.
    let ours = builder(&here).register(Arc::clone(&mine)).expect("registered again");
    transfers.write(&here, from, &peer, to).expect("both ends are registered");
    transfers.forget(&here, &peer);
    yours.deregister().expect("taken back");
    transfers.prepare(&here, MINE, from).expect("registered here");
    transfers.refused(&here, from, &peer, to, &peer, to);
    drop(ours);
    drop((here, there));
    println!("both agents have ended");
}

#[test]
fn registrations_are_refused_and_taken_back_by_the_real_library() {
    let _alone = alone();
    if role().is_none() {
        return with_real("registrations_are_refused_and_taken_back_by_the_real_library");
    }
    let nixl = Nixl::load().expect("the real library");
    let error = nixl.open("NO_SUCH").expect_err("no backend");
    assert!(error.reason.starts_with("no backend is called NO_SUCH: there are "), "{error}");
    assert!(error.reason.contains("UCX"), "{error}");
    let opened = DeviceSpec::Nixl(None).open().expect("an agent");
    assert_eq!((opened.len(), opened[0].name()), (1, "nixl:UCX"));
    drop(opened);

    let agent = nixl.agent("alone").parameter("num_workers", "2").open().expect("an agent");
    let memory = region(MIB, 0);
    let empty = metadata(&agent).expect("bytes").len();
    // SAFETY: the region lives longer than the keys, and no transfer is made.
    let register = |at: usize, len| unsafe { agent.register(memory.base().add(at), len) };
    let key = register(0, MIB).expect("a key");
    assert!(metadata(&agent).expect("bytes").len() > empty, "it tells of more");
    assert_eq!(register(0, MIB).expect_err("twice").errno, Errno::EEXIST);
    let within = register(4096, 4096).expect("NIXL takes ranges that overlap");
    agent.deregister(key).expect("it stands");
    assert_eq!(agent.deregister(key).expect_err("twice").errno, Errno::ENOENT);
    agent.deregister(within).expect("it stands");
    assert_eq!((agent.live_keys(), metadata(&agent).expect("bytes").len()), (0, empty));

    // Somebody else gives it back, behind the registrar's back: NIXL's own word for it.
    let key = register(0, 4096).expect("a key");
    let transfers = Transfers::of(&real().expect("in the environment"));
    agent.with_raw(|raw, _| {
        type Made = unsafe extern "C" fn(c_uint, *mut Raw) -> Status;
        type Add = unsafe extern "C" fn(Raw, usize, usize, u64, *const u8, usize) -> Status;
        type Deregister = unsafe extern "C" fn(NonNull<c_void>, Raw, Raw) -> Status;
        let mut list = null_mut();
        // SAFETY: the types are those of the header, and all of it lives.
        unsafe {
            assert_eq!(transfers.function::<Made>("create_reg_dlist")(0, &mut list), 0);
            let (at, len) = part(key);
            let add = transfers.function::<Add>("reg_dlist_add_desc");
            assert_eq!(add(list, at, len, 0, std::ptr::null(), 0), 0);
            assert_eq!(
                transfers.function::<Deregister>("deregister_mem")(raw, list, null_mut()),
                0
            );
            transfers.function::<Gone>("destroy_reg_dlist")(list);
        }
    });
    let refused = agent.deregister(key).expect_err("it is gone");
    assert_eq!((refused.errno, agent.live_keys()), (Errno::ENOENT, 1));
    assert_eq!(refused.detail.as_deref(), Some("NIXL_CAPI_ERROR_NOT_FOUND (-6)"));
}

#[test]
fn two_processes_transfer_between_their_regions() {
    const TEST: &str = "two_processes_transfer_between_their_regions";
    let _alone = alone();
    let Some(role) = role() else { return with_real(TEST) };
    let nixl = Nixl::load().expect("the real library");
    let fill = if role == "one" { 0x5a } else { 0 };
    let (agent, memory) = (Arc::new(nixl.open("UCX").expect("an agent")), region(8 * MIB, fill));
    let registrar: Arc<dyn Registrar> = Arc::clone(&agent) as _;
    let mut set = RegistrationSet::builder()
        .registrars([registrar])
        .register(Arc::clone(&memory))
        .expect("keys");
    let key = set.key_for("nixl:UCX", 0..8 * MIB).expect("one key for all");

    if role != "one" {
        // The target: says what a peer has to know, waits, and says what has come.
        let hex = metadata(&agent).expect("bytes").iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        println!("\ntarget {} {hex}", key.handle);
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("the other's word");
        println!("\nequal {}", bytes(&memory, 0, 8 * MIB).iter().all(|byte| *byte == 0x5a));
        return set.deregister().map(drop).expect("taken back");
    }

    let mut target = child(TEST, "two", &real().expect("in the environment"));
    let mut target = target.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
    let mut lines = BufReader::new(target.stdout.take().expect("piped")).lines();
    let mut word = |first: &str| loop {
        let line = lines.next().expect("the target speaks").expect("text");
        if let Some(rest) = line.strip_prefix(first) {
            return rest.trim().to_owned();
        }
    };
    let told = word("target ");
    let (at, metadata) = told.split_once(' ').expect("an address and metadata");
    let metadata: Vec<u8> = metadata
        .as_bytes()
        .chunks(2)
        .map(|hex| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap())
        .collect();
    let to = (at.parse().expect("an address"), 8 * MIB);
    let transfers = Transfers::of(&real().expect("in the environment"));
    let peer = transfers.meet(&agent, &metadata);
    assert_ne!(peer, agent.agent(), "each process has a name of its own");
    transfers.write(&agent, part(key), &peer, to).expect("both ends are registered");
    let beyond = (to.0 + to.1, 4096);
    transfers.refused(&agent, (part(key).0, beyond.1), &peer, beyond, &peer, beyond);
    transfers.forget(&agent, &peer);
    target.stdin.take().expect("piped").write_all(b"done\n").expect("it listens");
    assert_eq!(word("equal "), "true");
    assert!(target.wait().expect("a status").success());
    set.deregister().expect("taken back");
}

/// What C finds in the environment.
fn in_c(name: &CStr) -> Option<String> {
    // SAFETY: the name is a string, and nobody changes the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a string of the environment, which stays.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
}

#[test]
fn ucx_leaves_its_module_for_infiniband_out_where_there_is_no_device() {
    const TEST: &str = "ucx_leaves_its_module_for_infiniband_out_where_there_is_no_device";
    let _alone = alone();
    let Some(role) = role() else {
        let library = StandIn::new("nixl", &[]);
        passes(&mut child(TEST, "unset", library.path()));
        for value in ["all", "", "^ib"] {
            passes(child(TEST, value, library.path()).env("UCX_MODULES", value));
        }
        return;
    };
    let device =
        std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut cards| cards.next().is_some());
    let wanted = if role == "unset" { (!device).then(|| "^ib".to_owned()) } else { Some(role) };
    let before = env::vars_os().filter(|(name, _)| name != "UCX_MODULES").count();
    for _ in 0..2 {
        Nixl::load().expect("the stand-in");
        assert_eq!(env::var("UCX_MODULES").ok(), wanted);
        assert_eq!(in_c(c"UCX_MODULES"), wanted);
        // Everything else is there still, and other programs get it.
        assert_eq!(env::vars_os().filter(|(name, _)| name != "UCX_MODULES").count(), before);
        let told =
            Command::new("sh").args(["-c", "echo ${UCX_MODULES-none}"]).output().expect("a shell");
        let told = String::from_utf8_lossy(&told.stdout).trim().to_owned();
        assert_eq!(told, wanted.clone().unwrap_or_else(|| "none".to_owned()));
    }
}

#[test]
fn the_environment_names_the_library() {
    const TEST: &str = "the_environment_names_the_library";
    let _alone = alone();
    match role().as_deref() {
        None => {
            let library = StandIn::new("nixl", &[]);
            passes(&mut child(TEST, "there", library.path()));
            passes(&mut child(TEST, "nowhere", Path::new("/nonexistent/libnixl_capi.so")));
        }
        Some("there") => {
            let nixl = Nixl::load().expect("the stand-in");
            assert_eq!(nixl.backends().expect("its list")[3], "VRAM_ONLY");
            let found = kvmem::register::discover();
            let found = found.iter().find(|found| found.backend == "nixl").expect("listed");
            assert_eq!(
                found.to_string(),
                "nixl:UCX: a key for any number of bytes, any number of keys, memlock does not hold"
            );
        }
        Some(_) => {
            let error = Nixl::load().expect_err("no library");
            let word =
                "KVMEM_NIXL_LIBRARY says where it is: no library: /nonexistent/libnixl_capi.so";
            assert!(error.reason.starts_with(word), "{error}");
        }
    }
}
