//! *Verbs*: network cards with RDMA, through `libibverbs.so.1`.
//!
//! ## What a registration is
//!
//! A *memory region* (MR) is a range of this process's memory that a card may access. Creating one
//! pins the pages, fills a table on the card with their physical addresses, and returns two
//! numbers: the *lkey* for local work requests, and the *rkey* for peers. Both are valid within one
//! *protection domain* (PD): a queue pair of another domain cannot use them. There is therefore one
//! registrar for each pair of card and domain; an engine that has its own domains uses
//! [`Nic::from_raw`].
//!
//! The cost depends on the number of pages: the kernel looks up and pins each page, and the driver
//! sends the addresses to the card. For a terabyte this is a system call of seconds. Several cards
//! can do it concurrently unless they wait for the same lock. Page faults take such a lock;
//! therefore pages are populated first.
//!
//! ## The library
//!
//! Nothing is linked. The library is loaded by its name on request; a machine without it runs the
//! rest of kvmem. The bindings rely on the library's ABI, which the number in its name stands for,
//! and which is compared with the layout of rdma-core's header at compile time.
//!
//! The library is unloaded after the last [`Verbs`] and [`Nic`] that use it.
//!
//! Some functions return an error number; others return `NULL` and set `errno`. Both become an
//! [`Errno`](crate::arena::Errno). `ENOMEM` can mean the memory lock limit, the number of regions
//! on the card, or memory; a [`RegisterLimit`](crate::register::RegisterLimit) names the limit if
//! the figures tell which it is.
//!
//! ```no_run
//! use kvmem::register::Registrar;
//! use kvmem::register::verbs::Verbs;
//!
//! let verbs = Verbs::load()?;
//! for name in verbs.devices()? {
//!     let nic = verbs.open(&name)?;
//!     println!("{name}: {:?}", nic.limits());
//! }
//! # Ok::<(), kvmem::register::NotAvailable>(())
//! ```

mod abi;
mod access;
mod context;
mod device_list;
mod domain;
mod failure;
mod library;
mod nic;

pub use access::Access;
pub use library::Verbs;
pub use nic::Nic;
