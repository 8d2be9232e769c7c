//! Registrars of a client: its devices reach the memory of the node, also when the server restarts.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use kvmem::register::cuda::Cuda;
use kvmem::register::verbs::Verbs;
use kvmem::register::{IoUring, Mlock, RegisterError, Registrar, RingTable};
use kvmem_node::{
    CallError, ClientError, ClientRegistrars, ConnectOptions, NewValue, Node, NodeClient,
    NodeOptions, NodeServer, ServerOptions,
};

use crate::fixed::Worker;
use crate::standin::StandIn;
use crate::support::{Place, Running, connect_with, memory, wait_for};

/// A limit of 8 MiB on pinned memory holds for all rings of the user.
const BYTES: usize = 1 << 20;

/// A server whose memory outlives it.
struct RestartableServer {
    place: Place,
    files: [OwnedFd; 3],
    server: Option<Running>,
}

impl RestartableServer {
    fn start() -> RestartableServer {
        let place = Place::new();
        let node = Node::create(memory(BYTES), NodeOptions::default()).expect("possible");
        let server = NodeServer::bind(node, &place.socket(), ServerOptions::default());
        let server = server.expect("the socket is free");
        let files = server.descriptors().expect("there are descriptors");
        RestartableServer { place, files, server: Some(Running::of(server)) }
    }

    fn restart(&mut self) {
        drop(self.server.take().expect("it runs").stop());
        let files = self.files.each_ref().map(|file| file.try_clone().expect("a file"));
        let (node, _) = Node::recover(files, NodeOptions::default()).expect("whole");
        self.server = Some(Running::start(node, &self.place.socket(), ServerOptions::default()));
    }

    fn connect(&self, registrars: ClientRegistrars) -> NodeClient {
        connect_with(&self.place.socket(), &options(registrars))
    }

    fn fail_to_connect(&self, options: &ConnectOptions) -> ClientError {
        // SAFETY: the only clients are those of this test, which write to their reservations alone.
        let connected = unsafe { NodeClient::connect(self.place.socket(), options) };
        connected.map(drop).expect_err("it cannot be registered")
    }
}

fn registering(error: ClientError) -> Box<RegisterError> {
    match error {
        ClientError::Register(error) => error,
        other => panic!("{other}"),
    }
}

fn options(registrars: ClientRegistrars) -> ConnectOptions {
    ConnectOptions { registrars, ..ConnectOptions::default() }
}

#[test]
fn nics_keep_their_keys_when_the_server_restarts() {
    let library = StandIn::new("ibverbs", &[]);
    // SAFETY: the stand-in has the types of the header.
    let verbs = unsafe { Verbs::load_from(library.path()) }.expect("compiled just now");
    let open = |name| Arc::new(verbs.open(name).expect("a device")) as Arc<dyn Registrar>;
    let nics = ClientRegistrars(vec![open("mlx5_0"), open("mlx5_1")]);
    assert_eq!((nics == nics.clone(), nics == ClientRegistrars::default()), (true, false));
    let mut held = RestartableServer::start();
    let client = held.connect(nics);
    client.insert("key", &[7; 9000]).expect("there is space");
    let pins = client.acquire(&["key"]).expect("a call");
    let offset = pins.value(0).expect("it was inserted").offset();
    let keys = |client: &NodeClient| {
        ["mlx5_0", "mlx5_1"].map(|nic| client.key_for(nic, offset, 9000).expect("registered"))
    };
    let before = keys(&client);
    assert!(before[0].rkey.is_some() && before[0] != before[1]);
    let registered = library.calls("ibv_reg_mr");
    held.restart();
    assert_eq!(client.lookup(&["key"]).expect("it connects again"), 1);
    assert_eq!((keys(&client), library.calls("ibv_reg_mr")), (before, registered));
    let registration = client.registration().expect("it has registrars");
    assert_eq!(registration.region().base().as_ptr().cast_const(), client.memory().0);
    let unknown = client.key_for("cuda:0", offset, 9000).expect_err("it has none");
    assert!(matches!(*registering(unknown), RegisterError::NoSuchDevice { .. }));
    let behind = client.key_for("mlx5_0", BYTES as u64, 1).expect_err("it ends there");
    assert!(matches!(*registering(behind), RegisterError::OutOfBounds { .. }));
    // The registration lives as long as the pins: a transfer may be under way.
    drop(client);
    assert_eq!(library.get("live_regions"), 2);
    drop(pins);
    assert_eq!((library.get("live_regions"), library.get("misuse")), (0, 0));
}

