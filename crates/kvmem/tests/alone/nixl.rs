//! The real NIXL: only registered memory can be transferred.
//!
//! The library stays loaded, with threads and hooks on `mmap`; each test therefore runs in its own
//! process.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmem::arena::{Errno, Ladder, PageSize, Region};
use kvmem::register::nixl::{Agent, Nixl};
use kvmem::register::{DeviceSpec, Key, Registrar, RegistrarError, RegistrationSet};

use super::child::{again, as_role, passes, role};
use super::standin::StandIn;
use super::{MIB, alone};

/// The folder in the workspace into which `cargo xtask test` installs the engines' wheels.
const VENV: &str = "target/engines";

/// Returns the real library: the one that the environment names, the wheel's in the workspace, or
/// the system's; or how to install it.
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
            "no NIXL: python3 -m venv {VENV} && {VENV}/bin/pip install --no-deps nixl-cu12 nixl \
             numpy; or set {} to its {}",
            Nixl::ENVIRONMENT,
            Nixl::LIBRARY
        )
    })
}

/// Returns a command that runs a test of this file in its own process, with the library in the
/// environment.
fn child(test: &str, role: &str, library: &Path) -> Command {
    let mut command = again(&format!("nixl::{test}"), role);
    command.env(Nixl::ENVIRONMENT, library);
    // NIXL looks for its settings there; these tests use none.
    command.env("HOME", env!("CARGO_TARGET_TMPDIR"));
    // Transfers stay on one host, whatever cards it has.
    command.env("UCX_TLS", "tcp,sm,self").env("UCX_NET_DEVICES", "lo");
    // With the system's drivers for RDMA (ibverbs-providers), UCX's module for InfiniBand crashes
    // at the end of a process; the library prevents loading it.
    command.env_remove("UCX_MODULES");
    command
}

/// Runs a test in its own process with the real library. Without the library it prints why, or
/// fails if the library is required.
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

/// The environment is that of the user, and the rights are those of the program's file.
#[test]
fn a_process_with_more_rights_than_its_user_loads_no_library_of_the_environment() {
    let _alone = alone();
    // SAFETY: reads a number that the kernel has passed to the process.
    let has_more = || unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if role().is_some() {
        if !has_more() {
            return println!("skipped: programs of this file system get no rights of their files");
        }
        let error = Nixl::load().expect_err("the user names the library");
        assert!(error.reason.contains("KVMEM_NIXL_LIBRARY is set, and this process"), "{error}");
        return assert!(error.remedy.contains("/etc/ld.so.conf.d"), "{error}");
    }
    let [owner, user] = [65_534, 65_533];
    let folder = tempfile::tempdir().expect("a folder can be made");
    let library = StandIn::new("nixl", &[]);
    let [program, copied] = ["program", "nixl.so"].map(|name| folder.path().join(name));
    std::fs::copy(env::current_exe().expect("our own path"), &program).expect("there is space");
    std::fs::copy(library.path(), &copied).expect("there is space");
    let owned = std::os::unix::fs::chown(&program, Some(owner), Some(owner));
    let mode = |file: &Path, mode| {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).expect("our own");
    };
    mode(folder.path(), 0o711);
    mode(&copied, 0o755);
    if owned.is_ok() {
        mode(&program, 0o4711);
        let test = "a_process_with_more_rights_than_its_user_loads_no_library_of_the_environment";
        let mut command = Command::new(&program);
        as_role(&mut command, &format!("nixl::{test}"), "user");
        command.env(Nixl::ENVIRONMENT, &copied).uid(user).gid(user);
        passes(command.current_dir("/"));
    } else {
        println!("skipped: only root gives a file to another user");
    }
}

/// Returns resident memory of base pages, filled by `fill`.
fn region(bytes: usize, fill: u8) -> Arc<Region> {
    let region = Region::builder(bytes).ladder(Ladder::only(PageSize::Base));
    let region = region.map().expect("a little memory");
    // SAFETY: the region is mapped for writing, and nothing else uses it.
    unsafe { region.base().as_ptr().write_bytes(fill, bytes) };
    Arc::new(region)
}

/// Returns the current bytes.
fn bytes(region: &Region, at: usize, len: usize) -> Vec<u8> {
    assert!(at + len <= region.len());
    let mut bytes = vec![0; len];
    // SAFETY: within the region, which is mapped; transfers have ended.
    unsafe { region.base().as_ptr().add(at).copy_to(bytes.as_mut_ptr(), len) };
    bytes
}

