//! The benchmark of a node: one pool of memory that several processes share.
//!
//! 1. *Processes.* The server is a process of its own, and so are the clients whose calls are
//!    timed: the caller of the suite provides the [command](NodeChild) that starts one, and the
//!    child [acts](act) its part. The memory and the index are made here, and the server gets their
//!    descriptors, as from a keeper.
//! 2. *Calls.* A call releases the pins of 64 values and pins 64 others, of 4096 values of 256
//!    bytes. One client calls, or four at the same time. A figure of four clients is the sum of
//!    their rates, or the time of the slowest.
//! 3. *Values.* A pass stores values of 1 MiB under the keys of earlier ones, or reads as many in
//!    random order, 64 in a call. To store is to reserve, copy and commit; to read is to acquire,
//!    copy out and release. [`Memcpy`](NodeContenderId::Memcpy) is the limit: the same bytes copied
//!    to and from a memory file of the same kind and size by this process alone. All pages are
//!    populated, and mapped where they are used.
//! 4. *Look-ups.* A call looks up 64 keys that have values, and pins nothing.
//! 5. *Restart.* A server with many committed blocks is killed by SIGKILL and started again. The
//!    time ends when a client that was connected has the answer of its next look-up. The pages of
//!    the values were never touched: nothing reads them.
//! 6. *Turns.* Contenders take turns, and the medians count. Every value begins with its number and
//!    is otherwise random, and after a pass of reads all of them are compared, outside of the time.
//!
//! A contender outside of this program talks as [`beside`](crate::beside) has it:
//!
//! | call | answer |
//! |---|---|
//! | `{"call":"open","dir":D,"bytes":B,"value_bytes":V,"batch":N}`: room for B / V values | `{}` |
//! | `{"call":"store","first":F,"count":C}`: stores the values F to F + C − 1, each under the key of its number modulo B / V, N in a call | `{"seconds":S}` |
//! | `{"call":"read","numbers":[…]}`: reads these values, N in a call, and compares the numbers in their first eight bytes | the same |
//! | `{"call":"lookup","numbers":[…],"times":T}`: looks up the keys of these values in one call, T times | the same |

mod calls;
mod goals;
mod measure;
mod memory;
mod restart;
mod role;
mod sections;
mod suite;
mod values;

use std::process::Command;

use kvmem::arena::ArenaError;
use kvmem_node::{ClientError, NodeError};

pub use self::restart::RestartFigures;
pub use self::role::{NoRoleError, NodeRole, act};
pub use self::suite::{NodeDetails, NodeRow, NodeSkipped, NodeSuite};
use crate::beside::{Beside, BesideError};
use crate::progress::Progress;
use crate::suite::{BenchError, Report, names};
use crate::values::ValueError;

/// Returns the command of a process that [acts](act) a role.
pub type NodeChild = fn(&NodeRole) -> Command;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct NodeBenchOptions {
    /// Whether to use fewer values and repetitions: a minute instead of some.
    pub quick: bool,
    /// The exact number of repetitions of each measurement, instead of 9, or 3 when quick.
    pub reps: Option<u32>,
    /// Only these of the contenders in this program; all when empty.
    pub contenders: Vec<NodeContenderId>,
    /// Programs that take part.
    pub beside: Vec<Beside>,
    /// Starts the server and the clients.
    pub child: NodeChild,
}

impl NodeBenchOptions {
    /// Returns the options of a full run of everything in this program.
    #[must_use]
    pub fn new(child: NodeChild) -> NodeBenchOptions {
        NodeBenchOptions {
            quick: false,
            reps: None,
            contenders: Vec::new(),
            beside: Vec::new(),
            child,
        }
    }
}

/// The result of a run.
pub type NodeReport = Report<NodeSuite>;
/// The error that ended a run early.
pub type NodeBenchError = BenchError<NodeMeasureError>;

/// Runs the benchmark that `options` select. A full run takes about 2 GiB of memory.
///
/// # Errors
/// [`NodeBenchError`] when a contender fails, or returns other bytes than were stored.
pub fn run(
    options: &NodeBenchOptions,
    progress: &mut dyn Progress<NodeRow>,
) -> Result<NodeReport, NodeBenchError> {
    crate::suite::run(options, progress)
}

/// The error of one measurement.
#[derive(Debug, thiserror::Error)]
pub enum NodeMeasureError {
    /// The system refused something.
    #[error("{call}: {source}")]
    System {
        /// What was tried.
        call: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// A node could not be made, or does not serve.
    #[error(transparent)]
    Node(Box<NodeError>),
    /// A call failed.
    #[error(transparent)]
    Client(Box<ClientError>),
    /// Memory could not be mapped.
    #[error(transparent)]
    Memory(Box<ArenaError>),
    /// Values could not be made, or other bytes came back than were stored.
    #[error(transparent)]
    Values(#[from] ValueError),
    /// The server gave a client no rings.
    #[error("the server gave the client no rings")]
    NoRings,
    /// Values that were stored are not found.
    #[error("{found} of {wanted} values are found")]
    Lost {
        /// The values that were found.
        found: usize,
        /// The values that were stored.
        wanted: usize,
    },
    /// The server, a client, or a program that takes part failed.
    #[error(transparent)]
    Process(#[from] BesideError),
}

impl From<NodeError> for NodeMeasureError {
    fn from(error: NodeError) -> NodeMeasureError {
        NodeMeasureError::Node(Box::new(error))
    }
}

impl From<ClientError> for NodeMeasureError {
    fn from(error: ClientError) -> NodeMeasureError {
        NodeMeasureError::Client(Box::new(error))
    }
}

impl From<ArenaError> for NodeMeasureError {
    fn from(error: ArenaError) -> NodeMeasureError {
        NodeMeasureError::Memory(Box::new(error))
    }
}

impl NodeMeasureError {
    fn system(call: &'static str) -> impl FnOnce(std::io::Error) -> NodeMeasureError {
        move |source| NodeMeasureError::System { call, source }
    }

    /// Returns an error unless all values that were stored are found.
    fn unless_all(found: usize, wanted: usize) -> Result<(), NodeMeasureError> {
        if found == wanted { Ok(()) } else { Err(NodeMeasureError::Lost { found, wanted }) }
    }
}

names! {
    /// The subject of a measurement.
    pub enum NodeScenario ("scenario", UnknownNodeScenarioError) {
        /// Values are pinned and released.
        Calls = "calls",
        /// Values are stored.
        Store = "store",
        /// Values are read.
        Read = "read",
        /// Keys are looked up.
        Lookup = "lookup",
    }
}

names! {
    /// The contenders in this program by name.
    pub enum NodeContenderId ("contender", UnknownNodeContenderError) {
        /// A client whose calls go through rings in shared memory.
        Ring = "ring",
        /// A client whose calls go through the socket.
        Socket = "socket",
        /// The bytes are copied, and nothing else is done.
        Memcpy = "memcpy",
    }
}
