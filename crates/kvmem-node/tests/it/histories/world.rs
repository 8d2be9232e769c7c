//! [`World`]: a server, its clients, and the model of what they do.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use kvmem_node::format::ENTRY_BYTES;
use kvmem_node::{
    ConnectOptions, EventKind, NamespaceLimits, NamespaceStats, Node, NodeClient, NodeOptions,
    NodeServer, ServerOptions,
};
use kvmem_testkit::random::Random;

use super::client::{Client, Done};
use super::model::{Explained, Model, Session, SessionId};
use crate::support::{Place, Running, connect_with, memory, wait_for};

/// Clients of this process, apart from the one that observes.
const CLIENTS: u64 = 4;

/// Calls of a history.
const STEPS: u64 = 250;

/// The namespaces. The second one has limits of bytes and of pins, and the third one a large share.
const NAMESPACES: [&str; 3] = ["", "limited", "large"];

pub(super) struct World {
    pub(super) seed: u64,
    pub(super) random: Random,
    place: Place,
    pub(super) options: NodeOptions,
    /// The length of the memory file.
    pub(super) len: u64,
    /// The memory, the index and the sessions, which outlive the servers.
    files: [OwnedFd; 3],
    /// `None` while no server runs.
    server: Option<Running>,
    pub(super) model: Model,
    /// The client that reads events and statistics.
    pub(super) observer: NodeClient,
    /// The position of the next event.
    position: u64,
    pub(super) clients: Vec<Client>,
    pub(super) done: Done,
    sessions: SessionId,
    step: u64,
    /// The call that is made now.
    pub(super) call: String,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let World { seed, step, call, done, .. } = self;
            eprintln!("history of KVMEM_TEST_SEED={seed}, step {step}: {call}; {done:?}");
        }
    }
}

