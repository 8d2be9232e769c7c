//! [`World`]: a node, its clients and its machine, and one step after the other.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::{Backing, PageSize, Region};
use kvmem::tier::Tier;
use kvmem_testkit::random::Random;
use kvmem_tier::device::Device;
use kvmem_tier::format::BLOCK;
use kvmem_tier::{DiskTier, DiskTierOptions, inspect};

use super::client::{Client, Life, take_back};
use super::config::Config;
use super::contents::{Contents, Moment};
use super::disk::Disk;
use super::environment;
use super::prefixes::{Prefixes, Seen};
use super::timed_tier::{Ends, TimedTier};
use super::wire::{ClientEnd, Wire};
use crate::node::{Node, NodeMemory, NodeOptions};
use crate::server::{Accepted, NodeServer};
use crate::socket::Peer;
use crate::test_stores::{Effect, effects_of};

/// The part of the world that clients reach.
#[derive(Debug)]
pub(super) struct Outside {
    pub(super) config: Config,
    pub(super) contents: Contents,
    pub(super) moment: Moment,
    /// Clients give back what they have.
    pub(super) winds_up: bool,
    listens: bool,
    backlog: VecDeque<Accepted>,
    wires: Vec<Wire>,
    last_wire: u64,
}

/// Steps without faults before the clients give back what they have.
const WINDING: u32 = 1000;

/// The group of all clients, which may connect if there are several users.
pub(super) const GROUP: u32 = 4000;

/// Names of the namespaces.
const NAMESPACES: [&str; 3] = ["alpha", "beta", ""];

impl Outside {
    pub(super) fn namespace(&self, number: usize) -> &'static str {
        NAMESPACES[number]
    }

    pub(super) fn now(&self) -> u64 {
        environment::time().as_millis() as u64
    }

    /// Connects a client to the server, if one listens.
    pub(super) fn connect(&mut self, client: &Client) -> Option<ClientEnd> {
        if !self.listens {
            return None;
        }
        self.last_wire += 1;
        let (wire, server, end) = Wire::new(self.last_wire, self.config.capacity);
        let descriptor = environment::open_process(client.pid).flatten();
        let peer = Peer {
            pid: client.pid,
            uid: client.uid,
            groups: vec![GROUP],
            process_id: if self.config.numbers { client.number } else { 0 },
            descriptor: descriptor.filter(|_| self.config.descriptors),
        };
        self.wires.push(wire);
        self.backlog.push_back((server, peer));
        Some(end)
    }
}

/// Counts of a history.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) steps: u64,
    pub(super) iterations: u64,
    pub(super) prefixes: u64,
    pub(super) server_kills: u64,
    pub(super) client_kills: u64,
    pub(super) simulated: Duration,
    /// Depends on all that has happened.
    pub(super) digest: u64,
}

/// A node and all around it.
pub(super) struct World {
    outside: Outside,
    server: Option<NodeServer>,
    next_tick: u64,
    /// Held for the next server.
    files: [OwnedFd; 3],
    prefixes: Prefixes,
    seen: Seen,
    clients: Vec<Client>,
    restart_at: u64,
    disk: Option<Disk>,
    /// When the values on the disk end.
    ends: Ends,
    /// Whether the disk has failed at times.
    disk_fails: bool,
    /// Whether a block of the journal was damaged since the server started. The last one cannot be
    /// told from one that was never written.
    is_journal_damaged: bool,
    /// Whether the tier has done something that the server does not know yet.
    woken: bool,
    /// The jobs of the tier may be done.
    has_jobs: bool,
    /// Whether anything may go wrong.
    faults: bool,
    pub(super) counts: Counts,
    /// The events so far, if a trace is wanted.
    pub(super) trace: Option<Vec<String>>,
}

