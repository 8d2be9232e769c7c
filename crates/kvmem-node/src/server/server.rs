//! [`NodeServer`]: the loop.

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use kvmem::tier::Tier;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, bind, listen};

use super::access::AccessRules;
use super::closer::{ClosingThreads, pass_descriptors};
use super::connection::AcceptedConnection;
use super::deferred::{ClearingFor, Deferred, Evicting, WaitingForSpace};
use super::drain::Drain;
use super::event_source::EventSource;
use super::latency::Latency;
use super::pressure::Pressure;
use super::publishing::Publishing;
use super::quantum::Quantum;
use super::ready::{Ready, Source};
use super::resize::WaitingForSize;
use super::scrubber::Scrubber;
use super::{NodeObserver, ServerOptions};
use crate::error::NodeError;
use crate::node::{BlockHandle, Evicted, Node, ResizeStep, SessionIndex, Waiting};
use crate::protocol::MAX_MESSAGE;
use crate::socket::{self, has_ended, instant, now_ms, open_process, process_id};
use crate::tier::{TierOptions, TierThreads};

/// The file of a socket, which is removed when the value is dropped.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Serves a [`Node`] on a Unix socket, in the thread that [runs](Self::run) it.
#[derive(Debug)]
pub struct NodeServer {
    pub(super) node: Node,
    pub(super) options: ServerOptions,
    pub(super) access: AccessRules,
    /// `None` when the server ends.
    pub(super) listener: Option<OwnedFd>,
    pub(super) epoll: OwnedFd,
    pub(super) stop: Arc<OwnedFd>,
    /// `None`: the kernel takes no descriptors from clients.
    pub(super) closing_threads: Option<Arc<ClosingThreads>>,
    /// The work that remains before the end.
    pub(super) drain: Option<Drain>,
    pub(super) connections: HashMap<u32, AcceptedConnection, FixedState>,
    /// Descriptors of the processes of sessions. Each is that of the session's client for certain.
    pub(super) processes: HashMap<usize, OwnedFd>,
    pub(super) next_key: u32,
    pub(super) expire_from: u32,
    pub(super) message_buffer: Vec<u8>,
    pub(super) answer_buffer: Vec<u8>,
    /// The rest of the quantum of the connection that is served now.
    pub(super) quantum: Quantum,
    pub(super) ring_buffer: Vec<u8>,
    /// Descriptors of the answer that is made now.
    pub(super) descriptors: Vec<OwnedFd>,
    /// Pins of an epoch that are released when the answer that is made now is sent.
    pub(super) unreleased: Option<(SessionIndex, u64, Vec<BlockHandle>)>,
    /// The connections that have messages.
    pub(super) ready: Ready,
    /// The connections whose rings are polled.
    pub(super) hot: Vec<u32>,
    /// Connections with rings.
    pub(super) rings_passed: usize,
    pub(super) observer: NodeObserver,
    pub(super) latency: Latency,
    pub(super) tier: Option<TierThreads>,
    pub(super) scrubber: Option<Scrubber>,
    pub(super) publishing: Option<Publishing>,
    /// An eventfd by which the threads of the tier and the scrubber wake this one.
    wake: Arc<OwnedFd>,
    pub(super) deferred: HashMap<Waiting, Deferred>,
    pub(super) next_waiting: Waiting,
    pub(super) waiting_for_space: VecDeque<WaitingForSpace>,
    /// Evictions and removals by operators that need more than one quantum.
    pub(super) evicting: VecDeque<Evicting>,
    pub(super) clearing: VecDeque<ClearingFor>,
    /// How the emptying of a namespace goes on.
    pub(super) emptying: Evicted,
    /// How a change of the size goes on.
    pub(super) resizing: ResizeStep,
    pub(super) waiting_for_size: Vec<WaitingForSize>,
    /// The size without memory pressure.
    pub(super) size_at_rest: u64,
    /// `None`: the size does not follow the memory of the machine.
    pub(super) pressure: Option<Pressure>,
    /// The last reservation needs more evictions than one quantum has.
    pub(super) evictions_ended: bool,
    /// When the last packet came.
    pub(super) packet_at: Instant,
    /// The file of the socket, which goes with the server.
    pub(super) path: Option<SocketFile>,
}

