//! # kvmem-testkit — common parts of kvmem's tests
//!
//! Models, generators and runners that several tests, fuzz targets or benchmarks use. They use only
//! the public interface of kvmem.
//!
//! | module | contents | users |
//! |---|---|---|
//! | [`op`] | operations on a space of offsets, as plain data | the modules below |
//! | [`oracle`], [`modular`] | the correct state of a space, as maps of intervals; arithmetic for it | `driver`, tests of metrics |
//! | [`driver`] | runs operations on an allocator and on the oracle, and compares them after every step | tests, fuzz targets |
//! | `strategy` | proptest strategies for spaces and operations (feature `proptest`) | property tests |
//! | [`codec`] | operations of bytes | fuzz targets |
//! | [`soak`] | hundreds of millions of operations, with comparisons | the test `soak` |
//! | [`slabs`] | the same for slabs: operations, record of blocks, threads, codec, strategies | tests, a fuzz target |
//! | [`workload`] | sizes and lifetimes that drive an allocator | benchmarks, the tour |
//! | [`simulated`] | a machine with NICs in virtual time, with limits and faults | tests and benchmarks of registration, the C API's tests |
//! | `cores` | threads on simulated cores in virtual time (`--cfg kvmem_simulated`) | `kvmem-lab bench simulate` |
//! | [`counting_tier`] | a tier that records its calls | tests of a cache's verbs, in every language |
//! | [`fixture`] | files that earlier versions of a format have written, as text | tests of formats |
//! | [`random`] | numbers that are the same every time | all tests |
//!
//! In [`driver`], [`TestedAllocator`](driver::tested_allocator::TestedAllocator) is what an
//! allocator must offer to be compared: allocators with caches and without are driven alike.

pub mod codec;
#[cfg(kvmem_simulated)]
pub mod cores;
pub mod counting_tier;
pub mod driver;
pub mod fixture;
pub mod modular;
pub mod op;
pub mod oracle;
pub mod random;
pub mod simulated;
pub mod slabs;
pub mod soak;
#[cfg(feature = "proptest")]
pub mod strategy;
pub mod traces;
pub mod workload;
