//! *Call*: names of system calls, for errors and for tests.

use std::fmt;

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident => $shown:literal,)*) => {
        /// A system call of this library, as named in errors. Each kind of use has its own name:
        /// `mmap` has several.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Call {
            $($(#[$doc])* $name,)*
        }

        impl Call {
            /// All calls.
            pub const ALL: &[Call] = &[$(Call::$name,)*];
        }

        impl fmt::Display for Call {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Call::$name => $shown,)*
                })
            }
        }
    };
}

calls! {
    /// Reserves a range of addresses without access.
    Reserve => "mmap(PROT_NONE)",
    /// Maps private pages.
    MapAnonymous => "mmap(MAP_ANONYMOUS)",
    /// Maps hugepages into a range.
    MapHuge => "mmap(MAP_HUGETLB)",
    /// Maps a file into a range.
    MapFile => "mmap(MAP_SHARED)",
    /// Makes a reserved range readable and writable.
    Protect => "mprotect",
    /// Unmaps addresses.
    Unmap => "munmap",
    /// Gives advice about a range; discarding is one kind of advice.
    Advise => "madvise",
    /// Makes a range resident.
    PopulateWrite => "madvise(MADV_POPULATE_WRITE)",
    /// Makes one page resident on kernels without `MADV_POPULATE_WRITE`.
    Touch => "futex(FUTEX_WAKE_OP)",
    /// Reports which pages are resident.
    Mincore => "mincore",
    /// Sets the NUMA policy of a range.
    Bind => "mbind",
    /// Reads the NUMA policy of a page.
    GetPolicy => "get_mempolicy",
    /// Reports the nodes of pages.
    NodesOf => "move_pages",
    /// Reports the node of the calling thread.
    NodeHere => "getcpu",
    /// Makes an anonymous file.
    MemfdCreate => "memfd_create",
    /// Sets the size of a file.
    Truncate => "ftruncate",
    /// Sets the permissions of a file.
    SetMode => "fchmod",
    /// Adds seals to a file.
    SetSeals => "fcntl(F_ADD_SEALS)",
    /// Reads the seals of a file.
    GetSeals => "fcntl(F_GET_SEALS)",
    /// Duplicates a descriptor.
    Duplicate => "fcntl(F_DUPFD_CLOEXEC)",
    /// Opens a read-only descriptor of an open file.
    Reopen => "open(/proc/self/fd)",
    /// Opens a file whose ranges will be locked.
    OpenToLock => "open",
    /// Locks or unlocks a range of a file.
    LockRange => "fcntl(F_OFD_SETLK)",
    /// Finds a range that another open file has locked.
    FindLock => "fcntl(F_OFD_GETLK)",
    /// Locks or unlocks a whole file.
    LockFile => "flock",
    /// Reads the size of a file.
    FileSize => "fstat",
    /// Reads the kind of file system and the page size of a file.
    FileSystem => "fstatfs",
    /// Reads the size and the free bytes of a file system.
    SpaceAt => "statvfs",
    /// Opens `/proc/self/pagemap`.
    OpenPagemap => "open(/proc/self/pagemap)",
    /// Reads from `/proc/self/pagemap`.
    Pread => "pread",
    /// Scans page tables.
    PagemapScan => "ioctl(PAGEMAP_SCAN)",
    /// Reads a small text file of `/proc` or `/sys`.
    ReadText => "read",
    /// Reads the kind of a path.
    Stat => "stat",
    /// Lists a folder of `/proc`, `/sys` or `/dev/shm`.
    ListFolder => "getdents",
    /// Reads the target of a symbolic link.
    ReadLink => "readlink",
    /// Reads a resource limit.
    GetLimit => "getrlimit",
    /// Reads the cores that the process may use.
    Affinity => "sched_getaffinity",
    /// Makes an io_uring, or checks whether one may be made.
    IoUringSetup => "io_uring_setup",
    /// Gives an io_uring an empty table of fixed buffers.
    RingTable => "io_uring_register(IORING_REGISTER_BUFFERS2)",
    /// Pins a buffer into a slot of that table.
    RingFill => "io_uring_register(IORING_REGISTER_BUFFERS_UPDATE)",
    /// Removes a buffer from that table.
    RingEmpty => "io_uring_register(IORING_REGISTER_BUFFERS_UPDATE) of no buffer",
    /// Copies a buffer of one ring to another.
    RingClone => "io_uring_register(IORING_REGISTER_CLONE_BUFFERS)",
    /// Locks a range into memory.
    Lock => "mlock",
    /// Unlocks a range.
    Unlock => "munlock",
    /// Registers for barriers on all threads.
    RegisterMembarrier => "membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)",
    /// Runs a barrier on all threads.
    Membarrier => "membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)",
    /// Registers functions that run around a fork.
    AtFork => "pthread_atfork",
    /// Starts a thread.
    Spawn => "clone",
    /// Loads a library.
    OpenLibrary => "dlopen",
    /// Looks up a function of a library.
    Symbol => "dlsym",
}
