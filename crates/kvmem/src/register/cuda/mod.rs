//! *CUDA*: GPUs, through the driver's `libcuda.so.1`.
//!
//! ## What a registration is there
//!
//! A copy between a GPU and ordinary memory goes through a buffer of the driver, in pieces, and the
//! caller waits. `cuMemHostRegister` pins the pages instead and makes them known to the GPU: copies
//! then run by DMA at the speed of the bus and side by side with other work, and with
//! [`HostFlags::DEVICE_MAP`] kernels reach the memory by an address of its own.
//!
//! - *Once in a process.* CUDA knows a range or not; a second registration of any part of it is
//!   refused (`CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`), by another GPU and by another library
//!   of the process too. With [`HostFlags::PORTABLE`], which is the default, one registration
//!   serves all GPUs. So name one GPU for a region, not all.
//! - *In a context.* A [`Gpu`] holds its device's primary context, which the runtime API and the
//!   frameworks share. Holding one takes some hundred megabytes of the GPU's memory.
//! - *At most 256 GiB a key.* Larger regions get several.
//!
//! ## The library
//!
//! It is part of the driver and has to fit the kernel's module, so it is never linked and never
//! shipped: it is loaded when it is asked for. Loading starts the driver in this process
//! (`cuInit`); after a fork the child cannot use it. It is not unloaded again: the driver has
//! threads, and handlers for the end of the process.
//!
//! Three things can be missing, and [`NotAvailable`] tells them apart: the library, the driver
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

use self::abi::Abi;
use self::context::Context;
use self::failure::{Failure, check};
use super::NotAvailable;

/// How often memory is taken back where nobody could ask again.
const TRIES: usize = 3;

/// The driver, started.
#[derive(Clone, Debug)]
pub struct Cuda(Arc<Abi>);

impl Cuda {
    /// The name by which the library is found.
    pub const LIBRARY: &str = "libcuda.so.1";

    /// Loads `libcuda.so.1` from where the loader finds it, and starts the driver.
    ///
    /// # Errors
    /// [`NotAvailable`]: the reason begins with `no library`, `no driver` or `no GPU`, or names a function that is missing.
    pub fn load() -> Result<Cuda, NotAvailable> {
        // SAFETY: the name stands for the ABI, by which every program that was linked with the
        // library finds it too.
        unsafe { Cuda::load_from(Self::LIBRARY) }
    }

    /// Loads the library from a file, or by another name, and starts the driver.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    ///
    /// # Safety
    /// If the file is a library with these functions then they are those of the CUDA driver, or
    /// behave alike. What the library runs when it is loaded does no harm.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Cuda, NotAvailable> {
        // SAFETY: the caller's promise.
        let mut abi = unsafe { Abi::load(path.as_ref()) }.map_err(|reason| {
            let remedy = "install NVIDIA's driver (Debian: libcuda1); in a container --gpus all, with the NVIDIA container toolkit";
            not_available(reason, remedy)
        })?;
        // SAFETY: it takes no flag.
        let result = unsafe { (abi.init)(0) };
        abi.keep();
        check(&abi, "cuInit", result).map_err(|failure| {
            let missing = if failure.no_gpu() { "no GPU" } else { "no driver" };
            not_available(format!("{missing}: {failure}"), failure.start_remedy())
        })?;
        Ok(Cuda(Arc::new(abi)))
    }

    /// What the GPUs call themselves, by ordinal; at least one.
    ///
    /// # Errors
    /// [`NotAvailable`] if there is none.
    pub fn devices(&self) -> Result<Vec<String>, NotAvailable> {
        (0..self.count()?).map(|ordinal| self.device(ordinal).map(|(_, model)| model)).collect()
    }

    /// A GPU by its ordinal, with its primary context. Which it is depends on
    /// `CUDA_VISIBLE_DEVICES`. Memory is made known by [`HostFlags::default`]: see [`Gpu::with_flags`].
    ///
    /// # Errors
    /// [`NotAvailable`] if there is no such GPU, or it cannot be used. Nothing is held then.
    pub fn open(&self, ordinal: u32) -> Result<Gpu, NotAvailable> {
        let count = self.count()?;
        let index =
            c_int::try_from(ordinal).ok().filter(|index| *index < count).ok_or_else(|| {
                let last = count - 1;
                let reason = format!("there is no cuda:{ordinal}: there are cuda:0 to cuda:{last}");
                not_available(reason, "name one of those; CUDA_VISIBLE_DEVICES may hide some")
            })?;
        let (device, model) = self.device(index)?;
        let context =
            Context::retain(&self.0, device).map_err(|failure| not_usable(index, &failure))?;
        Ok(Gpu::new(ordinal, model, context))
    }

    /// How many GPUs there are, at least one.
    fn count(&self) -> Result<c_int, NotAvailable> {
        let mut count = 0;
        // SAFETY: the output has the type that the call fills.
        let result = unsafe { (self.0.device_get_count)(&mut count) };
        let failed =
            |failure: Failure| not_available(format!("no GPU: {failure}"), failure.start_remedy());
        check(&self.0, "cuDeviceGetCount", result).map_err(failed)?;
        if count > 0 {
            return Ok(count);
        }
        Err(not_available(
            "no GPU: the driver finds none".to_owned(),
            "a GPU is needed that CUDA_VISIBLE_DEVICES does not hide; in a container --gpus all, or the devices /dev/nvidia*",
        ))
    }

    /// A GPU and what it calls itself.
    fn device(&self, ordinal: c_int) -> Result<(abi::Device, String), NotAvailable> {
        let failed = |failure: Failure| not_usable(ordinal, &failure);
        let mut device = 0;
        // SAFETY: the output has the type that the call fills.
        let result = unsafe { (self.0.device_get)(&mut device, ordinal) };
        check(&self.0, "cuDeviceGet", result).map_err(failed)?;
        let mut name = [0u8; 256];
        // SAFETY: the buffer is longer than is said, so that a zero follows in any case.
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

/// A GPU that is there and cannot be used.
fn not_usable(ordinal: c_int, failure: &Failure) -> NotAvailable {
    not_available(format!("cuda:{ordinal}: {failure}"), failure.start_remedy())
}