/// Returns the metadata for peers.
fn metadata(agent: &Agent) -> Result<Vec<u8>, RegistrarError> {
    // SAFETY: the peers belong to these tests, and end or invalidate the agent before memory is
    // unmapped.
    unsafe { agent.metadata() }
}

/// The functions of the same library that transfers need.
struct Transfers(libloading::Library);

/// A descriptor: address and bytes.
type Part = (usize, usize);
type Status = c_int;
type Raw = *mut c_void;
type Of = unsafe extern "C" fn(NonNull<c_void>, Raw) -> Status;
type Destroy = unsafe extern "C" fn(Raw) -> Status;

/// `NIXL_CAPI_IN_PROG`.
const IN_PROGRESS: Status = 1;
/// `NIXL_CAPI_ERROR_NOT_FOUND`.
const NOT_FOUND: Status = -6;
/// `NIXL_CAPI_ERROR_BACKEND`, which requests return for it until NIXL 1.5. Preparing descriptors
/// returns `NIXL_CAPI_ERROR_NOT_FOUND` in these releases, too.
const BACKEND: Status = -2;

/// The peer name for the agent itself: `NIXL_INIT_AGENT`.
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

    /// Loads a peer's metadata; returns its name.
    fn meet(&self, agent: &Agent, metadata: &[u8]) -> String {
        type Load =
            unsafe extern "C" fn(NonNull<c_void>, *const u8, usize, *mut *mut c_char) -> Status;
        let mut name = null_mut();
        // SAFETY: the types are those of the header; the agent is alive; the name is a string for
        // `free`.
        agent.with_raw(|raw, _| unsafe {
            let load = self.function::<Load>("load_remote_md");
            assert_eq!(load(raw, metadata.as_ptr(), metadata.len(), &mut name), 0);
            let copied = CStr::from_ptr(name).to_string_lossy().into_owned();
            libc::free(name.cast());
            copied
        })
    }

    /// Invalidates a peer's metadata.
    fn forget(&self, agent: &Agent, peer: &str) {
        type Forget = unsafe extern "C" fn(NonNull<c_void>, *const c_char) -> Status;
        let peer = CString::new(peer).expect("a name");
        // SAFETY: the type is that of the header, and the agent is alive.
        agent.with_raw(|raw, _| unsafe {
            assert_eq!(self.function::<Forget>("invalidate_remote_md")(raw, peer.as_ptr()), 0);
        });
    }

    /// Prepares a descriptor for transfers: one of the agent's own, or a peer's.
    fn prepare(&self, agent: &Agent, owner: &str, (at, len): Part) -> Result<(), Status> {
        type Prepare =
            unsafe extern "C" fn(NonNull<c_void>, *const c_char, Raw, *mut Raw, Raw) -> Status;
        let owner = CString::new(owner).expect("a name");
        let (list, mut ready) = (self.list((at, len)), null_mut());
        // SAFETY: the types are those of the header; agent and list are alive, and each is
        // destroyed once.
        agent.with_raw(|raw, _| unsafe {
            let prepare = self.function::<Prepare>("prep_xfer_dlist");
            let status = prepare(raw, owner.as_ptr(), list, &mut ready, null_mut());
            if status == 0 {
                assert_eq!(self.function::<Of>("release_xfer_dlist_handle")(raw, ready), 0);
            }
            self.function::<Destroy>("destroy_xfer_dlist")(list);
            if status == 0 { Ok(()) } else { Err(status) }
        })
    }

    /// Returns a list of one descriptor.
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

    /// Checks that a write fails because one of both descriptors is not registered: `unregistered`,
    /// of the agent `owner`.
    #[track_caller]
    fn assert_fails(
        &self,
        agent: &Agent,
        from: Part,
        peer: &str,
        to: Part,
        owner: &str,
        unregistered: Part,
    ) {
        assert_eq!(self.prepare(agent, owner, unregistered), Err(NOT_FOUND));
        let error = self.write(agent, from, peer, to).expect_err("not registered");
        assert!([NOT_FOUND, BACKEND].contains(&error), "{error}");
    }

    /// Writes the local `from` to the peer's `to`, and waits for the end.
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
        // SAFETY: the types are those of the header; agent and lists are alive, and no other call
        // is made meanwhile.
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
            assert!(begun.elapsed() < Duration::from_secs(120), "the transfer does not end");
            // SAFETY: the types are those of the header; agent and request are alive.
            ended = agent
                .with_raw(|raw, _| unsafe { self.function::<Of>("get_xfer_status")(raw, request) });
        }
        // SAFETY: the types are those of the header; each object is alive and destroyed once.
        agent.with_raw(|raw, _| unsafe {
            if !request.is_null() {
                self.function::<Of>("release_xfer_req")(raw, request);
                self.function::<Destroy>("destroy_xfer_req")(request);
            }
            for list in [from, to] {
                self.function::<Destroy>("destroy_xfer_dlist")(list);
            }
        });
        if ended == 0 { Ok(()) } else { Err(ended) }
    }
}