impl World {
    pub(super) fn new(config: Config) -> World {
        environment::set_look(config.look);
        let (node, memory) = fresh(&config);
        let files = node.memory.descriptors().expect("there are descriptors");
        let prefixes = Prefixes::new(&node.memory, config.node.clone());
        let seen = Seen::of(&node);
        let disk = (config.disk_bytes > 0).then(|| Disk::new(config.disk_bytes, config.seed));
        let server = NodeServer::simulated(node, config.server.clone());
        let outside = Outside {
            contents: Contents::new(memory, config.disk_bytes == 0),
            config,
            moment: 0,
            winds_up: false,
            listens: true,
            backlog: VecDeque::new(),
            wires: Vec::new(),
            last_wire: 0,
        };
        let mut random = Random::new(outside.config.seed);
        let clients = 0..outside.config.clients;
        let clients = clients.map(|name| Client::new(name, &mut random, &outside)).collect();
        let mut world = World {
            outside,
            next_tick: server.first_tick(),
            server: Some(server),
            files,
            prefixes,
            seen,
            clients,
            restart_at: 0,
            disk,
            ends: Ends::default(),
            disk_fails: false,
            is_journal_damaged: false,
            woken: false,
            has_jobs: false,
            faults: true,
            counts: Counts::default(),
            trace: None,
        };
        world.attach_tier().expect("the disk is new");
        world
    }

    fn note(&mut self, actor: usize, what: impl FnOnce() -> String) {
        let mix =
            |digest: u64, part: u64| (digest ^ part).wrapping_mul(0x100_0000_01B3).rotate_left(23);
        let time = environment::time();
        self.counts.digest = mix(mix(self.counts.digest, time.as_nanos() as u64), actor as u64);
        if let Some(trace) = &mut self.trace {
            let actor = match actor {
                SERVER => "server".to_owned(),
                CLOCK => "clock".to_owned(),
                TIER => "tier".to_owned(),
                number => format!("client {number}"),
            };
            trace.push(format!("{:>14.5} s  {actor}: {}", time.as_secs_f64(), what()));
        }
    }

    /// Makes a step, whose choices depend on a number. Does nothing if the actor that the number
    /// chooses cannot act.
    pub(super) fn step(&mut self, choice: u64) -> Result<(), String> {
        let mut random = Random::new(choice);
        self.outside.moment += 1;
        if !self.is_anything_runnable() {
            self.pass_time()?;
        }
        if self.faults && random.once_in(self.outside.config.faults) && self.fault(&mut random)? {
            return Ok(());
        }
        environment::advance(Duration::from_micros(random.log_below(200)));
        let actors = self.clients.len() as u64;
        match random.below(actors * 2 + 1) {
            number if number < actors => self.step_client(number as usize, &mut random)?,
            number if number == actors => self.step_tier(&mut random)?,
            _ => self.step_server(&mut random)?,
        }
        self.check()
    }

    /// Ends the faults. From here on every call must be answered, and every client gives back what
    /// it has.
    pub(super) fn wind_up(&mut self, choices: &mut Random) -> Result<(), String> {
        self.faults = false;
        if let Some(disk) = &self.disk {
            heal(disk);
        }
        self.restart_at = self.restart_at.min(self.outside.now());
        for client in &mut self.clients {
            if matches!(client.life, Life::Stopped(_)) {
                client.life = Life::Runs;
            }
        }
        for round in 0.. {
            if round == WINDING {
                self.outside.winds_up = true;
                let now = self.outside.now();
                self.clients.iter_mut().for_each(|it| it.wind_up_soon(now));
            }
            if round > WINDING && self.clients.iter().all(Client::is_done) {
                break;
            }
            if round == 50 * WINDING {
                return Err(format!("clients do not come to an end: {:?}", self.clients));
            }
            self.step(choices.bits())?;
        }
        // The server learns of the last ends, and of time. Then the tier does its last jobs.
        for round in 0.. {
            if round >= 200 && !self.is_anything_runnable() {
                break;
            }
            if round == WINDING * 10 {
                return Err("the server does not come to rest".to_owned());
            }
            self.step(choices.bits())?;
        }
        let Some(server) = &mut self.server else { return Err("no server".to_owned()) };
        let node = server.node_mut();
        let (sessions, stats) = (node.sessions_left(), node.stats());
        if sessions > 0 || stats.reservations > 0 || stats.pinned > 0 {
            return Err(format!(
                "{sessions} sessions are left when all clients are gone: {stats:?}"
            ));
        }
        let align = self.outside.config.node.align;
        let values = node.found_values();
        let space: u64 = values.values().map(|it| it.len.next_multiple_of(align)).sum();
        if stats.used != space {
            return Err(format!("{} bytes are in use, and values have {space}", stats.used));
        }
        self.prefixes.compare(&node.memory);
        Ok(())
    }

