//! *Flags*: how memory is registered with GPUs.

use crate::register::backends::flags::flags;

flags! {
    /// How memory is registered with GPUs: the flags of `cuMemHostRegister`.
    ///
    /// ```
    /// use kvmem::register::cuda::HostFlags;
    ///
    /// let flags = HostFlags::default() | HostFlags::READ_ONLY;
    /// assert_eq!(flags.to_string(), "portable+device_map+read_only");
    /// assert_eq!(HostFlags::default().bits(), 3);
    /// ```
    HostFlags {
        /// For all contexts of the process, those of other GPUs included, not only for one GPU's.
        PORTABLE = 1, "portable";
        /// Kernels on the GPU can access the memory, at the address in the key's `lkey`. Without
        /// this flag the memory can only be copied from and to, and the `lkey` is 0.
        DEVICE_MAP = 1 << 1, "device_map";
        /// The range is not memory but a mapped device, such as the registers of another card.
        IO_MEMORY = 1 << 2, "io_memory";
        /// The GPU only reads the memory. Required for memory that is mapped read-only; not all
        /// GPUs and systems support this flag.
        READ_ONLY = 1 << 3, "read_only";
    }
}

impl Default for HostFlags {
    /// Returns `PORTABLE` and `DEVICE_MAP`.
    fn default() -> HostFlags {
        HostFlags::PORTABLE | HostFlags::DEVICE_MAP
    }
}