#[test]
fn all_is_registered_or_the_client_is_gone() {
    let library = StandIn::new("ibverbs", &[]);
    // SAFETY: the stand-in has the types of the header.
    let verbs = unsafe { Verbs::load_from(library.path()) }.expect("compiled just now");
    let held = RestartableServer::start();
    let observer = held.connect(ClientRegistrars::default());
    let sessions_end =
        || wait_for("a session ends", || observer.stats().expect("a call").sessions == 1);
    library.fail("ibv_reg_mr", 2, 100, libc::ENOMEM);
    let open = |name| Arc::new(verbs.open(name).expect("a device")) as Arc<dyn Registrar>;
    let nics = ClientRegistrars(vec![open("mlx5_0"), open("mlx5_1")]);
    let error = held.fail_to_connect(&options(nics.clone()));
    assert!(matches!(*registering(error), RegisterError::ChunkFailed { .. }));
    assert_eq!(library.get("live_regions"), 0);
    sessions_end();
    // A device may write, and this client may not.
    let error = held.fail_to_connect(&ConnectOptions { read_only: true, ..options(nics) });
    assert!(matches!(error, ClientError::Call(CallError::ReadOnly)), "{error}");
    sessions_end();
    assert!(observer.registration().is_none());
}

#[test]
fn a_gpu_pins_the_memory_again_in_the_next_engine() {
    let library = StandIn::new("cuda", &[]);
    // SAFETY: the stand-in has the types of the driver.
    let cuda = unsafe { Cuda::load_from(library.path()) }.expect("compiled just now");
    let held = RestartableServer::start();
    for _ in 0..2 {
        let client = held.connect(cuda.open(0).expect("there are two").into());
        let key = client.key_for("cuda:0", 4096, 100).expect("it is registered");
        assert!(key.handle != 0 && library.get("live_ranges") > 0);
        drop(client);
        assert_eq!((library.get("live_ranges"), library.get("misuse")), (0, 0));
    }
}

/// A copy by the stand-in for the driver, between a value and the memory of the GPU. The GPU's
/// memory is the host's.
struct Copies<'a> {
    library: &'a StandIn,
    gpu: Vec<u8>,
}

impl Copies<'_> {
    fn new(library: &StandIn) -> Copies<'_> {
        // SAFETY: the type is that of cuda.c, which stores the address alone.
        let push = unsafe {
            library.function::<unsafe extern "C" fn(*const u8) -> i32>("cuCtxPushCurrent_v2")
        };
        // SAFETY: the context is current in this thread from now on.
        assert_eq!(unsafe { push([0u8].as_ptr()) }, 0);
        Copies { library, gpu: vec![0x5a; 8 << 20] }
    }

    /// Returns the driver's results of copying into a value, and out of one.
    fn both_ways(&mut self, value: *mut u8, len: usize) -> [i32; 2] {
        type Copy = unsafe extern "C" fn(*mut u8, *const u8, usize, *mut u8) -> i32;
        assert!(len <= self.gpu.len());
        let null = std::ptr::null_mut();
        // SAFETY: the types are those of cuda.c, and both places have that many bytes.
        unsafe {
            let from_gpu = self.library.function::<Copy>("cuMemcpyDtoHAsync_v2");
            let to_gpu = self.library.function::<Copy>("cuMemcpyHtoDAsync_v2");
            [
                from_gpu(value, self.gpu.as_ptr(), len, null),
                to_gpu(self.gpu.as_mut_ptr(), value, len, null),
            ]
        }
    }
}

/// Fills memory that is longer than two pieces with values of odd lengths, and copies each.
fn copy_all(boundary: u64, pieces: u64) {
    const LONG: usize = (2 << 30) + (96 << 20);
    let library = StandIn::new("cuda", &[]);
    // SAFETY: the stand-in has the types of the driver.
    let cuda = unsafe { Cuda::load_from(library.path()) }.expect("compiled just now");
    let place = Place::new();
    let options = NodeOptions { boundary, ..NodeOptions::default() };
    let node = Node::create(memory(LONG), options).expect("possible");
    let server = Running::start(node, &place.socket(), ServerOptions::default());
    let gpu = cuda.open(0).expect("there are two");
    let client = connect_with(&place.socket(), &self::options(gpu.into()));
    assert_eq!(library.get("live_ranges"), pieces);
    let mut copies = Copies::new(&library);
    let mut filled = Vec::new();
    loop {
        let sizes = [3_274_752, 1_000_003, 7_654_321, 4097];
        match client.reserve(&[sizes[filled.len() % 4]]) {
            Ok(mut made) => filled.append(&mut made),
            Err(ClientError::Call(CallError::OutOfSpace { .. })) => break,
            Err(error) => panic!("{error}"),
        }
    }
    for value in &mut filled {
        let (offset, len) = (value.offset(), value.bytes().len());
        client.key_for("cuda:0", offset, len as u64).expect("a value has one key");
        let at = value.bytes_mut().expect("it is reserved").as_mut_ptr();
        assert_eq!(copies.both_ways(at, len), [0; 2], "{offset} {len}");
    }
    let bytes: usize = filled.iter().map(|value| value.bytes().len()).sum();
    assert!(bytes > LONG - (64 << 20), "{bytes} of {LONG} bytes are values");
    assert_eq!((library.get("copied"), library.get("crossed")), (2 * filled.len() as u64, 0));
    // A range that is no value may lie in two pieces.
    let across = client.key_for("cuda:0", (1 << 30) - 1, 2);
    assert_eq!(across.is_ok(), pieces == 1);
    if let Err(error) = across {
        let text = error.to_string();
        assert!(text.contains("straddle the edge of a chunk of cuda:0 at 1073741824"), "{text}");
    }
    drop((filled, client, server));
}

