//! *Errors*: every public error of the library, once, with example values.

use std::time::Duration;

use kvmem::arena::preflight::RequirementsError;
use kvmem::arena::{
    ArenaError, BumpError, ByteSize, Call, Errno, Fallback, FreeError, Ladder, Limit, Nodes, Numa,
    PageSize, Populate, ProcessAllocError, SettingError, SetupError, SizeFault,
};
use kvmem::cache::{KvCacheError, KvCacheSetupError, LowerTierError};
use kvmem::offset::{AllocError, CheckError, RawError, SpaceError};
use kvmem::pool::PoolError;
use kvmem::register::{
    Account, ChunkError, DevicesError, NotAvailable, ParsePolicyError, PolicyError, RegisterError,
    RegisterLimit, RegistrarError,
};
use kvmem::slab::{ExtentSetupError, SlabError, SlabSettingError, SlabSetupError};

use super::row::{Row, row};

const MIB: usize = 1 << 20;

/// A group of errors under one heading.
pub(super) type Section = (&'static str, Vec<Row>);

/// Returns all errors, by what the caller was doing.
pub(super) fn all() -> Vec<Section> {
    vec![
        ("Mapping and populating memory", memory()),
        ("Arenas", arenas()),
        ("Registering", registering()),
        ("Allocating", allocating()),
        ("Setting up spaces and slabs", spaces()),
        ("Pools", pools()),
        ("Caches", caches()),
        ("Settings and options", settings()),
    ]
}

fn memory() -> Vec<Row> {
    let (call, errno) = (Call::PopulateWrite, Errno::ENOMEM);
    let machine = || Limit::Machine(64 << 20);
    let hugepages = Limit::Pool { page: PageSize::Huge2M, free: 16 };
    vec![
        row(ArenaError::ZeroSize),
        row(ArenaError::TooLarge { requested: usize::MAX, max: isize::MAX as usize }),
        row(ArenaError::EmptyLadder),
        row(ArenaError::NoPages {
            range: 0..64 * MIB,
            page: PageSize::Huge2M,
            reason: Fallback::PoolShort { page: PageSize::Huge2M, wanted: 32, free: 16 },
            limit: Some(hugepages.clone()),
        })
        .fix(hugepages.remedy()),
        row(ArenaError::CallFailed {
            call: Call::Reserve,
            bytes: 64 * MIB,
            errno,
            limit: Some(Limit::AddressSpace(32 << 20)),
        }),
        row(ArenaError::Populate {
            range: 0..2 * MIB,
            call,
            errno,
            limit: Some(machine()),
            remedy: "…",
        }),
        row(short()),
        row(ArenaError::Cancelled { done: 1 << 20, total: 64 << 20 })
            .fix("nothing, or call again: the caller cancelled it"),
        row(ArenaError::OverBudget {
            budget: Duration::from_secs(1),
            done: 1 << 20,
            total: 64 << 20,
        }),
        row(ArenaError::NoNodes { online: Nodes(vec![0, 1]) }),
        row(ArenaError::NoSuchNode { node: 7, online: Nodes(vec![0, 1]) }),
        row(ArenaError::PolicyFailed {
            nodes: Nodes(vec![1]),
            call: Call::Bind,
            errno: Errno::EPERM,
        }),
        row(ArenaError::Misplaced {
            range: 0..2 * MIB,
            found: Nodes(vec![0]),
            wanted: Nodes(vec![1]),
        }),
        row(ArenaError::OutOfBounds { start: 0, end: 2 * MIB, len: MIB })
            .fix("pass a range that ends within the region"),
        row(ArenaError::Misaligned { start: 1, end: MIB, page: 4096 })
            .fix("round the range to whole pages"),
        row(ArenaError::Pooled { range: 0..2 * MIB, page: PageSize::Huge2M }),
        row(ArenaError::Registered { range: 0..MIB, held: 0..64 * MIB }),
        row(ArenaError::Foreign { what: "discarding" }),
        row(ArenaError::Shared),
        row(ArenaError::NotMemory),
        row(ArenaError::Unsealed { seals: 0, wanted: 7 }),
        row(ArenaError::WrongSize { found: 1 << 20, expected: 2 << 20 }),
    ]
}

/// The machine has too little memory.
fn short() -> ArenaError {
    ArenaError::NoHeadroom { need: 128 << 20, limit: Limit::Machine(64 << 20) }
}

fn arenas() -> Vec<Row> {
    vec![
        row(BumpError::Zero),
        row(BumpError::BadAlign { align: 3 }),
        row(BumpError::Overflow { requested: usize::MAX, align: 8 }),
        row(BumpError::Full { requested: 4096, remaining: 1000 }),
        row(SetupError::Setting(switch())).contains_another(),
        row(SetupError::Map { pool_bytes: 128 * MIB, source: short() }),
        row(SetupError::InUse),
        row(ProcessAllocError::Invalid(BumpError::Zero)).contains_another(),
        row(ProcessAllocError::Map { requested: MIB, align: 64, errno: Errno::ENOMEM }),
        row(FreeError::Unknown { address: 0x7f00_0000 })
            .fix("free each allocation once, at the address that it was given"),
        row(FreeError::AllFreed { address: 0x7f00_0000, allocations: 3 })
            .fix("free each allocation once"),
        row(FreeError::Unmap { address: 0x7f00_0000, bytes: MIB, errno: Errno::ENOMEM }),
    ]
}

/// What to do about an error whose remedy depends on the device, the call and the error number.
const ITS_OWN: &str =
    "as its text says: each device, call and error number has a remedy of its own";

fn failure() -> RegistrarError {
    RegistrarError::new("ibv_reg_mr", Errno::ENOMEM, "…")
}

fn chunk() -> ChunkError {
    ChunkError { device: "mlx5_0".into(), chunk: 1, range: MIB..2 * MIB, cause: failure() }
}

fn registering() -> Vec<Row> {
    let device = || "mlx5_0".to_owned();
    let memlock = RegisterLimit::Memlock {
        account: Account::Locked,
        limit_bytes: 8 << 20,
        used_bytes: 0,
        need_bytes: 64 << 20,
    };
    vec![
        row(NotAvailable::new("verbs", "no library: libibverbs.so.1", "…")).fix(ITS_OWN),
        row(failure().detail("the driver's own message")).fix(ITS_OWN),
        row(chunk()).fix(ITS_OWN),
        row(RegisterError::NoRegistrars),
        row(RegisterError::Empty).fix("map a region of at least 1 byte"),
        row(RegisterError::SameName { device: device() }),
        row(RegisterError::Limited { device: "mlock".into(), exceeded: memlock.clone() })
            .fix(memlock.remedy()),
        row(RegisterError::ChunkFailed { error: Box::new(chunk()), kept: Vec::new() }).fix(ITS_OWN),
        row(RegisterError::DeregisterFailed { kept: vec![chunk()] })
            .fix("as the first failure says; the memory is released when the process ends"),
        row(RegisterError::NoThread { errno: Errno::EAGAIN }),
        row(RegisterError::Populate(short())).contains_another(),
        row(RegisterError::Cancelled { done: 1 << 20, total: 64 << 20 })
            .fix("nothing, or call again: the caller cancelled it"),
        row(RegisterError::OverBudget {
            budget: Duration::from_secs(1),
            done: 1 << 20,
            total: 64 << 20,
        }),
        row(RegisterError::NoSuchDevice { device: device(), have: vec!["mlock".into()] })
            .fix("use one of the names that it lists"),
        row(RegisterError::OutOfBounds { start: 0, end: 2 * MIB, len: MIB })
            .fix("pass a range within the registered bytes, or wait until more are registered"),
        row(RegisterError::Straddles { device: device(), start: 1, end: 2 * MIB, edge: MIB }),
        row(RegisterError::Deregistered { device: device() }),
    ]
}

fn allocating() -> Vec<Row> {
    let limit = 1 << 20;
    vec![
        row(AllocError::ZeroSize),
        row(AllocError::TooLarge { requested: 2 << 20, limit }),
        row(AllocError::BadAlign { align: 3 }),
        row(AllocError::AlignTooLarge { requested: 4096, align: 2 << 20, limit }),
        row(AllocError::OutOfSpace { requested: 65_536, free: 100_000, largest_free: 40_000 }),
        row(AllocError::NotFree { start: 4096, end: 12_288, capacity: limit }),
        row(AllocError::CannotExtend { requested: 8192, max: 5000 }),
        row(AllocError::NoRanges { requested: 65_536 }),
        row(AllocError::OutOfBounds {
            start: 0,
            end: 8192,
            allocation_start: 0,
            allocation_end: 4096,
        })
        .fix("pass a part of the allocation that has at least 1 byte"),
        row(AllocError::TooManyRanges { ranges: 1000 }),
        row(RawError::Foreign { allocator: 1, handle_of: 2 })
            .fix("pass the handle to the allocator that issued it"),
        row(RawError::Stale { slot: 3, generation: 5 }).fix("use and free each handle once"),
        row(RawError::Failed(AllocError::ZeroSize)).contains_another(),
        row(SlabError::ZeroSize),
        row(SlabError::TooLarge { requested: usize::MAX, max: isize::MAX as usize }),
        row(SlabError::NoMemory { requested: 4096 }),
    ]
}

fn spaces() -> Vec<Row> {
    vec![
        row(SpaceError::Capacity { requested: 0, limit: 1 << 63 }),
        row(SpaceError::ZeroBoundary),
        row(SpaceError::MaxRanges { requested: 1, min: 16 }),
        row(SpaceError::Shards { requested: 64, max: 63 }),
        row(SpaceError::WrongDirection { capacity: 1 << 20, requested: 4096 }),
        row(SpaceError::InUse { requested: 4096, end_of_last: 65_536 }),
        row(SpaceError::TooManyRanges { ranges: 1000 }),
        row(CheckError { invariant: 4, what: "a hole is in no bin".into() })
            .fix("report it with the calls that led to it: it is a defect of kvmem"),
        row(ExtentSetupError::Space(SpaceError::ZeroBoundary)).contains_another(),
        row(ExtentSetupError::HotSize { requested: 2 << 20, max: 1 << 20 }),
        row(ExtentSetupError::HotSizes { requested: 40, max: 32 }),
        row(SlabSetupError::Setting(slab_setting())).contains_another(),
        row(SlabSetupError::Limit { requested: MIB, max: 8192 }),
    ]
}

fn pools() -> Vec<Row> {
    vec![
        row(PoolError::Allocate(AllocError::ZeroSize)).contains_another(),
        row(PoolError::NotReady { requested: 65_536, ready: 1 << 20, capacity: 64 << 20 }),
        row(PoolError::Size { text: "64 gigs".into(), fault: Box::new(unit()) }),
        row(PoolError::Limit { requested: 128 << 20, max: 64 << 20 }),
        row(PoolError::Boundary { requested: 1000, min: 4096 }),
        row(PoolError::Initializing),
        row(PoolError::OutOfBounds { range: 0..8192, len: 4096 }),
        row(PoolError::Private),
        row(PoolError::ReadOnly),
        row(PoolError::Foreign { of: 7, here: 8 }),
        row(PoolError::Memory(Box::new(short()))).contains_another(),
        row(PoolError::Register(Box::new(RegisterError::Empty))).contains_another(),
        row(PoolError::Space(Box::new(SpaceError::ZeroBoundary))).contains_another(),
        row(PoolError::HotSizes(Box::new(ExtentSetupError::HotSizes { requested: 40, max: 32 })))
            .contains_another(),
        row(PoolError::NoThread { errno: Errno::EAGAIN }).fix(
            "raise RLIMIT_NPROC or the pids limit of the cgroup, or do without it: build in the \
             foreground, publish by calls",
        ),
    ]
}

fn caches() -> Vec<Row> {
    vec![
        row(KvCacheError::Empty),
        row(KvCacheError::TooLarge { requested: 128 << 20, limit: 64 << 20 }),
        row(KvCacheError::NothingToEvict { requested: 65_536, blocks: 16, bytes: 1 << 20 }),
        row(KvCacheError::Pool(PoolError::Private)).contains_another(),
        row(KvCacheError::WrongLength { requested: 4096, returned: 1000, limit: 1 << 20 }),
        row(KvCacheError::Forked),
        row(KvCacheSetupError::ZeroLimit { of: "bytes" }),
        row(KvCacheSetupError::TooManyBlocks { requested: 1 << 40, limit: 1 << 30 }),
        row(KvCacheSetupError::TwoSinks),
        row(KvCacheSetupError::Shards { requested: 0, limit: 4096 }),
        row(LowerTierError::Remove("the disk is away".into())),
        row(LowerTierError::Clear("the disk is away".into())),
    ]
}

fn settings() -> Vec<Row> {
    let size = SettingError::Size {
        variable: "KVMEM_ARENA_POOL_SIZE",
        value: "8 gigs".into(),
        fault: SizeFault::Unit { unit: "gigs".into() },
    };
    vec![
        row("64 gigs".parse::<ByteSize>().unwrap_err()),
        row(SizeFault::Empty).fix(WITHIN),
        row(SizeFault::Negative).fix(WITHIN),
        row(SizeFault::NoNumber).fix(WITHIN),
        row(unit()).fix(WITHIN),
        row(SizeFault::Zero).fix(WITHIN),
        row(SizeFault::TooLarge { limit: isize::MAX as usize }).fix(WITHIN),
        row("3M".parse::<Ladder>().unwrap_err()),
        row("many".parse::<Populate>().unwrap_err()),
        row("bind:3-1".parse::<Numa>().unwrap_err()),
        row(size),
        row(switch()),
        row(slab_setting()),
        row(PolicyError {
            variable: "KVMEM_PARALLEL_REGISTER",
            value: "yes".into(),
            allowed: "-1 (automatic), 0 (sequential) or 1 (parallel)",
        }),
        row(ParsePolicyError::Unknown { text: "fast".into() }),
        row(ParsePolicyError::Threads { text: "0".into() }),
        row(DevicesError::None),
        row(DevicesError::Unknown { text: "gpu".into() }),
        row(DevicesError::Which { text: "io_uring:x".into(), allowed: "a number of rings from 1" }),
        row(DevicesError::Twice { first: "verbs".into(), second: "verbs:mlx5_0".into() }),
        row(RequirementsError::Size { requested: 0, limit: 1 << 47 }),
        row(RequirementsError::NoPages),
        row(RequirementsError::Twice { page: PageSize::Thp }),
    ]
}

/// What to do about a fault that the error of a size contains.
const WITHIN: &str = "as the error of the size says, which contains it";

fn unit() -> SizeFault {
    SizeFault::Unit { unit: "gigs".into() }
}

fn switch() -> SettingError {
    SettingError::Switch { variable: "KVMEM_DISABLE_ARENA", value: "maybe".into() }
}

fn slab_setting() -> SlabSettingError {
    SlabSettingError { variable: "KVMEM_SLAB", value: "debug".into(), word: "debug".into() }
}
