//! [`Config`]: what a seed makes of a node and its machine.

use std::time::Duration;

use kvmem_testkit::random::Random;

use crate::node::{Eviction, NamespaceLimits, NodeOptions};
use crate::server::{AllowedGroup, ServerOptions};

use super::world::GROUP;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// The sizes and options of a history, small enough that every limit is reached.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) seed: u64,
    pub(super) clients: usize,
    pub(super) namespaces: usize,
    /// Keys of each namespace.
    pub(super) keys: u64,
    pub(super) memory_bytes: usize,
    /// Whether the memory changes its size.
    pub(super) elastic: bool,
    /// Whether the clients have several users.
    pub(super) users: bool,
    /// The time that a look at the clock takes.
    pub(super) look: Duration,
    pub(super) max_len: u64,
    /// Packets that a socket takes.
    pub(super) capacity: usize,
    pub(super) rings: bool,
    /// Whether the kernel passes descriptors of processes, and numbers processes.
    pub(super) descriptors: bool,
    pub(super) numbers: bool,
    /// One step in this number has a fault.
    pub(super) faults: u64,
    /// One iteration of the server in this number is its last.
    pub(super) kills: u64,
    /// Bytes of the disk of the tier; 0: there is no tier.
    pub(super) disk_bytes: usize,
    /// The share of the memory that is in use before values are stored.
    pub(super) store_above: f64,
    pub(super) node: NodeOptions,
    pub(super) server: ServerOptions,
}

impl Config {
    pub(super) fn new(seed: u64) -> Config {
        let mut random = Random::new(seed ^ 0x5EED);
        let elastic = random.once_in(2);
        let memory_bytes = 4096 << if elastic { 1 + random.below(4) } else { random.below(4) };
        let users = random.once_in(3);
        let align = 64 << random.below(4);
        let bytes = memory_bytes as u64;
        let limit = |random: &mut Random, most: u64| match random.once_in(4) {
            true => most / 4 + random.below(most),
            false => u64::MAX,
        };
        let limits = NamespaceLimits {
            max_bytes: limit(&mut random, bytes),
            max_pins: limit(&mut random, 16),
            max_pinned_bytes: limit(&mut random, bytes),
            share: 1,
        };
        let node = NodeOptions {
            max_blocks: Some(8 + random.below(32) as u32),
            align,
            boundary: if random.once_in(2) { 0 } else { align << random.below(4) },
            max_reserved_per_session: limit(&mut random, bytes),
            max_handles_per_session: if random.once_in(4) { 12 } else { 1 << 20 },
            max_pinned_bytes_per_session: limit(&mut random, bytes),
            eviction: if random.once_in(3) { Eviction::ScanResistant } else { Eviction::Lru },
            default_limits: NamespaceLimits { max_bytes: u64::MAX, ..limits },
            limits: vec![("alpha".to_owned(), limits)],
            max_events: random.log_below(64) as usize,
            ..NodeOptions::default()
        };
        let lease = Duration::from_millis([500, 5000, 60_000][random.below(3) as usize]);
        let server = ServerOptions {
            lease,
            reclaim_pins: random.once_in(2),
            max_connections: 20,
            max_rings: 20,
            allow_groups: match users {
                true => vec![AllowedGroup { gid: GROUP, read_only: false }],
                false => Vec::new(),
            },
            drain: Duration::from_millis([0, 0, 3000][random.below(3) as usize]),
            spin: if random.once_in(2) { Duration::ZERO } else { Duration::from_micros(50) },
            ..ServerOptions::default()
        };
        let max_len = (bytes / 8).min(node.boundary.max(256)).max(64);
        Config {
            seed,
            clients: 1 + random.below(4) as usize,
            namespaces: 1 + random.below(3) as usize,
            keys: 4 + random.below(20),
            memory_bytes,
            elastic,
            users,
            look: Duration::from_micros([10, 300][random.below(2) as usize]),
            max_len,
            capacity: 1 + random.log_below(64) as usize,
            rings: random.once_in(2),
            descriptors: !random.once_in(4),
            numbers: !random.once_in(4),
            faults: [50, 200, 1000][random.below(3) as usize],
            kills: [50, 500, 5000][random.below(3) as usize],
            disk_bytes: if random.once_in(2) { 0 } else { (256 << 10) << random.below(3) },
            store_above: random.below(10) as f64 / 10.0,
            node,
            server,
        }
    }

    /// Returns a size that the memory may have.
    pub(super) fn a_size(&self, random: &mut Random) -> u64 {
        let pages = self.memory_bytes as u64 / PAGE;
        if self.elastic { PAGE * (1 + random.below(pages)) } else { u64::MAX }
    }
}