/// Returns the key's memory as a descriptor.
fn part(key: Key) -> Part {
    (key.handle as usize, key.lkey as usize)
}

#[test]
fn only_registered_memory_is_transferred() {
    let _alone = alone();
    if role().is_none() {
        return with_real("only_registered_memory_is_transferred");
    }
    let nixl = Nixl::load().expect("the real library");
    let backends = nixl.backends().expect("a list");
    assert!(backends.iter().any(|name| name == "UCX"), "{backends:?}");
    let transfers = Transfers::of(&real().expect("KVMEM_NIXL_LIBRARY is set"));
    let [here, there] =
        ["here", "there"].map(|name| Arc::new(nixl.agent(name).open().expect("an agent with UCX")));
    let (mine, theirs) = (region(4 * MIB, 0x11), region(4 * MIB, 0x22));

    // Planned, registered and measured as with any registrar, in four chunks.
    let builder = |agent: &Arc<Agent>| {
        let agent: Arc<dyn Registrar> = Arc::clone(agent) as _;
        RegistrationSet::builder().registrars([agent]).chunk_bytes(MIB as u64)
    };
    println!("{}", builder(&here).plan(&mine).expect("no limit"));
    let mut ours = builder(&here).register(Arc::clone(&mine)).expect("registered");
    let mut yours = builder(&there).register(Arc::clone(&theirs)).expect("registered");
    println!("{}", ours.outcome());
    assert_eq!((here.live_keys(), there.live_keys()), (4, 4));
    let from = part(ours.key_for("here", MIB..2 * MIB).expect("within one chunk"));
    let to = part(yours.key_for("there", 2 * MIB..3 * MIB).expect("within one chunk"));

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

    // Not registered: the local range, the remote range.
    let unregistered = region(MIB, 0x33);
    let unregistered = (unregistered.base().addr().get(), MIB);
    transfers.prepare(&here, MINE, from).expect("registered here");
    transfers.prepare(&here, &peer, to).expect("registered there");
    transfers.assert_fails(&here, unregistered, &peer, to, MINE, unregistered);
    transfers.assert_fails(&here, from, &peer, unregistered, &peer, unregistered);
    // A deregistered range fails, too.
    ours.deregister().expect("every key is deregistered");
    assert_eq!(here.live_keys(), 0);
    transfers.assert_fails(&here, from, &peer, to, MINE, from);
    assert_eq!(bytes(&theirs, 2 * MIB, MIB), vec![0x11; MIB]);

    // Peers invalidate the agent before it deregisters memory.
    let ours = builder(&here).register(Arc::clone(&mine)).expect("registered again");
    transfers.write(&here, from, &peer, to).expect("both ends are registered");
    transfers.forget(&here, &peer);
    yours.deregister().expect("every key is deregistered");
    transfers.prepare(&here, MINE, from).expect("registered here");
    transfers.assert_fails(&here, from, &peer, to, &peer, to);
    drop(ours);
    drop((here, there));
    println!("both agents have ended");
}