    fn is_server_runnable(&self) -> bool {
        let Some(server) = &self.server else { return self.outside.now() >= self.restart_at };
        !self.outside.backlog.is_empty()
            || self.outside.wires.iter().any(|it| it.event().is_some() || it.has_rung())
            || server.waits(self.next_tick) == 0
            || self.woken
            || server.sees_an_end()
    }

    fn is_anything_runnable(&self) -> bool {
        let (now, listens) = (self.outside.now(), self.outside.listens);
        // The server's processes are looked at last: each is a system call.
        self.has_jobs
            || self.clients.iter().any(|it| it.is_runnable(now, listens))
            || self.is_server_runnable()
    }

    /// Lets time pass until something happens. Nothing may wait for an answer then, and the tier
    /// has all its jobs.
    fn pass_time(&mut self) -> Result<(), String> {
        let now = self.outside.now();
        if self.server.is_some()
            && let Some((client, call)) =
                self.clients.iter().find_map(|it| Some((it.name, it.waits_for()?)))
        {
            return Err(format!("client {client} waits for an answer that does not come: {call}"));
        }
        if self.server.as_ref().is_some_and(|it| it.node().has_jobs()) {
            return Err("the tier does not get its jobs".to_owned());
        }
        let server = match &self.server {
            Some(server) => now.saturating_add(server.waits(self.next_tick)),
            None => self.restart_at,
        };
        let clients = self.clients.iter().filter_map(Client::next_time);
        let next = clients.chain([server]).filter(|it| *it > now).min().unwrap_or(now + 1);
        let time = Duration::from_millis(next - now);
        environment::advance(time);
        if let Some(disk) = &self.disk {
            disk.pass(time);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.clients.iter().try_for_each(|it| it.check(&self.outside))
    }

    fn step_client(&mut self, number: usize, random: &mut Random) -> Result<(), String> {
        let (now, listens) = (self.outside.now(), self.outside.listens);
        if !self.clients[number].is_runnable(now, listens) {
            return Ok(());
        }
        self.counts.steps += 1;
        let what = self.clients[number].step(random, &mut self.outside)?;
        self.note(number, || what.into_owned());
        Ok(())
    }

    /// Lets something go wrong. Returns whether it did.
    fn fault(&mut self, random: &mut Random) -> Result<bool, String> {
        let now = self.outside.now();
        let number = random.below(self.clients.len() as u64) as usize;
        let client = &mut self.clients[number];
        let runs = client.life == Life::Runs;
        match random.below(11) {
            0 if runs => {
                client.life = Life::Ends(0);
                self.counts.client_kills += 1;
                self.note(number, || "is killed".to_owned());
            }
            1 | 2 if runs => {
                let lease = self.outside.config.server.lease.as_millis() as u64;
                client.life = Life::Stopped(now + random.log_below(lease * 4));
                self.note(number, || "is stopped".to_owned());
            }
            3 if runs && client.has_link() => {
                client.lose_link();
                self.note(number, || "cuts its connection".to_owned());
            }
            4 => {
                environment::suspend(Duration::from_millis(random.log_below(7_200_000)));
                self.note(CLOCK, || "steps".to_owned());
            }
            5 if self.server.is_some() => self.stop_server(random)?,
            6 if self.server.is_some() => {
                let node = self.server.as_ref().map(NodeServer::node).expect("it runs");
                self.prefixes.compare(&node.memory);
                self.end_server(random, "is killed");
            }
            7 | 8 => {
                let Some(disk) = &self.disk else { return Ok(false) };
                self.disk_fails = true;
                let fault = DiskFault::choose(random);
                self.is_journal_damaged |= fault.damages_journal(disk);
                fault.happen(disk, random);
                self.note(TIER, || format!("{fault:?}"));
            }
            9 if self.disk.is_some() && random.once_in(4) => self.cut_power(random),
            _ => return Ok(false),
        }
        self.counts.steps += 1;
        Ok(true)
    }

    fn step_server(&mut self, random: &mut Random) -> Result<(), String> {
        if !self.is_server_runnable() {
            return Ok(());
        }
        self.counts.steps += 1;
        if self.server.is_none() {
            return self.start_server(random);
        }
        self.counts.iterations += 1;
        (self.woken, self.has_jobs) = (false, self.disk.is_some());
        let wires = &mut self.outside.wires;
        wires.retain(|it| !it.is_over());
        let packets: Vec<u32> = wires.iter().filter_map(Wire::event).collect();
        let packets: Vec<u32> = packets.into_iter().filter(|_| !random.once_in(8)).collect();
        let bells: Vec<u32> = wires.iter().filter_map(Wire::take_bell).collect();
        let accepted: Vec<Accepted> = self.outside.backlog.drain(..).collect();
        let server = self.server.as_mut().expect("it runs");
        let next_tick = &mut self.next_tick;
        let (ended, effects) =
            effects_of(|| server.iteration(accepted, &packets, &bells, next_tick));
        self.note(SERVER, || format!("serves {packets:?}, {bells:?}: {} effects", effects.len()));
        let killed = self.faults && random.once_in(self.outside.config.kills);
        self.follow(&effects)?;
        if killed {
            let end = random.below(effects.len() as u64 + 1) as usize;
            self.kill_server(&effects[end..], random);
        } else if ended {
            self.finish_server(random)?;
        }
        Ok(())
    }

    /// Lets a thread of the tier do its next job.
    fn step_tier(&mut self, random: &mut Random) -> Result<(), String> {
        let Some(server) = self.server.as_mut().filter(|_| self.has_jobs) else { return Ok(()) };
        let workers = server.workers();
        self.has_jobs = false;
        if workers.is_empty() {
            return Ok(());
        }
        let first = random.below(workers.len() as u64) as usize;
        let torn = self.faults && random.once_in(200);
        if let Some(disk) = self.disk.as_ref().filter(|_| torn) {
            disk.end_after(1 + random.below(8));
        }
        let (before, after) = workers.split_at_mut(first);
        let did = after.iter_mut().chain(before).any(|worker| worker.step());
        if did {
            (self.has_jobs, self.woken) = (true, true);
            self.counts.steps += 1;
            self.note(TIER, || "does a job".to_owned());
        }
        if torn {
            self.end_server(random, "is killed in the middle of a job");
        }
        Ok(())
    }

    /// Opens the tier on the disk, if there is one. A disk that cannot be read is replaced by a new
    /// one.
    fn attach_tier(&mut self) -> Result<(), String> {
        let Some(disk) = self.disk.clone() else { return Ok(()) };
        let config = &self.outside.config;
        let options = DiskTierOptions {
            max_entries: Some(128),
            journal_bytes: Some(16 << 10),
            ..DiskTierOptions::default()
        };
        let opened = DiskTier::on(disk.clone(), &options).or_else(|error| {
            if !self.disk_fails {
                return Err(format!("the disk has not failed: {error}"));
            }
            heal(&disk);
            let options = DiskTierOptions { format: true, ..options };
            DiskTier::on(disk, &options).map_err(|error| error.to_string())
        });
        let (tier, ends) = (opened?.0, Arc::clone(&self.ends));
        let tier: Arc<dyn Tier> = Arc::new(TimedTier { tier, ends });
        let server = self.server.as_mut().expect("it runs");
        let attach = || server.attach_simulated(tier, config.store_above);
        let (attached, effects) = effects_of(attach);
        self.follow(&effects)?;
        match attached {
            Err(error) if !self.disk_fails => return Err(error.to_string()),
            // It serves without a tier.
            attached => self.note(TIER, || format!("attached: {attached:?}")),
        }
        self.has_jobs = true;
        Ok(())
    }

    /// Cuts the power of the machine: only the disk has what it had, and not all of it.
    fn cut_power(&mut self, random: &mut Random) {
        let now = self.outside.now();
        self.clients.iter_mut().for_each(|it| it.cut_power(now));
        self.end_server(random, "has no power");
        if let Some(disk) = &self.disk {
            disk.cut_power();
        }
        let (node, memory) = fresh(&self.outside.config);
        self.files = node.memory.descriptors().expect("there are descriptors");
        self.prefixes = Prefixes::new(&node.memory, self.outside.config.node.clone());
        self.prefixes.checked = self.counts.prefixes;
        self.seen = Seen::of(&node);
        self.outside.contents.cut_power(memory, self.disk_fails);
    }

    /// Checks the node after effects of its server, and each prefix of them.
    fn follow(&mut self, effects: &[Effect]) -> Result<(), String> {
        let server = self.server.take().expect("it runs");
        let followed = self.follow_node(effects, server.node());
        self.server = Some(server);
        followed
    }

    fn follow_node(&mut self, effects: &[Effect], node: &Node) -> Result<(), String> {
        node.check()?;
        let mix = |effect: &Effect| match effect {
            Effect::Index { after, .. } => *after,
            Effect::Word { after, .. } => after ^ 1,
            Effect::Memory { before, .. } => before.len() as u64,
            Effect::Packet { socket } => *socket,
        };
        for effect in effects {
            let digest = (self.counts.digest ^ mix(effect)).wrapping_mul(0x100_0000_01B3);
            self.counts.digest = digest.rotate_left(17);
        }
        let is_store = |it: &Effect| matches!(it, Effect::Index { .. } | Effect::Word { .. });
        if effects.iter().any(is_store) {
            let after = Seen::of(node);
            let before = std::mem::replace(&mut self.seen, after);
            self.prefixes.check(effects, &before, &self.seen)?;
            self.counts.prefixes = self.prefixes.checked;
        }
        Ok(())
    }

    /// Kills the server before some of its last effects.
    fn kill_server(&mut self, not_yet: &[Effect], random: &mut Random) {
        let server = self.server.as_ref().expect("it runs");
        let rings = server.ring_memory();
        let words = server.node().memory.session_file.base();
        // Messages in the ring of a closed connection cannot be taken back.
        self.clients.iter_mut().filter(|it| it.wire_has_ended()).for_each(Client::lose_ring);
        let is_there = |it: &&Effect| match it {
            Effect::Word { address, .. } => {
                rings.iter().any(|ring| ring.contains(address))
                    || (words..words + 4096).contains(address)
            }
            _ => true,
        };
        let stores: Vec<Effect> = not_yet.iter().filter(is_there).cloned().collect();
        take_back(&stores);
        self.prefixes.take_back(not_yet);
        for effect in not_yet.iter().rev() {
            if let Effect::Packet { socket } = effect
                && let Some(wire) = self.outside.wires.iter().find(|it| it.number() == *socket)
            {
                wire.unsend();
            }
        }
        self.seen = self.prefixes.found();
        self.counts.server_kills += 1;
        self.end_server(random, "is killed");
    }

    fn stop_server(&mut self, random: &mut Random) -> Result<(), String> {
        let server = self.server.as_mut().expect("it runs");
        let (ended, effects) = effects_of(|| server.stop_simulated());
        self.note(SERVER, || "is stopped".to_owned());
        self.outside.listens = false;
        self.outside.backlog.clear();
        self.follow(&effects)?;
        if ended {
            self.finish_server(random)?;
        }
        Ok(())
    }

    /// Ends a server that has no work left.
    fn finish_server(&mut self, random: &mut Random) -> Result<(), String> {
        let server = self.server.take().expect("it runs");
        let (node, effects) = effects_of(|| server.end_simulated());
        self.follow_node(&effects, &node)?;
        drop(node);
        self.end_server(random, "has ended");
        Ok(())
    }

    /// The server is gone, and its connections are closed.
    fn end_server(&mut self, random: &mut Random, how: &str) {
        self.note(SERVER, || how.to_owned());
        if let Some(disk) = &self.disk {
            // The jobs that are left fail.
            disk.end();
        }
        self.server = None;
        if let Some(disk) = &self.disk {
            disk.restart();
        }
        (self.has_jobs, self.woken) = (false, false);
        self.outside.listens = false;
        self.outside.backlog.clear();
        let away = if random.once_in(8) { 600_000 } else { 2000 };
        self.restart_at = self.outside.now() + random.log_below(away);
    }

    /// Starts the next server. Each prefix of the stores of its recovery is checked, too.
    fn start_server(&mut self, random: &mut Random) -> Result<(), String> {
        let duplicate = |file: &OwnedFd| file.try_clone().expect("there are descriptors");
        let files = self.files.each_ref().map(duplicate);
        let memory = NodeMemory::attach(files, 0).map_err(|error| error.to_string())?;
        self.prefixes.compare(&memory);
        self.prefixes.follow(&memory);
        let size = self.outside.config.a_size(random);
        let options = NodeOptions { size, ..self.outside.config.node.clone() };
        let (recovered, effects) = effects_of(|| Node::recover_mapped(memory, options));
        let (node, report) = recovered.map_err(|error| error.to_string())?;
        if report.damaged > 0 {
            return Err(format!("damaged entries: {report:?}"));
        }
        let found = node.found_values();
        if found != self.seen.values {
            return Err(format!("{:?} were there, and {found:?} are", self.seen.values));
        }
        self.follow_node(&effects, &node)?;
        if std::mem::take(&mut self.is_journal_damaged) {
            self.outside.contents.lose_journal();
        }
        let server = NodeServer::simulated(node, self.outside.config.server.clone());
        self.next_tick = server.first_tick();
        self.server = Some(server);
        self.outside.listens = true;
        self.note(SERVER, || format!("starts: {report:?}"));
        self.attach_tier()
    }
}

/// Numbers of actors that are no clients.
const SERVER: usize = usize::MAX;
const CLOCK: usize = usize::MAX - 1;
const TIER: usize = usize::MAX - 2;

/// Makes a node of memory that nobody has used, and maps the memory once more.
fn fresh(config: &Config) -> (Node, Arc<Region>) {
    let builder = Region::builder(config.memory_bytes).backing(Backing::Shared);
    let bytes = builder.ladder(PageSize::Base).map().expect("memory can be mapped");
    let file = bytes.share().expect("there are descriptors").expect("it is shared");
    let node = Node::create(bytes, config.node.clone()).expect("the options are possible");
    (node, Arc::new(Region::attach(file, None).expect("memory can be mapped")))
}

/// What happens to a disk.
#[derive(Clone, Copy, Debug)]
enum DiskFault {
    /// One transfer in a number fails from now on; 0: none does.
    Fails(u64),
    /// Bits of the memory of reads flip.
    Flips,
    /// A sector rots.
    Rots(u64),
    /// What was written to a sector lies in another one.
    Misdirects(u64, u64),
    /// There is no space for what is written to the second half.
    NoSpace,
    SyncsFail(bool),
}

impl DiskFault {
    fn choose(random: &mut Random) -> DiskFault {
        match random.below(8) {
            0 => DiskFault::Fails(1 + random.below(50)),
            1 | 2 => DiskFault::Fails(0),
            3 => DiskFault::Flips,
            4 => DiskFault::Rots(random.bits()),
            5 => DiskFault::Misdirects(random.bits(), random.bits()),
            6 => DiskFault::NoSpace,
            _ => DiskFault::SyncsFail(random.once_in(2)),
        }
    }

