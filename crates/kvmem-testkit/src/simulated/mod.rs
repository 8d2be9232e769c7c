//! A simulated machine: its clock, its memory, and registrars with issued costs.
//!
//! It serves tests that need a fault at the third key of the second NIC, it reproduces machines of
//! which only figures are known, and it shows how a policy works on them. A [`SimulatedMachine`] is
//! a [`Platform`], and its [`SimulatedNic`]s are [`Registrar`]s.
//! The code that runs on them is the same as on real machines, threads included.
//!
//! - **Time** is virtual. It passes only in calls, by the issued [`Costs`]. Of the threads of a
//!   gathering ([`Platform::gather`]) one runs at a time, in the order of
//!   virtual time. The result is therefore the same, bit by bit, however the system schedules the
//!   threads. The threads must follow [some rules](self#threads).
//! - **Memory** is only a record of which addresses are resident. No byte is touched, so a region
//!   of 500 GiB of addresses suffices without any memory behind it. The record goes by address: a
//!   new region at the addresses of an old one inherits its residency.
//! - **Keys** are counted, calls are recorded in a [log](SimulatedMachine::take_log), and
//!   [faults](Fault) can be injected.
//!
//! ```
//! use kvmem::arena::Region;
//! use kvmem::register::{Platform, Registrar};
//! use kvmem_testkit::simulated::SimulatedMachine;
//!
//! // 1 GiB of addresses, none of them resident.
//! let region = Region::builder(1 << 30).map()?;
//! let machine = SimulatedMachine::parallel_loses(false);
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
//! time, until the current gathering has ended. Calls of several such threads never overlap in
//! virtual time. For calls to overlap, gather the threads:
//!
//! 1. One thread calls `gather(n)`. If there is a gathering, it waits for its end. It is thread 0.
//! 2. After that, and not before, each of the n threads calls `enter` with its number, makes its
//!    calls, and calls `leave`.
//! 3. Between `enter` and `leave` no thread waits for another of the gathering, except in calls: it
//!    does not join it, wait on a channel, or take a lock that another holds during a call. Thread
//!    0 therefore leaves before it joins the others.
//! 4. A guard calls `leave`, so that a panic leaves, too.
//!
//! A program that breaks these rules may block forever.
//!
//! [`Platform`]: kvmem::register::Platform
//! [`Platform::gather`]: kvmem::register::Platform::gather
//! [`Registrar`]: kvmem::register::Registrar

mod builder;
mod costs;
mod fault;
mod gathering;
mod log;
mod machine;
mod memory;
mod nic;
mod nic_state;
mod published;
mod scheduler;
mod world;

pub use builder::MachineBuilder;
pub use costs::{CallCosts, Costs, PopulateCosts};
pub use fault::Fault;
pub use log::{Action, CallCounts, LoggedCall};
pub use machine::SimulatedMachine;
pub use nic::SimulatedNic;
pub use nic_state::NicLimits;
pub use published::{Published, Seconds};