#[test]
fn a_gpu_copies_every_value_of_memory_that_is_longer_than_a_piece() {
    copy_all(NodeOptions::default().boundary, 3);
    // Memory without a boundary is registered in one piece.
    copy_all(kvmem_node::NO_BOUNDARY, 1);
}

#[test]
fn values_do_not_cross_the_boundary_after_a_restart() {
    let place = Place::new();
    let options = NodeOptions { boundary: 64 << 10, ..NodeOptions::default() };
    let node = Node::create(memory(BYTES), options).expect("possible");
    let server = NodeServer::bind(node, &place.socket(), ServerOptions::default());
    let server = server.expect("the socket is free");
    let files = server.descriptors().expect("there are descriptors");
    let mut held = RestartableServer { place, files, server: Some(Running::of(server)) };
    let client = held.connect(ClientRegistrars::default());
    let check = |client: &NodeClient| {
        assert_eq!(client.boundary(), Some(64 << 10));
        let made: Vec<_> = (0..BYTES)
            .map_while(|at| client.reserve(&[[20_001, 33_000, 9, 65_536][at % 4]]).ok())
            .flatten()
            .collect();
        assert!(made.len() > 20);
        for value in &made {
            let (start, len) = (value.offset(), value.bytes().len() as u64);
            assert_eq!(start >> 16, (start + len - 1) >> 16, "{start} {len}");
        }
        let error = client.reserve(&[65_537]).map(drop).expect_err("longer than the boundary");
        let ClientError::Call(error) = error else { panic!("{error}") };
        assert_eq!(error, CallError::BadLength { requested: 65_537, limit: 65_536 });
        assert!(error.to_string().contains("serve with a longer `boundary`"), "{error}");
    };
    check(&client);
    // The server that starts again has other options, and the memory has its boundary.
    held.restart();
    check(&client);
    // Memory that is not longer than the default boundary has none.
    assert_eq!(RestartableServer::start().connect(ClientRegistrars::default()).boundary(), None);
    for boundary in [1, 2048, 4097, 3 << 20] {
        let options = NodeOptions { boundary, ..NodeOptions::default() };
        let error = Node::create(memory(BYTES), options).expect_err("no power of two");
        assert!(error.to_string().contains(&format!("boundary is {boundary}: ")), "{error}");
    }
}

#[test]
fn locked_memory_is_a_registration_too() {
    let held = RestartableServer::start();
    match unlocked(&held) {
        Ok(client) => assert!(client.key_for("mlock", 0, BYTES as u64).is_ok()),
        Err(ClientError::Register(error)) => println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    }
}

fn unlocked(held: &RestartableServer) -> Result<NodeClient, ClientError> {
    let options = options(Mlock::new("mlock").into());
    // SAFETY: the only client is that of this test, which writes to its reservations alone.
    unsafe { NodeClient::connect(held.place.socket(), &options) }
}

/// The kernel writes a value to a file and reads one by the key alone, before and after a restart.
#[test]
fn rings_transfer_by_the_keys_of_a_client() {
    let Some(mut worker) = Worker::new() else { return };
    let ring: IoUring = worker.adopt(RingTable::New(16)).expect("a new ring");
    let mut held = RestartableServer::start();
    let client = held.connect(ring.into());
    let mut block = client.reserve(&[10_000]).expect("there is space").remove(0);
    let key = client.key_for("ring", block.offset(), 10_000).expect("it is registered");
    let at = |block: &mut [u8]| NonNull::new(block.as_mut_ptr()).expect("mapped");
    worker.prove(key, at(block.bytes_mut().expect("it is reserved")), 10_000);
    held.restart();
    client.keep_alive().expect("it connects again");
    assert_eq!(client.key_for("ring", block.offset(), 10_000).expect("it stays"), key);
    worker.prove(key, at(block.bytes_mut().expect("it is reserved")), 10_000);
    let written = block.bytes().to_vec();
    client.commit(vec![NewValue::new("key", block)]).expect("it is still reserved");
    let pins = client.acquire(&["key"]).expect("a call");
    assert_eq!(pins.value(0).expect("it was committed").bytes(), written);
    // Another engine reads what the ring has transferred.
    let other = held.connect(ClientRegistrars::default());
    let found = other.acquire(&["key"]).expect("a call");
    assert_eq!(found.value(0).expect("it was committed").bytes(), written);
}
