//! *Simulator*: whole nodes in virtual time, one seed after the other.
//!
//! A history has a server, up to four clients of up to three users, rings, a disk tier, a disk and
//! a clock. In every other one, operators and restarts change the size of the memory. All run in
//! one thread, and a number chooses each step. No step waits, so an hour of a node takes seconds,
//! and a seed has the same history every time.
//!
//! ```text
//!  history   seeds, steps, shrinking
//!  world     one step: a client, the server, a thread of the tier, or a fault
//!    ├ client       a client as a state machine; its rings and words are the library's
//!    ├ wire         packets, as a SOCK_SEQPACKET socket has them
//!    ├ environment  clock, random numbers, processes and their descriptors
//!    ├ disk         the simulated disk of the tier's own tests
//!    ├ timed_tier   times to live in the tier, by the simulated clock
//!    ├ contents     which value a look-up may find
//!    └ prefixes     a copy of the files, recovered after each store
//! ```
//!
//! # The parts of the product
//!
//! The server is the product's: a step is one iteration of its event loop, which gets its events
//! from the simulator and not from epoll. So are the node, recoveries, rings, the words and locks
//! of sessions, and the tier with its queue. Memory files and locks are the kernel's. Sockets,
//! time, random numbers, processes and the tier's threads are simulated. The seams are
//! `socket::{now_ms, instant, fill_random, open_process, process_id}`, the server's
//! [`ClientSocket`](crate::server), and `TierThreads::by_hand`.
//!
//! # Faults
//!
//! | fault | when |
//! |---|---|
//! | the server is killed | between any two of its effects: stores to the index, words and rings, copies and returns of memory, and packets. Later effects are taken back |
//! | the server is stopped, and drains | between two steps |
//! | a client is killed | between two stores to a ring, two writes to a block, or two packets. The kernel then takes its mappings, its files and its number, one step after the other |
//! | a client is stopped, and runs again | at the same places, for up to four leases |
//! | a connection is cut, with packets unread on both sides | between two steps |
//! | the machine is suspended | for up to two hours |
//! | numbers of processes are used again | always: there are eight |
//! | the disk fails, is full, flips bits, rots, writes to other sectors, loses syncs | between two jobs; the process also ends in the middle of one |
//! | the power is cut | between two steps; sectors since the last sync are lost or torn |
//!
//! # Checks
//!
//! After each step of a server: the node's invariants, and [each prefix](prefixes) of its stores.
//! After each step: pinned values have their bytes while their word says so, and reservations have
//! what their client wrote. With each answer: the value is one that somebody committed, whole, and
//! neither removed nor replaced before the call. Before time passes: no call waits for an answer
//! that nothing will send, and the tier has all its jobs. At the end, without faults: every call is
//! answered, every client gives back what it has, and the node counts nothing but values.
//!
//! # Not simulated
//!
//! The library's client, which blocks in its threads; the scrubber; tiers over a network; reads of
//! the kernel that go on after a killed server. Values that must have ended are looked for only
//! where there is no tier, which counts from a later moment.

mod client;
mod config;
mod contents;
#[path = "../../../kvmem-tier/tests/it/simulated.rs"]
#[allow(dead_code, reason = "the tests of the tier use the rest")]
mod disk;
mod environment;
mod history;
mod prefixes;
mod timed_tier;
mod wire;
mod world;

pub(crate) use environment::{fill_random, instant, is_on, now_ms, open_process, process_id};
pub(crate) use wire::ServerEnd;
