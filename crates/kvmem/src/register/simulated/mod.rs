//! A machine that is not there: its clock, its memory, and registrars that cost what they are told
//! to.
//!
//! For tests that want a fault at the third key of the second NIC, for reproducing machines of
//! which only figures are known, and for trying how a policy does on them. A [`Machine`] is the
//! [`Platform`](super::Platform), its [`Nic`]s are [`Registrar`](super::Registrar)s. What runs on them is
//! the same code as elsewhere, threads included.
//!
//! - **Time** is virtual. It passes only in calls, by what [`Costs`] says. Of the threads of a
//!   gathering ([`Platform::gather`](super::Platform::gather)) one acts at a time, in the order of virtual
//!   time; so the result is the same however the system schedules them, bit by bit. What is asked
//!   of the threads is said [below](self#threads).
//! - **Memory** is resident as far as the books say. No byte is touched, so a region of 500 GiB of
//!   addresses is enough, and none of it need be there. The books go by address: a new region at
//!   the addresses of an old one finds what that has left ([`Machine::discard`]).
//! - **Keys** are counted, calls are written down in a [log](Machine::log), and [faults](Fault)
//!   come where they are wanted.
//!
//! ```
//! use kvmem::arena::Region;
//! use kvmem::register::simulated::Machine;
//! use kvmem::register::{Platform, Registrar};
//!
//! // 1 GiB of addresses, none of them resident.
//! let region = Region::builder(1 << 30).map()?;
//! let machine = Machine::parallel_loses(false);
//! let nic = machine.nic(0).expect("it has eight");
//!
//! // SAFETY: the bytes are mapped, and no device will write to them.
//! let key = unsafe { nic.register(region.base(), region.len()) }?;
//! assert_eq!(machine.now().as_millis(), 226); // 18.7 ms to pin, 207.3 ms to make resident
//! assert_eq!(machine.resident_bytes(&region, 0..region.len())?, 1 << 30);
//! nic.deregister(key)?;
//! assert_eq!(machine.live_keys(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ## Threads
//!
//! A thread outside of any gathering has the machine to itself for each call: it waits, in real
//! time, until a gathering that is going on is over, and calls of several such threads never
//! overlap in virtual time. For calls to overlap, gather:
//!
//! 1. One thread calls `gather(n)`. If others are gathered it waits until they have left. It is
//!    thread 0.
//! 2. After that, and not before, each of the n threads calls `enter` with its number, makes its
//!    calls, and calls `leave`.
//! 3. Between `enter` and `leave` no thread waits for another of the gathering, other than in
//!    calls: it does not join it, wait on a channel, or take a lock that another holds during a
//!    call. So thread 0 leaves before it joins the others.
//! 4. `leave` comes from a guard, so that it comes with a panic too.
//!
//! Who breaks these rules loses time (30 s, see [`Builder::patience`]) and determinism, but does
//! not hang for ever. A thread that ends without having left has left.

mod books;
mod builder;
mod costs;
mod fault;
mod gathering;
mod log;
mod machine;
mod memory;
mod nic;
mod published;
mod ranges;
mod stage;
mod world;

pub use books::NicLimits;
pub use builder::Builder;
pub use costs::{CallCosts, CostError, Costs, PopulateCosts};
pub use fault::Fault;
pub use log::{Action, Counts, Entry};
pub use machine::Machine;
pub use nic::Nic;
pub use published::{Published, Seconds};