fn options(random: &mut Random) -> NodeOptions {
    let max_bytes = 40_000 + random.below(60_000);
    let max_pinned_bytes = 30_000 + random.below(30_000);
    let limits = NamespaceLimits { max_bytes, max_pins: 6, max_pinned_bytes, share: 1 };
    let large = NamespaceLimits { share: 3, ..NamespaceLimits::default() };
    // Without limits of sessions, the memory is full of what nobody may evict.
    let limited = !random.once_in(3);
    let mut limit = |from: u64, to: u64| if limited { from + random.below(to) } else { u64::MAX };
    let max_reserved_per_session = limit(60_000, 160_000);
    let max_handles_per_session = limit(12, 32) as usize;
    let max_pinned_bytes_per_session = limit(60_000, 120_000);
    NodeOptions {
        max_blocks: Some(20 + random.below(40) as u32),
        align: [64, 4096][random.below(2) as usize],
        max_reserved_per_session,
        max_handles_per_session,
        max_pinned_bytes_per_session,
        limits: vec![(NAMESPACES[1].to_owned(), limits), (NAMESPACES[2].to_owned(), large)],
        ..NodeOptions::default()
    }
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let place = Place::new();
        let options = options(&mut random);
        let bytes = (64 + 48 * random.below(5) as usize) << 10;
        let node = Node::create(memory(bytes), options.clone()).expect("the options are possible");
        let server = NodeServer::bind(node, &place.socket(), ServerOptions::default());
        let server = server.expect("the socket is free");
        let files = server.descriptors().expect("there are descriptors");
        let server = Running::of(server);
        let mut model = Model::new(options.clone(), bytes as u64);
        let observer = connect_with(&place.socket(), &ConnectOptions::default());
        model.namespace(NAMESPACES[0]);
        model.sessions.insert(0, Session::default());
        let mut world = World {
            seed,
            random,
            place,
            options,
            len: bytes as u64,
            files,
            server: Some(server),
            model,
            observer,
            position: 0,
            clients: Vec::new(),
            done: Done::default(),
            sessions: 0,
            step: 0,
            call: "the start".to_owned(),
        };
        (0..CLIENTS).for_each(|number| world.connect(number));
        world.events().end(&mut world.model);
        world
    }

    fn new_session(&mut self, namespace: usize, read_only: bool) -> SessionId {
        self.sessions += 1;
        let session = Session { namespace, read_only, ..Session::default() };
        self.model.sessions.insert(self.sessions, session);
        self.sessions
    }

    /// Connects a client. The first ones write, each in a namespace of its own, so all namespaces
    /// exist.
    fn connect(&mut self, number: u64) {
        let name = match NAMESPACES.get(number as usize) {
            Some(name) => name,
            None => NAMESPACES[self.random.below(3) as usize],
        };
        let read_only = number >= 3 && self.random.once_in(3);
        let checksums = self.seed.is_multiple_of(2);
        let options = ConnectOptions {
            namespace: name.to_owned(),
            read_only,
            rings: self.random.once_in(2),
            // A client that verifies finds no value without a checksum.
            checksums,
            verify: checksums && self.random.once_in(2),
            populate: self.random.once_in(4),
            ..ConnectOptions::default()
        };
        let client = connect_with(&self.place.socket(), &options);
        let namespace = self.model.namespace(name);
        let session = self.new_session(namespace, read_only);
        self.clients.push(Client { client, session, held: Vec::new(), writing: Vec::new() });
    }

    pub(super) fn run(mut self) -> Done {
        for step in 1..=STEPS {
            (self.step, self.done.steps) = (step, self.done.steps + 1);
            self.any_call();
            self.check();
        }
        self.call = "the end".to_owned();
        self.leave_all();
        self.check();
        self.observer.as_operator().evict(None, u64::MAX).expect("an operator");
        let stats = self.observer.stats().expect("a call");
        assert_eq!((stats.used, stats.values, stats.largest_free), (0, 0, stats.capacity));
        let node = self.server.take().expect("it runs").stop();
        node.check().expect("the invariants hold");
        self.done
    }

    /// Returns the events since the last time.
    pub(super) fn events(&mut self) -> Explained {
        let mut all = Vec::new();
        loop {
            let found = self.observer.events(self.position, 512, Duration::ZERO).expect("a call");
            assert!(!found.lost, "events are lost");
            self.position = found.next;
            if found.events.is_empty() {
                break;
            }
            all.extend(found.events);
        }
        let of = |kind| all.iter().filter(|event| event.kind == kind).count() as u64;
        self.done.evicted += of(EventKind::Evicted);
        self.done.removed += of(EventKind::Removed);
        self.done.replaced += of(EventKind::Replaced);
        Explained::new(all)
    }

    /// Compares the statistics and the lists of the server with the model, and bytes with what was
    /// written.
    fn check(&mut self) {
        let stats = loop {
            self.events().end(&mut self.model);
            let stats = self.observer.stats().expect("a call");
            // A value whose time is over may go meanwhile.
            let later = self.events();
            let is_still = later.is_empty();
            later.end(&mut self.model);
            if is_still {
                break stats;
            }
        };
        let model = &self.model;
        assert_eq!(stats.used, model.space.allocated());
        assert_eq!(stats.largest_free, model.space.largest_free());
        assert_eq!(stats.sessions, model.sessions.len() as u64);
        let reservations = || model.sessions.values().flat_map(|it| it.reservations.values());
        assert_eq!(stats.reservations, reservations().count() as u64);
        assert_eq!(stats.reserved_bytes, reservations().sum::<u64>());
        assert_eq!((stats.fenced_bytes, stats.damaged_total), (0, 0));
        assert_eq!(stats.dead_bytes, model.dead_bytes());
        for (number, found) in stats.namespaces.iter().enumerate() {
            let expected = &model.namespaces[number];
            let (pinned, pinned_bytes) = model.pinned_in(number);
            assert_eq!((&*found.name, found.bytes), (expected.name, expected.bytes));
            assert_eq!((found.pinned, found.pinned_bytes), (pinned, pinned_bytes));
            assert!(found.bytes <= expected.limits.max_bytes);
            let counts = |it: &NamespaceStats| {
                let hits = [it.hits, it.misses, it.evicted_unused_total];
                let reasons = [it.never_stored_misses, it.evicted_misses, it.expired_misses];
                (hits, reasons, it.removed_misses)
            };
            assert_eq!(counts(found), counts(&expected.counts));
            let hits = [found.hits_at_half, found.hits, found.hits_at_2, found.hits_at_4];
            assert!(hits.is_sorted() && hits[3] <= found.hits_at_8, "{found:?}");
            assert!(found.hits_at_8 <= found.keys, "{found:?}");
        }
        if self.random.once_in(8) {
            self.check_list();
        }
        for client in &self.clients {
            client.held.iter().filter(|_| self.random.once_in(4)).for_each(|held| held.check());
        }
    }

    fn check_list(&mut self) {
        let (listed, next) = self.observer.as_operator().list(0, 512).expect("a call");
        self.events().end(&mut self.model);
        assert_eq!(next, None);
        let mut expected: HashMap<(&str, &Vec<u8>), _> = HashMap::new();
        for (key, id) in self.model.committed() {
            let block = &self.model.blocks[&id];
            expected.insert((self.model.namespaces[block.namespace].name, key), block);
        }
        for one in &listed {
            // The time of a value may have been over after it was listed.
            let Some(block) = expected.remove(&(&*one.namespace, &one.key)) else { continue };
            assert_eq!((one.len, one.pins as usize), (block.len, block.pinned_by));
            assert_eq!(usize::from(one.priority), block.priority);
        }
        assert!(expected.is_empty(), "values are not listed: {expected:?}");
    }

    /// Reads the offsets of all values in the index file, by namespace and key.
    pub(super) fn offsets(&self) -> HashMap<(usize, Vec<u8>), u64> {
        const COMMITTED: u8 = 3;
        let index = File::from(self.files[1].try_clone().expect("there are descriptors"));
        let most = self.options.max_blocks.expect("it is set") as usize;
        let mut entries = vec![0; most * ENTRY_BYTES];
        index.read_exact_at(&mut entries, 64 << 10).expect("the file is as long");
        let committed = entries.chunks_exact(ENTRY_BYTES).filter(|it| it[0] == COMMITTED);
        let entry = |it: &[u8]| {
            let offset = u64::from_le_bytes(it[8..16].try_into().expect("eight bytes"));
            let namespace = u16::from_le_bytes(it[36..38].try_into().expect("two bytes"));
            ((namespace.into(), it[64..64 + usize::from(it[1])].to_vec()), offset)
        };
        committed.map(entry).collect()
    }

    /// Stops the server, lets clients drop some of what they have, and starts another one over the
    /// same memory.
    pub(super) fn restart(&mut self) {
        self.call = "a restart".to_owned();
        self.done.restarts += 1;
        self.model.restart();
        let node = self.server.take().expect("it runs").stop();
        node.check().expect("the invariants hold");
        drop(node);
        // The order in which one client's values are released then is not known, so it is one.
        let mut dropped = Vec::new();
        for client in &mut self.clients {
            if let Some(last) = client.held.pop_if(|held| held.pinned().len() <= 1) {
                dropped.push((client.session, last.pinned()));
            }
            if let Some(last) = client.writing.pop_if(|_| self.random.once_in(2)) {
                dropped.push((client.session, last.iter().map(|(_, id)| *id).collect()));
            }
        }
        let files = self.files.each_ref().map(|it| it.try_clone().expect("there are descriptors"));
        let (node, report) =
            Node::recover(files, self.options.clone()).expect("the index is whole");
        node.check().expect("the invariants hold");
        assert_eq!(report.values, self.model.committed().count() as u64);
        assert_eq!(report.orphaned_sessions, self.model.sessions.len() as u64);
        assert_eq!((report.damaged, report.completed, report.freed_reservations), (0, 0, 0));
        self.server = Some(Running::start(node, &self.place.socket(), ServerOptions::default()));
        let found = self.observer.events(self.position, 512, Duration::ZERO).expect("a call");
        assert!(found.lost, "the events are those of another server");
        self.position = 0;
        let size = self.options.size.min(self.len);
        wait_for("the pages come", || self.observer.stats().expect("a call").capacity == size);
        // The clients return.
        for number in 0..self.clients.len() {
            let client = &self.clients[number];
            client.client.keep_alive().expect("the server is there");
            let session = client.session;
            for (_, ids) in dropped.iter().filter(|(of, _)| *of == session) {
                self.model.release(session, ids);
            }
        }
    }

    /// Waits until the server has as many sessions as the model.
    pub(super) fn wait_for_sessions(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let expected = self.model.sessions.len() as u64;
        while self.observer.stats().expect("a call").sessions != expected {
            assert!(Instant::now() < deadline, "a session stays");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A client releases what it has, says goodbye, and another one comes.
    pub(super) fn replace_client(&mut self, number: usize) {
        self.leave(number);
        // The first ones write to their namespaces again.
        let place = self.random.below(5);
        self.connect(place);
    }

    fn leave(&mut self, number: usize) {
        let Client { client, session, held, writing } = self.clients.swap_remove(number);
        self.done.left += 1;
        for held in held {
            let ids = held.pinned();
            drop(held);
            self.model.release(session, &ids);
        }
        writing.into_iter().flatten().for_each(|(block, id)| {
            drop(block);
            self.model.release(session, &[id]);
        });
        drop(client);
        self.model.end_session(session);
        self.wait_for_sessions();
    }

    fn leave_all(&mut self) {
        while !self.clients.is_empty() {
            self.leave(0);
        }
    }
}
