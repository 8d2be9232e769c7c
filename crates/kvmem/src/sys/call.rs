//! *Call*: the name of a system call, for errors and for tests.

use std::fmt;

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident => $shown:literal,)*) => {
        /// A system call of this library, as its errors name it. One kind of use is one name: `mmap` has several.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Call {
            $($(#[$doc])* $name,)*
        }

        impl Call {
            /// All of them.
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
    /// Reserving a range of addresses, with no access.
    Reserve => "mmap(PROT_NONE)",
    /// Mapping private pages.
    MapAnonymous => "mmap(MAP_ANONYMOUS)",
    /// Putting hugepages into a range.
    MapHuge => "mmap(MAP_HUGETLB)",
    /// Putting a file into a range.
    MapFile => "mmap(MAP_SHARED)",
    /// Opening a reserved range for reading and writing.
    Protect => "mprotect",
    /// Giving addresses back.
    Unmap => "munmap",
    /// Advice about a range, discarding included.
    Advise => "madvise",
    /// Making a range resident.
    PopulateWrite => "madvise(MADV_POPULATE_WRITE)",
    /// Making one page resident on kernels without the former.
    Touch => "futex(FUTEX_WAKE_OP)",
    /// Asking which pages are resident.
    Mincore => "mincore",
    /// Setting the NUMA policy of a range.
    Bind => "mbind",
    /// Reading it back.
    GetPolicy => "get_mempolicy",
    /// Asking on which nodes pages lie.
    NodesOf => "move_pages",
    /// Asking on which node the thread runs.
    NodeHere => "getcpu",
    /// Making an anonymous file.
    MemfdCreate => "memfd_create",
    /// Setting its size.
    Truncate => "ftruncate",
    /// Setting who may open it, and for what.
    SetMode => "fchmod",
    /// Sealing it.
    SetSeals => "fcntl(F_ADD_SEALS)",
    /// Reading the seals of a file.
    GetSeals => "fcntl(F_GET_SEALS)",
    /// A second descriptor of a file.
    Duplicate => "fcntl(F_DUPFD_CLOEXEC)",
    /// A descriptor of a file that can only be read from.
    Reopen => "open(/proc/self/fd)",
    /// Opening a file to lock ranges of it.
    OpenToLock => "open",
    /// Locking and unlocking a range of a file.
    LockRange => "fcntl(F_OFD_SETLK)",
    /// Looking for a range that another open file has locked.
    FindLock => "fcntl(F_OFD_GETLK)",
    /// Locking and unlocking a file as a whole.
    LockFile => "flock",
    /// Reading the size of a file.
    FileSize => "fstat",
    /// Reading the kind of file system and the page size of a file.
    FileSystem => "fstatfs",
    /// Reading how much room a file system has.
    SpaceAt => "statvfs",
    /// Opening `/proc/self/pagemap`.
    OpenPagemap => "open(/proc/self/pagemap)",
    /// Reading from it.
    Pread => "pread",
    /// Scanning page tables.
    PagemapScan => "ioctl(PAGEMAP_SCAN)",
    /// Reading a small text file of `/proc` or `/sys`.
    ReadText => "read",
    /// Asking what a path is.
    Stat => "stat",
    /// Reading a resource limit.
    GetLimit => "getrlimit",
    /// Reading which cores the process may use.
    Affinity => "sched_getaffinity",
    /// Making a ring, or asking whether one may be made.
    IoUringSetup => "io_uring_setup",
    /// Giving it an empty table of fixed buffers.
    RingTable => "io_uring_register(IORING_REGISTER_BUFFERS2)",
    /// Pinning a buffer into a slot of that table.
    RingFill => "io_uring_register(IORING_REGISTER_BUFFERS_UPDATE)",
    /// Taking it out.
    RingEmpty => "io_uring_register(IORING_REGISTER_BUFFERS_UPDATE) of no buffer",
    /// Putting a buffer of one ring into another.
    RingClone => "io_uring_register(IORING_REGISTER_CLONE_BUFFERS)",
    /// Locking a range into memory.
    Lock => "mlock",
    /// Letting go of it.
    Unlock => "munlock",
    /// Announcing barriers on all threads.
    RegisterMembarrier => "membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)",
    /// A barrier on all threads.
    Membarrier => "membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)",
    /// Saying what runs around a fork.
    AtFork => "pthread_atfork",
    /// Starting a thread.
    Spawn => "clone",
    /// Loading a library.
    OpenLibrary => "dlopen",
    /// Looking for a function of it.
    Symbol => "dlsym",
}
