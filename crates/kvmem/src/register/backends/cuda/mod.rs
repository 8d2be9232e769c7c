//! *CUDA*: GPUs, through the driver's `libcuda.so.1`.
//!
//! ## What a registration is
//!
//! A copy between a GPU and ordinary memory goes through a buffer of the driver, piece by piece,
//! while the caller waits. `cuMemHostRegister` instead pins the pages and registers them with the
//! GPU. Copies then run by DMA at the speed of the bus, concurrently with other work. With
//! [`HostFlags::DEVICE_MAP`] kernels access the memory at an address on the GPU.
//!
//! - *Once in a process.* CUDA registers a range once. A second registration of any part of it
//!   fails with `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`, also from another GPU or another
//!   library of the process. With [`HostFlags::PORTABLE`], the default, one registration serves all
//!   GPUs. Register a region with one GPU, not with all.
//! - *In a context.* A [`Gpu`] holds its device's primary context, which the runtime API and the
//!   frameworks share. Holding one takes some hundred megabytes of the GPU's memory.
//! - *Copied by address.* A copy names no key, and fails with `CUDA_ERROR_INVALID_VALUE` if its
//!   range begins in one registered range and ends in another. A region is therefore registered
//!   with one call, of at most 256 GiB (1 GiB on Linux 6.11 to 6.13), unless its owner sets
//!   [`chunk_bytes`](crate::register::RegistrationBuilder::chunk_bytes) and lets no copy cross an
//!   edge.
//! - *In pieces of 1 GiB where no block crosses an edge.* A driver holds its locks for the whole
//!   call, some 0.1 s for each GB; pieces let other callers in between, and registering can report
//!   progress and be cancelled. They also stay below two limits for one call: less than 512 GiB
//!   with drivers from r580 on, and 2 GiB on Linux 6.11 to 6.13. The blocks of a pool and the
//!   values of a node cross no edge, so both are registered in pieces.
//!
//! ## The library
//!
//! The library is part of the driver and must match the kernel module. It is therefore never linked
//! or shipped, but loaded on request. Loading starts the driver in this process (`cuInit`); after a
//! fork the child cannot use it. The library is never unloaded: the driver has threads, and
//! handlers for the end of the process.
//!
//! Three things can be missing, and [`NotAvailable`](crate::register::NotAvailable) distinguishes
//! them: the library, the driver behind it, a GPU.
//!
//! ```no_run
//! use kvmem::register::Registrar;
//! use kvmem::register::cuda::Cuda;
//!
//! let cuda = Cuda::load()?;
//! for (ordinal, model) in (0..).zip(cuda.devices()?) {
//!     let gpu = cuda.open(ordinal)?;
//!     println!("{} is a {model}", gpu.name());
//! }
//! # Ok::<(), kvmem::register::NotAvailable>(())
//! ```

mod abi;
mod context;
mod driver;
mod failure;
mod gpu;
mod host_flags;

pub use driver::Cuda;
pub use gpu::Gpu;
pub use host_flags::HostFlags;