    /// Returns whether it damages a block of a journal.
    fn damages_journal(self, disk: &Disk) -> bool {
        let (DiskFault::Rots(at) | DiskFault::Misdirects(_, at)) = self else { return false };
        let first = sector(disk, at).start;
        match inspect(disk).map(|it| it.contents) {
            Ok(Ok(contents)) => contents
                .superblock
                .layout
                .journals
                .iter()
                .any(|it| (it.start..it.start + it.blocks() * BLOCK as u64).contains(&first)),
            // It cannot be read now.
            _ => true,
        }
    }

    fn happen(self, disk: &Disk, random: &mut Random) {
        let len = disk.len();
        let sector = |number| sector(disk, number);
        match self {
            DiskFault::Fails(n) => disk.fail_once_in(n),
            DiskFault::Flips => disk.flip_reads(1 + random.below(4)),
            DiskFault::Rots(at) => disk.falsify(sector(at), |bytes| {
                bytes[random_at(at, bytes.len())] ^= 1 << (at % 8);
            }),
            DiskFault::Misdirects(from, to) => {
                let (from, bytes) = (sector(from), disk.bytes());
                let moved = &bytes[from.start as usize..from.end as usize];
                disk.falsify(sector(to), |bytes| bytes.copy_from_slice(moved));
            }
            DiskFault::NoSpace if random.once_in(2) => disk.fail_at(len / 2..len, libc::ENOSPC),
            DiskFault::NoSpace => disk.fail_at(0..0, libc::ENOSPC),
            DiskFault::SyncsFail(fail) => disk.fail_syncs(fail),
        }
    }
}

/// Returns the bytes of a sector.
fn sector(disk: &Disk, number: u64) -> std::ops::Range<u64> {
    let first = number % (disk.len() / 512) * 512;
    first..first + 512
}

/// Ends the faults of a disk.
fn heal(disk: &Disk) {
    disk.restart();
    disk.fail_at(0..0, 0);
    disk.fail_syncs(false);
}

fn random_at(number: u64, len: usize) -> usize {
    (number >> 8) as usize % len
}
