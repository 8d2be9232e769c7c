//! Registrars of a client: its devices reach the memory of the node, also when the server restarts.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use kvmem::register::cuda::Cuda;
use kvmem::register::verbs::Verbs;
use kvmem::register::{IoUring, Mlock, RegisterError, Registrar, RingTable};
use kvmem_node::{
    CallError, ClientError, ClientRegistrars, ConnectOptions, Node, NodeClient, NodeOptions,
    NodeServer, ServerOptions,
};

use crate::fixed::Worker;
use crate::standin::StandIn;
use crate::support::{Place, Running, connect_with, memory};

/// A limit of 8 MiB on pinned memory holds for all rings of the user.
const BYTES: usize = 1 << 20;

/// A server whose memory outlives it.
struct Kept {
    place: Place,
    files: [OwnedFd; 3],
    server: Option<Running>,
}

impl Kept {
    fn start() -> Kept {
        let place = Place::new();
        let node = Node::create(memory(BYTES), NodeOptions::default()).expect("possible");
        let server = NodeServer::bind(node, &place.socket(), ServerOptions::default());
        let server = server.expect("the socket is free");
        let files = server.descriptors().expect("there are descriptors");
        Kept { place, files, server: Some(Running::of(server)) }
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
    let mut kept = Kept::start();
    let client = kept.connect(nics);
    client.insert("key", &[7; 9000]).expect("there is space");
    let pins = client.acquire(&["key"]).expect("a call");
    let offset = pins.value(0).expect("it was inserted").offset();
    let keys = |client: &NodeClient| {
        ["mlx5_0", "mlx5_1"].map(|nic| client.key_for(nic, offset, 9000).expect("registered"))
    };
    let before = keys(&client);
    assert!(before[0].rkey.is_some() && before[0] != before[1]);
    let registered = library.calls("ibv_reg_mr");
    kept.restart();
    assert_eq!(client.lookup(&["key"]).expect("it connects again"), 1);
    assert_eq!((keys(&client), library.calls("ibv_reg_mr")), (before, registered));
    let registration = client.registration().expect("it has registrars");
    assert_eq!(registration.region().base().as_ptr().cast_const(), client.memory().0);
    let unknown = client.key_for("cuda:0", offset, 9000).expect_err("it has none");
    assert!(matches!(*registering(unknown), RegisterError::NoSuchDevice { .. }));
    let behind = client.key_for("mlx5_0", BYTES as u64, 1).expect_err("it ends there");
    assert!(matches!(*registering(behind), RegisterError::OutOfBounds { .. }));
    // Pins keep the registration: a transfer may be under way.
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
    let kept = Kept::start();
    let observer = kept.connect(ClientRegistrars::default());
    let sessions_end = || {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while observer.stats().expect("a call").sessions != 1 {
            assert!(std::time::Instant::now() < deadline, "a session stays");
            std::thread::yield_now();
        }
    };
    library.fail("ibv_reg_mr", 2, 100, libc::ENOMEM);
    let open = |name| Arc::new(verbs.open(name).expect("a device")) as Arc<dyn Registrar>;
    let nics = ClientRegistrars(vec![open("mlx5_0"), open("mlx5_1")]);
    let error = kept.fail_to_connect(&options(nics.clone()));
    assert!(matches!(*registering(error), RegisterError::ChunkFailed { .. }));
    assert_eq!(library.get("live_regions"), 0);
    sessions_end();
    // A device may write, and this client may not.
    let error = kept.fail_to_connect(&ConnectOptions { read_only: true, ..options(nics) });
    assert!(matches!(error, ClientError::Call(CallError::ReadOnly)), "{error}");
    sessions_end();
    assert!(observer.registration().is_none());
}

#[test]
fn a_gpu_pins_the_memory_again_in_the_next_engine() {
    let library = StandIn::new("cuda", &[]);
    // SAFETY: the stand-in has the types of the driver.
    let cuda = unsafe { Cuda::load_from(library.path()) }.expect("compiled just now");
    let kept = Kept::start();
    for _ in 0..2 {
        let client = kept.connect(cuda.open(0).expect("there are two").into());
        let key = client.key_for("cuda:0", 4096, 100).expect("it is registered");
        assert!(key.handle != 0 && library.get("live_ranges") > 0);
        drop(client);
        assert_eq!((library.get("live_ranges"), library.get("misuse")), (0, 0));
    }
}

#[test]
fn locked_memory_is_a_registration_too() {
    let kept = Kept::start();
    match unlocked(&kept) {
        Ok(client) => assert!(client.key_for("mlock", 0, BYTES as u64).is_ok()),
        Err(ClientError::Register(error)) => println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    }
}

fn unlocked(kept: &Kept) -> Result<NodeClient, ClientError> {
    let options = options(Mlock::new("mlock").into());
    // SAFETY: the only client is that of this test, which writes to its reservations alone.
    unsafe { NodeClient::connect(kept.place.socket(), &options) }
}

/// The kernel writes a value to a file and reads one by the key alone, before and after a restart.
#[test]
fn rings_transfer_by_the_keys_of_a_client() {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut worker) = Worker::new() else { return };
    let ring: IoUring = worker.adopt(RingTable::New(16)).expect("a new ring");
    let mut kept = Kept::start();
    let client = kept.connect(ring.into());
    let mut block = client.reserve(&[10_000]).expect("there is space").remove(0);
    let key = client.key_for("ring", block.offset(), 10_000).expect("it is registered");
    let at = |block: &mut [u8]| NonNull::new(block.as_mut_ptr()).expect("mapped");
    worker.prove(key, at(block.bytes_mut().expect("it is reserved")), 10_000);
    kept.restart();
    client.keep_alive().expect("it connects again");
    assert_eq!(client.key_for("ring", block.offset(), 10_000).expect("it stays"), key);
    worker.prove(key, at(block.bytes_mut().expect("it is reserved")), 10_000);
    let written = block.bytes().to_vec();
    client.commit(vec![("key", block)]).expect("the reservation is kept");
    let pins = client.acquire(&["key"]).expect("a call");
    assert_eq!(pins.value(0).expect("it was committed").bytes(), written);
    // Another engine reads what the ring has transferred.
    let other = kept.connect(ClientRegistrars::default());
    let found = other.acquire(&["key"]).expect("a call");
    assert_eq!(found.value(0).expect("it was committed").bytes(), written);
}
