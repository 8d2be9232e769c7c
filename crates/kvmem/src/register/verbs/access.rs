//! *Access*: what a key allows.

use super::super::flags::flags;

flags! {
    /// What the holder of a key may do with the memory. Reading it locally is always allowed.
    ///
    /// The standard wants [`LOCAL_WRITE`](Access::LOCAL_WRITE) wherever [`REMOTE_WRITE`](Access::REMOTE_WRITE) or
    /// [`REMOTE_ATOMIC`](Access::REMOTE_ATOMIC) is asked for; the device refuses anything else with `EINVAL`. Nothing is added
    /// to what was asked for.
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
        /// The device writes the memory on behalf of this process: receives, and what reads bring.
        LOCAL_WRITE = 1, "local_write";
        /// Peers write it.
        REMOTE_WRITE = 1 << 1, "remote_write";
        /// Peers read it.
        REMOTE_READ = 1 << 2, "remote_read";
        /// Peers use it in atomic operations.
        REMOTE_ATOMIC = 1 << 3, "remote_atomic";
        /// The device may let writes overtake each other on their way through PCIe, which is quicker on some machines. Then the
        /// last byte of a message may be there before the first; only a completion says that all is there. An optional flag:
        /// libraries and kernels that do not know it go without.
        RELAXED_ORDERING = 1 << 20, "relaxed_ordering";
    }
}

impl Access {
    /// What goes into bits 20 to 29 a library or kernel may leave out.
    pub(super) const OPTIONAL: Access = Access(0x3ff0_0000);
}

impl Default for Access {
    /// What transfers of a KV cache need: local write, remote read, remote write.
    fn default() -> Access {
        Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE
    }
}
