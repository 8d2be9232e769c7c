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
//! - *At most 256 GiB a key.* Larger regions get several keys.
//!
//! ## The library
//!
//! The library is part of the driver and must match the kernel module. It is therefore never linked
//! or shipped, but loaded on request. Loading starts the driver in this process (`cuInit`); after a
//! fork the child cannot use it. The library is never unloaded: the driver has threads, and
//! handlers for the end of the process.
//!
//! Three things can be missing, and [`NotAvailable`] distinguishes them: the library, the driver
//! behind it, a GPU.
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
mod failure;
mod gpu;
mod host_flags;

pub use gpu::Gpu;
pub use host_flags::HostFlags;

use std::ffi::{c_char, c_int};
use std::path::Path;
use std::sync::Arc;

use self::abi::CudaAbi;
use self::context::PrimaryContext;
use self::failure::{CudaFailure, check};
use crate::register::NotAvailable;

/// The number of attempts to unregister memory if no later call can retry it.
const ATTEMPTS: usize = 3;

/// The driver, loaded and started.
#[derive(Clone, Debug)]
pub struct Cuda(Arc<CudaAbi>);

impl Cuda {
    /// The file name under which the loader finds the library.
    pub const LIBRARY: &str = "libcuda.so.1";

    /// Loads `libcuda.so.1` from the loader's search path, and starts the driver.
    ///
    /// # Errors
    /// [`NotAvailable`]: the reason begins with `no library`, `no driver` or `no GPU`, or names a
    /// missing function.
    pub fn load() -> Result<Cuda, NotAvailable> {
        // SAFETY: the name stands for the ABI; every program linked with the library relies on it,
        // too.
        unsafe { Cuda::load_from(Self::LIBRARY) }
    }

    /// Loads the library from a file, or by another name, and starts the driver.
    ///
    /// # Errors
    /// [`NotAvailable`]: the reason begins with `no library`, `no driver` or `no GPU`, or names a
    /// missing function.
    ///
    /// # Safety
    /// If the file is a library with these functions, they behave like those of the CUDA driver.
    /// The code that runs when the library is loaded is sound.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Cuda, NotAvailable> {
        // SAFETY: the caller's promise.
        let mut abi = unsafe { CudaAbi::load(path.as_ref()) }.map_err(|reason| {
            let remedy = "install NVIDIA's driver (Debian: libcuda1); in a container --gpus all, \
                          with the NVIDIA container toolkit";
            not_available(reason, remedy)
        })?;
        // SAFETY: the call takes no flags.
        let result = unsafe { (abi.init)(0) };
        abi.keep();
        check(&abi, "cuInit", result).map_err(|failure| {
            let missing = if failure.no_gpu() { "no GPU" } else { "no driver" };
            not_available(format!("{missing}: {failure}"), failure.start_remedy())
        })?;
        Ok(Cuda(Arc::new(abi)))
    }

    /// Returns the model names of the GPUs, by ordinal; at least one.
    ///
    /// # Errors
    /// [`NotAvailable`] if there is no GPU.
    pub fn devices(&self) -> Result<Vec<String>, NotAvailable> {
        (0..self.count()?).map(|ordinal| self.device(ordinal).map(|(_, model)| model)).collect()
    }

    /// Opens a GPU by its ordinal, which depends on `CUDA_VISIBLE_DEVICES`, and retains its primary
    /// context. Its keys have [`HostFlags::default`]; [`Gpu::with_flags`] changes that.
    ///
    /// # Errors
    /// [`NotAvailable`] if there is no such GPU, or it cannot be used. No context is retained then.
    pub fn open(&self, ordinal: u32) -> Result<Gpu, NotAvailable> {
        let count = self.count()?;
        let index =
            c_int::try_from(ordinal).ok().filter(|index| *index < count).ok_or_else(|| {
                let last = count - 1;
                let reason = format!("there is no cuda:{ordinal}: there are cuda:0 to cuda:{last}");
                not_available(reason, "name one of them; CUDA_VISIBLE_DEVICES may hide some")
            })?;
        let (device, model) = self.device(index)?;
        let context = PrimaryContext::retain(&self.0, device)
            .map_err(|failure| not_usable(index, &failure))?;
        Ok(Gpu::new(ordinal, model, context))
    }

    /// Returns the number of GPUs, at least one.
    fn count(&self) -> Result<c_int, NotAvailable> {
        let mut count = 0;
        // SAFETY: the output has the type that the call fills.
        let result = unsafe { (self.0.device_get_count)(&mut count) };
        let failed = |failure: CudaFailure| {
            not_available(format!("no GPU: {failure}"), failure.start_remedy())
        };
        check(&self.0, "cuDeviceGetCount", result).map_err(failed)?;
        if count > 0 {
            return Ok(count);
        }
        Err(not_available(
            "no GPU: the driver finds none".to_owned(),
            "provide a GPU that CUDA_VISIBLE_DEVICES does not hide; in a container --gpus all, or \
             the devices /dev/nvidia*",
        ))
    }

    /// Returns a GPU and its model name.
    fn device(&self, ordinal: c_int) -> Result<(abi::CuDevice, String), NotAvailable> {
        let failed = |failure: CudaFailure| not_usable(ordinal, &failure);
        let mut device = 0;
        // SAFETY: the output has the type that the call fills.
        let result = unsafe { (self.0.device_get)(&mut device, ordinal) };
        check(&self.0, "cuDeviceGet", result).map_err(failed)?;
        let mut name = [0u8; 256];
        // SAFETY: the buffer is one byte longer than the call is told, so a zero ends the name.
        let result = unsafe {
            (self.0.device_get_name)(
                name.as_mut_ptr().cast::<c_char>(),
                name.len() as c_int - 1,
                device,
            )
        };
        check(&self.0, "cuDeviceGetName", result).map_err(failed)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Ok((device, String::from_utf8_lossy(&name[..end]).into_owned()))
    }
}

fn not_available(reason: String, remedy: &'static str) -> NotAvailable {
    NotAvailable::new("cuda", reason, remedy)
}

/// Returns the error for a GPU that exists and cannot be used.
fn not_usable(ordinal: c_int, failure: &CudaFailure) -> NotAvailable {
    not_available(format!("cuda:{ordinal}: {failure}"), failure.start_remedy())
}
