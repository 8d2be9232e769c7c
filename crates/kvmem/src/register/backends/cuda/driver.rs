//! *Driver*: the loaded and started driver, and the GPUs that it finds.

use std::ffi::{c_char, c_int};
use std::path::Path;
use std::sync::Arc;

use super::abi::{CuDevice, CudaAbi};
use super::context::PrimaryContext;
use super::failure::{CudaFailure, check, not_available, not_usable};
use super::gpu::Gpu;
use crate::register::NotAvailable;

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
        // SAFETY: the caller promises that a library with these functions behaves like the driver,
        // so it has this ABI, and that the code that runs when it is loaded is sound.
        let mut abi = unsafe { CudaAbi::load(path.as_ref()) }.map_err(|reason| {
            let remedy = "install NVIDIA's driver (Debian: libcuda1); in a container --gpus all, \
                          with the NVIDIA container toolkit";
            not_available(reason, remedy)
        })?;
        // SAFETY: a function of the loaded library, by its type; 0 is the only valid argument.
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
    /// context. Its keys have [`HostFlags::default`](super::HostFlags::default);
    /// [`Gpu::with_flags`] changes that.
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
        // SAFETY: the call stores a number at `count`, which has its type and is borrowed by this
        // call alone.
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
    fn device(&self, ordinal: c_int) -> Result<(CuDevice, String), NotAvailable> {
        let failed = |failure: CudaFailure| not_usable(ordinal, &failure);
        let mut device = 0;
        // SAFETY: the call stores a device at `device`, which has its type and is borrowed by this
        // call alone.
        let result = unsafe { (self.0.device_get)(&mut device, ordinal) };
        check(&self.0, "cuDeviceGet", result).map_err(failed)?;
        let mut name = [0u8; 256];
        // SAFETY: the call writes at most the length that is passed, one byte less than the
        // buffer has. All bytes are initialized, and the last one stays zero.
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