#[test]
fn the_real_library_rejects_and_deregisters_ranges() {
    let _alone = alone();
    if role().is_none() {
        return with_real("the_real_library_rejects_and_deregisters_ranges");
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
    // SAFETY: the region outlives the keys, and no transfer is made.
    let register = |at: usize, len| unsafe { agent.register(memory.base().add(at), len) };
    let key = register(0, MIB).expect("a key");
    assert!(metadata(&agent).expect("bytes").len() > empty, "it describes more memory");
    assert_eq!(register(0, MIB).expect_err("twice").errno, Errno::EEXIST);
    let within = register(4096, 4096).expect("NIXL accepts overlapping ranges");
    agent.deregister(key).expect("the key is live");
    assert_eq!(agent.deregister(key).expect_err("twice").errno, Errno::ENOENT);
    agent.deregister(within).expect("the key is live");
    assert_eq!((agent.live_keys(), metadata(&agent).expect("bytes").len()), (0, empty));

    // Other code deregisters it directly; the registrar then gets NIXL's error.
    let key = register(0, 4096).expect("a key");
    let transfers = Transfers::of(&real().expect("KVMEM_NIXL_LIBRARY is set"));
    agent.with_raw(|raw, _| {
        type Made = unsafe extern "C" fn(c_uint, *mut Raw) -> Status;
        type Add = unsafe extern "C" fn(Raw, usize, usize, u64, *const u8, usize) -> Status;
        type Deregister = unsafe extern "C" fn(NonNull<c_void>, Raw, Raw) -> Status;
        let mut list = null_mut();
        // SAFETY: the types are those of the header, and all objects are alive.
        unsafe {
            assert_eq!(transfers.function::<Made>("create_reg_dlist")(0, &mut list), 0);
            let (at, len) = part(key);
            let add = transfers.function::<Add>("reg_dlist_add_desc");
            assert_eq!(add(list, at, len, 0, std::ptr::null(), 0), 0);
            assert_eq!(
                transfers.function::<Deregister>("deregister_mem")(raw, list, null_mut()),
                0
            );
            transfers.function::<Destroy>("destroy_reg_dlist")(list);
        }
    });
    let error = agent.deregister(key).expect_err("it is deregistered already");
    assert_eq!((error.errno, agent.live_keys()), (Errno::ENOENT, 1));
    assert_eq!(error.detail.as_deref(), Some("NIXL_CAPI_ERROR_NOT_FOUND (-6)"));
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
    let key = set.key_for("nixl:UCX", 0..8 * MIB).expect("one key for the region");

    if role != "one" {
        // The target prints its metadata, waits, and prints whether the bytes have arrived.
        let hex = metadata(&agent).expect("bytes").iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        println!("\ntarget {} {hex}", key.handle);
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("a line from the other process");
        println!("\nequal {}", bytes(&memory, 0, 8 * MIB).iter().all(|byte| *byte == 0x5a));
        return set.deregister().map(drop).expect("every key is deregistered");
    }

    let mut target = child(TEST, "two", &real().expect("KVMEM_NIXL_LIBRARY is set"));
    let mut target = target.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
    let mut lines = BufReader::new(target.stdout.take().expect("piped")).lines();
    let mut word = |first: &str| loop {
        let line = lines.next().expect("a line from the target").expect("text");
        if let Some(rest) = line.strip_prefix(first) {
            return rest.trim().to_owned();
        }
    };
    let text = word("target ");
    let (at, metadata) = text.split_once(' ').expect("an address and metadata");
    let metadata: Vec<u8> = metadata
        .as_bytes()
        .chunks(2)
        .map(|hex| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap())
        .collect();
    let to = (at.parse().expect("an address"), 8 * MIB);
    let transfers = Transfers::of(&real().expect("KVMEM_NIXL_LIBRARY is set"));
    let peer = transfers.meet(&agent, &metadata);
    assert_ne!(peer, agent.agent(), "each process has a unique name");
    transfers.write(&agent, part(key), &peer, to).expect("both ends are registered");
    let beyond = (to.0 + to.1, 4096);
    transfers.assert_fails(&agent, (part(key).0, beyond.1), &peer, beyond, &peer, beyond);
    transfers.forget(&agent, &peer);
    target.stdin.take().expect("piped").write_all(b"done\n").expect("it listens");
    assert_eq!(word("equal "), "true");
    assert!(target.wait().expect("a status").success());
    set.deregister().expect("every key is deregistered");
}

/// Returns a variable as C code sees it.
fn in_c(name: &CStr) -> Option<String> {
    // SAFETY: the name is a string, and nothing changes the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a string of the environment, which is not changed.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
}

#[test]
fn ucx_does_not_load_its_infiniband_module_without_a_device() {
    const TEST: &str = "ucx_does_not_load_its_infiniband_module_without_a_device";
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
        // The rest of the environment is unchanged, and child processes inherit the variable.
        assert_eq!(env::vars_os().filter(|(name, _)| name != "UCX_MODULES").count(), before);
        let text =
            Command::new("sh").args(["-c", "echo ${UCX_MODULES-none}"]).output().expect("a shell");
        let text = String::from_utf8_lossy(&text.stdout).trim().to_owned();
        assert_eq!(text, wanted.clone().unwrap_or_else(|| "none".to_owned()));
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
                "nixl:UCX: any number of bytes a key, any number of keys, no memlock limit"
            );
        }
        Some(_) => {
            let error = Nixl::load().expect_err("no library");
            let word =
                "KVMEM_NIXL_LIBRARY names the library: no library: /nonexistent/libnixl_capi.so";
            assert!(error.reason.starts_with(word), "{error}");
        }
    }
}