/// Ends the [loop](NodeServer::run) of a server, from any thread or signal handler. With a tier,
/// the loop ends when the tier has what it lacks, or after [`ServerOptions::drain`]; a second
/// request ends it at once.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    /// Ends the loop after the messages that have come. Async-signal-safe.
    pub fn stop(&self) {
        // The counter of an eventfd cannot overflow here, so the write does not block.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl NodeServer {
    /// Listens on a new socket at `path`. A socket there that nobody answers is replaced. Its mode
    /// is 0600, 0660 if one group may connect besides the server's own user, and 0666 if further
    /// users may. The server asks the kernel for the user and the groups of each client.
    ///
    /// # Errors
    /// [`NodeError::InUse`]; [`NodeError::Access`]; [`NodeError::System`].
    pub fn bind(node: Node, path: &Path, options: ServerOptions) -> Result<NodeServer, NodeError> {
        let access = access_rules(&options)?;
        let _lock = socket::lock_folder(path)
            .map_err(|error| NodeError::System { call: "flock of the socket's folder", error })?;
        match socket::is_listening(path) {
            Ok(true) => return Err(NodeError::InUse { path: path.display().to_string() }),
            Ok(false) => {
                socket::remove_dead(path)
                    .map_err(|error| NodeError::System { call: "unlink of the socket", error })?;
            }
            Err(_) => {}
        }
        let at = NodeError::system;
        let listener =
            socket::packet_socket(SocketFlags::NONBLOCK).map_err(at("socket(SOCK_SEQPACKET)"))?;
        let address = SocketAddrUnix::new(path).map_err(at("the path of the socket"))?;
        // Nobody can connect before the mode is set: nobody is listened to yet.
        bind(&listener, &address).map_err(at("bind to the path of the socket"))?;
        let file = SocketFile(path.to_path_buf());
        let (mode, group) = access.socket_mode();
        let set_up = || {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
            std::os::unix::fs::chown(path, None, group)
        };
        set_up()
            .map_err(|error| NodeError::System { call: "the socket's mode and group", error })?;
        listen(&listener, 128).map_err(at("listen"))?;
        let mut server = NodeServer::on(node, listener, options)?;
        server.path = Some(file);
        Ok(server)
    }

    /// Serves on a socket that listens already, such as one of systemd's. Its file stays when the
    /// server ends.
    ///
    /// # Errors
    /// [`NodeError::Access`]; [`NodeError::System`].
    pub fn on(
        node: Node,
        listener: OwnedFd,
        options: ServerOptions,
    ) -> Result<NodeServer, NodeError> {
        NodeServer::with(node, Some(listener), options)
    }

    /// Makes a server with the socket that it listens on, if it does.
    pub(super) fn with(
        mut node: Node,
        listener: Option<OwnedFd>,
        options: ServerOptions,
    ) -> Result<NodeServer, NodeError> {
        let access = access_rules(&options)?;
        let takes_none = listener.as_ref().is_none_or(|it| pass_descriptors(it, false).is_ok());
        let closing_threads = (!takes_none).then(Arc::default);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(NodeError::system("epoll"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = eventfd(0, flags).map_err(NodeError::system("eventfd"))?;
        let wake = eventfd(0, flags).map_err(NodeError::system("eventfd"))?;
        let listened = listener.as_ref().map(|it| (it.as_fd(), EventSource::Listener));
        let own = [(stop.as_fd(), EventSource::Stop), (wake.as_fd(), EventSource::Threads)];
        for (descriptor, key) in listened.into_iter().chain(own) {
            epoll::add(&epoll, descriptor, EventData::new_u64(key.bits()), EventFlags::IN)
                .map_err(NodeError::system("epoll_ctl"))?;
        }
        let wake = Arc::new(wake);
        let start = |rate| Scrubber::start(rate, &node.memory.bytes, &wake);
        let scrubber = options.scrub_bytes_per_s.map(start).transpose();
        let scrubber = scrubber
            .map_err(|error| NodeError::System { call: "the thread of the scrubber", error })?;
        node.limit_users(|uid| !access.is_operator(uid));
        let (size_at_rest, folder) = (node.wanted_size(), options.pressure_folder.as_deref());
        let follows = node.min_size() < size_at_rest;
        let pressure = follows.then(|| Pressure::new(folder, &epoll));
        let resizing = if node.is_resizing() { ResizeStep::More } else { ResizeStep::Done };
        let mut server = NodeServer {
            node,
            options,
            access,
            listener,
            epoll,
            stop: Arc::new(stop),
            closing_threads,
            drain: None,
            connections: HashMap::default(),
            processes: HashMap::new(),
            next_key: 0,
            expire_from: 0,
            message_buffer: vec![0; MAX_MESSAGE],
            answer_buffer: Vec::new(),
            quantum: Quantum::new(),
            ring_buffer: Vec::new(),
            descriptors: Vec::new(),
            unreleased: None,
            ready: Ready::default(),
            hot: Vec::new(),
            rings_passed: 0,
            observer: NodeObserver::default(),
            latency: Latency::new(),
            tier: None,
            scrubber,
            publishing: None,
            wake,
            deferred: HashMap::new(),
            next_waiting: 0,
            waiting_for_space: VecDeque::new(),
            evicting: VecDeque::new(),
            clearing: VecDeque::new(),
            emptying: Evicted::Enough,
            resizing,
            waiting_for_size: Vec::new(),
            size_at_rest,
            pressure,
            evictions_ended: false,
            packet_at: instant(),
            path: None,
        };
        server.observer.publish(server.stats(), None);
        server.watch_orphans();
        Ok(server)
    }

    /// Attaches a tier: values that memory has no room for go there, and come back when
    /// they are acquired. See [the module](kvmem::tier::Tier).
    ///
    /// A tier that was not attached while values of this memory were removed, or were evicted
    /// without being stored, may have older values under their keys. It is cleared first. Returns
    /// whether it was.
    ///
    /// # Errors
    /// [`NodeError::System`] if its threads cannot be started, or it cannot
    /// [keep a file open](Tier::keep_open); [`NodeError::Tier`] if the tier
    /// cannot remove what the index file says must not come back.
    pub fn attach_tier(&mut self, tier: Arc<dyn Tier>) -> Result<bool, NodeError> {
        self.attach_tier_with(tier, TierOptions::default())
    }

    pub(super) fn attach_tier_with(
        &mut self,
        tier: Arc<dyn Tier>,
        options: TierOptions,
    ) -> Result<bool, NodeError> {
        let transfers = self.node.memory.transfers().try_clone_to_owned();
        transfers
            .and_then(|transfers| tier.keep_open(transfers))
            .map_err(|error| NodeError::System { call: "the open file of the tier", error })?;
        #[cfg(all(test, not(loom)))]
        let start =
            if crate::simulator::is_on() { TierThreads::by_hand } else { TierThreads::start };
        #[cfg(not(all(test, not(loom))))]
        let start = TierThreads::start;
        let threads = start(&tier, &self.node.memory.bytes, &self.wake)
            .map_err(|error| NodeError::System { call: "the threads of the tier", error })?;
        let cleared = self.node.attach_tier(tier, options).ok_or(NodeError::Tier)?;
        self.tier = Some(threads);
        Ok(cleared)
    }

    /// Takes the wake-up of the threads.
    fn woken(&self) {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
    }

    /// Returns what ends the loop.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Returns what shows other threads the statistics of the server while it runs.
    #[must_use]
    pub fn observer(&self) -> NodeObserver {
        self.observer.clone()
    }

    /// Returns the node.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Serves clients until it is [stopped](Stopper::stop). What was received then is served, calls
    /// that wait for the tier are answered, and the connections are closed. Returns the node, whose
    /// values stay.
    ///
    /// # Errors
    /// [`NodeError::System`] if the kernel no longer reports events.
    pub fn run(mut self) -> Result<Node, NodeError> {
        let mut next_tick = now_ms() + self.tick_ms();
        loop {
            let wait = Duration::from_millis(self.may_wait(next_tick));
            if !wait.is_zero() {
                self.latency.slept();
            }
            let wait =
                Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos().into() };
            let mut events = [MaybeUninit::<Event>::uninit(); 64];
            let ready = match epoll::wait(&self.epoll, &mut events, Some(&wait)) {
                Ok((ready, _)) => ready,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(NodeError::system("epoll_wait")(errno)),
            };
            let keys = ready.iter().map(|it| EventSource::from_bits(it.data.u64()));
            let now = now_ms();
            if self.iterate(keys, &mut next_tick, now) {
                return Ok(self.end(now));
            }
        }
    }

    /// Returns the milliseconds between two ticks.
    pub(super) fn tick_ms(&self) -> u64 {
        (self.options.lease.as_millis() as u64 / 4).clamp(10, 1000)
    }

    /// Returns the milliseconds that the loop may wait for an event.
    pub(super) fn may_wait(&self, next_tick: u64) -> u64 {
        match self.is_awake() {
            true => 0,
            false => next_tick.saturating_sub(now_ms()).min(self.patience()),
        }
    }

    /// Serves the events of one iteration of the loop. Returns whether the loop ends.
    pub(super) fn iterate(
        &mut self,
        events: impl IntoIterator<Item = EventSource>,
        next_tick: &mut u64,
        now: u64,
    ) -> bool {
        for event in events {
            match event {
                EventSource::Stop if self.stop_requested(now) => return true,
                EventSource::Stop => {}
                EventSource::Listener => self.accept(now),
                EventSource::Connection(number) => self.make_ready(number, Source::Packets),
                EventSource::Process(number) => self.process_ended(number as usize),
                EventSource::Doorbell(number) => self.doorbell(number),
                EventSource::Threads => self.woken(),
                EventSource::Stalls => self.pressure.iter_mut().for_each(Pressure::stalled),
            }
        }
        self.serve_ready(now);
        self.look_at_pressure(now);
        self.serve_tier(now);
        self.scrub(now);
        self.answer_waiting(now);
        self.hand_over(now);
        if self.drain_is_over(now) {
            return true;
        }
        if now >= *next_tick {
            let tick = self.tick_ms();
            if now - *next_tick > tick {
                // This process, or the machine, was stopped: no client could be heard.
                self.renew_leases(now);
            }
            self.tick(now);
            self.observer.publish(self.stats(), self.drain.as_ref());
            *next_tick = now + tick;
        }
        false
    }

    /// Returns whether the next message is likely to come soon, so the thread does not sleep.
    pub(super) fn is_awake(&self) -> bool {
        self.has_work()
            || !self.hot.is_empty()
            || !self.ready.is_empty()
            || self.options.polls_since(self.packet_at, instant())
    }

    /// Returns the milliseconds until a client no longer waits for events, or the scrubber goes on.
    fn patience(&self) -> u64 {
        let waiting = self.connections.values().flat_map(|connection| &connection.waiting);
        let scrubber = self.scrubber.as_ref().and_then(Scrubber::due_at);
        let drain = self.drain.as_ref().map(|drain| drain.until);
        let looks = self.looks_at_pressure();
        let next = waiting.map(|it| it.until).chain(scrubber).chain(drain).chain(looks).min();
        let next = next.map_or(u64::MAX, |until| until.saturating_sub(now_ms()));
        self.publishing.as_ref().map_or(next, |it| next.min(it.patience()))
    }

    /// Returns the descriptors of the memory file, the index file and the session file. A process
    /// that holds them has the values, and [recovers](Node::recover) them.
    ///
    /// # Errors
    /// [`NodeError::Memory`] if the process has no free descriptors.
    pub fn descriptors(&self) -> Result<[OwnedFd; 3], NodeError> {
        self.node.memory.descriptors()
    }

    /// Watches the processes of the sessions that a recovery has resumed, as far as this process
    /// sees them. The number of a process may be that of another one by now, or in this PID
    /// namespace.
    fn watch_orphans(&mut self) {
        for (session, pid, expected) in self.node.orphan_processes() {
            let descriptor = open_process(pid).filter(|_| expected != 0);
            if let Some(descriptor) = descriptor.filter(|it| process_id(it) == expected) {
                // An earlier server has begun the session: it lasts as long as its lock.
                let _ = self.watch_descriptor(session.number(), descriptor);
            }
        }
    }

    /// Ends a session without a connection if its client is gone: no process has its lock any more,
    /// and its process, as far as the server can watch it, has ended. The kernel closes the devices
    /// of a process between the two.
    pub(super) fn end_if_gone(&mut self, session: SessionIndex) {
        let runs = self.processes.get(&session.number()).is_some_and(|it| !has_ended(it));
        if !runs && !self.node.may_live(session) {
            self.end_abandoned(session);
        }
    }

    /// Watches the process of a session that a connection has begun or resumed, if the kernel has
    /// passed a descriptor of it.
    pub(super) fn watch_process(
        &mut self,
        session: SessionIndex,
        connection: &AcceptedConnection,
    ) -> Result<(), NodeError> {
        self.unwatch(session);
        let Some(descriptor) = &connection.peer.descriptor else { return Ok(()) };
        let descriptor = descriptor
            .try_clone()
            .map_err(|error| NodeError::System { call: "dup of a pidfd", error })?;
        self.watch_descriptor(session.number(), descriptor)
            .map_err(NodeError::system("epoll_ctl of a pidfd"))
    }

    pub(super) fn unwatch(&mut self, session: SessionIndex) {
        // The end of the last descriptor ends the watch.
        if let Some(descriptor) = self.processes.remove(&session.number()) {
            let _ = epoll::delete(&self.epoll, &descriptor);
        }
    }

    /// Ends the watch of a process, and returns its session.
    pub(super) fn unwatch_numbered(&mut self, number: usize) -> Option<SessionIndex> {
        let session = self.node.all_sessions().into_iter().find(|it| it.number() == number);
        session.inspect(|session| self.unwatch(*session))
    }
}

/// Reads the rules of the options for this process.
fn access_rules(options: &ServerOptions) -> Result<AccessRules, NodeError> {
    Ok(AccessRules::new(rustix::process::geteuid().as_raw(), options)?)
}
