//! *Options* of a server.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::polling::may_poll;

/// How a server serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// After this time without a message, the reservations of a client are fenced.
    pub lease: Duration,
    /// Whether the pins of a client end, too, whose process has not run for the lease. When it runs
    /// again, it may read bytes of other values: [`is_valid`](crate::PinBatch::is_valid) shows it
    /// so, without a call. The pins of a process that runs stay: the client library
    /// says so by itself.
    pub reclaim_pins: bool,
    /// The rate at which values with checksums are verified in the background, and removed if they
    /// are damaged. `None`: not at all.
    pub scrub_bytes_per_s: Option<u64>,
    /// Groups whose members may use all namespaces that no [rule](Self::namespaces) names. Without
    /// groups, rules and operators, only the server's own user may connect: root is a user as any
    /// other.
    pub allow_groups: Vec<AllowedGroup>,
    /// Users and groups that may use a namespace. A namespace with a rule is closed to all others,
    /// except the server's own user. Clients that write can write to all bytes of the memory,
    /// whatever their namespaces: a rule is about keys, and `read_only` about bytes, too.
    pub namespaces: Vec<NamespaceRule>,
    /// Users, besides the server's own, that may make the calls of operators. They have no quota of
    /// a user, and may read in each namespace.
    pub operators: Vec<u32>,
    /// The most connections at one time. One of 16 is for the server's own user and operators.
    pub max_connections: usize,
    /// The most connections with [rings](crate::ring) at one time: each takes half a MiB of memory.
    #[doc(hidden)]
    pub max_rings: usize,
    /// How long the server polls for further messages after the last one before it sleeps. Waking
    /// an idle processor takes tens of microseconds. The server takes one processor while messages
    /// come more often than that, and other threads do not need it. Zero: it sleeps at once.
    #[doc(hidden)]
    pub spin: Duration,
    /// How long a server that is [stopped](super::Stopper::stop) stores values that its tier lacks.
    /// Zero: not at all.
    pub drain: Duration,
    /// The folder of the cgroup whose memory the size [follows](crate::NodeOptions::min_size), with
    /// `memory.current`, `memory.high`, `memory.max` and `memory.pressure`. `None`: all cgroups of
    /// this process, and the machine.
    pub pressure_folder: Option<PathBuf>,
}

impl ServerOptions {
    /// Returns whether the server polls for the message after one that came at `active_at`.
    pub(super) fn polls_since(&self, active_at: Instant, now: Instant) -> bool {
        now.saturating_duration_since(active_at) < self.spin && may_poll(now)
    }
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            lease: Duration::from_secs(60),
            reclaim_pins: false,
            scrub_bytes_per_s: None,
            allow_groups: Vec::new(),
            namespaces: Vec::new(),
            operators: Vec::new(),
            max_connections: 512,
            max_rings: 256,
            spin: if has_one_processor() { Duration::ZERO } else { Duration::from_micros(50) },
            drain: Duration::ZERO,
            pressure_folder: None,
        }
    }
}

/// A group whose members may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllowedGroup {
    /// The number of the group.
    pub gid: u32,
    /// Whether its members only read.
    pub read_only: bool,
}

/// A user, or the members of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Principal {
    /// The user of this number.
    User(u32),
    /// The members of the group of this number.
    Group(u32),
}

/// A namespace, and one user or group that may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRule {
    /// The name of the namespace.
    pub name: String,
    /// The user or the group.
    pub who: Principal,
    /// Whether it only reads.
    pub read_only: bool,
}

/// Returns whether a server that polls would prevent its clients from running.
fn has_one_processor() -> bool {
    std::thread::available_parallelism().is_ok_and(|count| count.get() == 1)
}
