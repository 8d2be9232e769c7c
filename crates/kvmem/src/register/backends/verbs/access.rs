//! *Access*: the operations that a key allows.

use crate::register::backends::flags::flags;

flags! {
    /// The operations that a key allows on its memory. Local reads are always allowed.
    ///
    /// The standard requires [`LOCAL_WRITE`](Access::LOCAL_WRITE) together with
    /// [`REMOTE_WRITE`](Access::REMOTE_WRITE) or [`REMOTE_ATOMIC`](Access::REMOTE_ATOMIC);
    /// otherwise the device fails with `EINVAL`. Nothing is added to the requested flags.
    ///
    /// ```
    /// use kvmem::register::verbs::Access;
    ///
    /// let access = Access::default() | Access::RELAXED_ORDERING;
    /// assert!(access.contains(Access::REMOTE_READ) && !access.contains(Access::REMOTE_ATOMIC));
    /// assert_eq!(access.to_string(), "local_write+remote_write+remote_read+relaxed_ordering");
    /// assert_eq!(Access::default().bits(), 7);
    /// ```
    Access {
        /// The device writes the memory for this process: receives, and the results of reads.
        LOCAL_WRITE = 1, "local_write";
        /// Peers write the memory.
        REMOTE_WRITE = 1 << 1, "remote_write";
        /// Peers read the memory.
        REMOTE_READ = 1 << 2, "remote_read";
        /// Peers use the memory in atomic operations.
        REMOTE_ATOMIC = 1 << 3, "remote_atomic";
        /// Writes may overtake each other on their way through PCIe, which is faster on some
        /// machines. The last byte of a message may then arrive before the first; only a completion
        /// says that the message is complete. An optional flag: libraries and kernels that do not
        /// know it ignore it.
        RELAXED_ORDERING = 1 << 20, "relaxed_ordering";
    }
}

impl Access {
    /// Bits 20 to 29: flags that a library or kernel may ignore.
    pub(super) const OPTIONAL: Access = Access(0x3ff0_0000);
}

impl Default for Access {
    /// Returns the access for transfers of a KV cache: local write, remote read, remote write.
    fn default() -> Access {
        Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE
    }
}
