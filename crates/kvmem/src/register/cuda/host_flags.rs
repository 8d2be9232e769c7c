//! *Flags*: how memory is made known to GPUs.

use super::super::flags::flags;

flags! {
    /// How memory is made known to GPUs: the flags of `cuMemHostRegister`.
    ///
    /// ```
    /// use kvmem::register::cuda::HostFlags;
    ///
    /// let flags = HostFlags::default() | HostFlags::READ_ONLY;
    /// assert_eq!(flags.to_string(), "portable+device_map+read_only");
    /// assert_eq!(HostFlags::default().bits(), 3);
    /// ```
    HostFlags {
        /// To all contexts of the process, those of other GPUs included, and not to that of one GPU only.
        PORTABLE = 1, "portable";
        /// Kernels on the GPU can reach it, by the address that the key has as its `lkey`. Without this it can only be copied
        /// from and to, and the `lkey` is 0.
        DEVICE_MAP = 1 << 1, "device_map";
        /// It is not memory but a device's, mapped: such as the registers of another card.
        IO_MEMORY = 1 << 2, "io_memory";
        /// The GPU only reads it. Needed for memory that is mapped read-only; not all GPUs and systems know this one.
        READ_ONLY = 1 << 3, "read_only";
    }
}

impl Default for HostFlags {
    /// Portable, and mapped for the GPU.
    fn default() -> HostFlags {
        HostFlags::PORTABLE | HostFlags::DEVICE_MAP
    }
}
