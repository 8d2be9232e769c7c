//! Storage: addresses, sizes, kinds and lifetimes, through the types of `dynamo-memory`.

use std::ptr::NonNull;
use std::sync::Arc;

use dynamo_memory::{ArenaAllocator, Buffer, OffsetBuffer, StorageKind};
use kvmem::arena::{PageSize, Region};
use kvmem::pool::Pool;
use kvmem::register::{Key, Limits, Mlock, Registrar, RegistrarError, RegistrationSet};
use kvmem_dynamo::{BlockMemory, MemoryDescriptor, NixlCompatible, PoolMemory, RegionMemory};

const MIB: usize = 1 << 20;

fn region(bytes: usize) -> Region {
    Region::builder(bytes).ladder(PageSize::Base).map().expect("memory")
}

fn pool(bytes: usize) -> Pool {
    Pool::builder(bytes).build().expect("a pool")
}

/// A registrar with the name of a GPU, which pins nothing.
#[derive(Debug)]
struct NamedGpu;

impl Registrar for NamedGpu {
    fn name(&self) -> &str {
        "cuda:0"
    }

    fn limits(&self) -> Limits {
        Limits::none(self.name())
    }

    unsafe fn register(&self, at: NonNull<u8>, _len: usize) -> Result<Key, RegistrarError> {
        Ok(Key { handle: at.addr().get() as u64, lkey: 0, rkey: None })
    }

    fn deregister(&self, _key: Key) -> Result<(), RegistrarError> {
        Ok(())
    }
}

/// Compares what both traits say.
fn check(memory: &(impl MemoryDescriptor + NixlCompatible), kind: StorageKind) {
    let (ptr, size, mem_type, device) = memory.nixl_params();
    assert_eq!((ptr.addr(), size), (memory.addr(), memory.size()));
    assert_eq!((mem_type, device), (dynamo_memory::nixl::MemType::Dram, 0));
    assert_eq!(memory.storage_kind(), kind);
    assert!(memory.addr() != 0 && memory.size() > 0);
}

#[test]
fn a_region_is_system_memory_until_a_gpu_registers_it() {
    let memory = RegionMemory::new(region(MIB));
    check(&memory, StorageKind::System);
    assert_eq!(memory.size(), memory.region().len());
    assert!(memory.registrations().is_none() && memory.nixl_descriptor().is_none());

    // A lock is no registration with a GPU.
    let lock = Mlock::new("mlock");
    let set = RegistrationSet::builder().registrars([Arc::new(lock) as _]);
    let set = set.register(region(64 << 10));
    let memory = RegionMemory::registered(set.expect("64 KiB may be locked"));
    check(&memory, StorageKind::System);
    assert_eq!(memory.registrations().map(|set| set.devices().count()), Some(1));
}

#[test]
fn memory_that_a_gpu_has_registered_is_pinned() {
    let set = RegistrationSet::builder().registrars([Arc::new(NamedGpu) as _]);
    let set = Arc::new(set.register(region(MIB)).expect("it takes anything"));
    let memory = RegionMemory::registered(Arc::clone(&set));
    check(&memory, StorageKind::Pinned);
    assert_eq!(memory.addr(), set.region().base().addr().get());

    let pool = Pool::builder(MIB).registrars([Arc::new(NamedGpu) as _]).build().expect("a pool");
    let pool = Arc::new(pool);
    check(&BlockMemory::new(pool.allocate(4096).expect("there is room")), StorageKind::Pinned);
    // SAFETY: nothing is transferred in this test.
    let memory = unsafe { PoolMemory::new(Arc::clone(&pool)) };
    check(&memory, StorageKind::Pinned);
    let block = pool.allocate(4096).expect("there is room");
    let block = BlockMemory::within(block, &Buffer::new(memory)).expect("it is from this pool");
    check(&block, StorageKind::Pinned);
}

#[test]
fn buffers_keep_the_memory_mapped() {
    let shared = Arc::new(region(MIB));
    let buffer = Buffer::new(RegionMemory::new(Arc::clone(&shared)));
    let part = OffsetBuffer::new(buffer.clone(), 4096, 8192).expect("it lies in the region");
    assert_eq!((part.addr(), part.size()), (shared.base().addr().get() + 4096, 8192));
    let region = Arc::downgrade(&shared);
    drop((shared, buffer));
    assert!(region.upgrade().is_some(), "the part still needs it");
    // Dynamo writes by address.
    let at = std::ptr::with_exposed_provenance_mut::<u8>(part.addr());
    // SAFETY: the part keeps the region mapped, and no other code uses it.
    unsafe { at.write_bytes(0xa5, part.size()) };
    drop(part);
    assert!(region.upgrade().is_none(), "nothing needs it any more");
    // Types come back from behind the trait.
    let buffer = Buffer::new(RegionMemory::new(self::region(MIB)));
    assert!(buffer.as_any().downcast_ref::<RegionMemory>().is_some());
}

#[test]
fn the_arena_of_dynamo_allocates_in_a_region() {
    let memory = RegionMemory::new(region(MIB));
    let (start, end) = (memory.addr(), memory.addr() + memory.size());
    let arena = ArenaAllocator::new(memory, 4096).expect("a page size");
    let parts: Vec<_> = (0..16).map(|_| arena.allocate(40_000).expect("there is room")).collect();
    for (at, part) in parts.iter().enumerate() {
        assert!(part.addr() >= start && part.addr() + part.size() <= end);
        let next = |other: &&_| std::ptr::eq(*other, part);
        let others = parts.iter().filter(|other| !next(other));
        assert!(
            others.clone().all(|other| {
                other.addr() + other.size() <= part.addr()
                    || part.addr() + part.size() <= other.addr()
            }),
            "part {at} overlaps another one"
        );
    }
}

#[test]
fn a_block_goes_back_to_its_pool() {
    let pool = pool(MIB);
    let mut block = pool.allocate(10_000).expect("there is room");
    block.bytes_mut().fill(7);
    let addr = block.as_ptr().addr();
    let memory = BlockMemory::new(block);
    check(&memory, StorageKind::System);
    assert_eq!((memory.addr(), memory.size()), (addr, 10_000));
    let block = memory.into_block();
    assert!(block.bytes().iter().all(|&byte| byte == 7));
    let used = || pool.figures().allocated;
    assert!(used() > 0);
    drop(Buffer::new(BlockMemory::new(block)));
    pool.trim();
    assert_eq!(used(), 0);
}

#[test]
fn a_block_lies_in_the_memory_of_its_pool() {
    let pool = Arc::new(pool(MIB));
    // SAFETY: nothing is transferred in this test.
    let memory = unsafe { PoolMemory::new(Arc::clone(&pool)) };
    check(&memory, StorageKind::System);
    assert_eq!(memory.size() as u64, memory.pool().capacity());
    let memory = Buffer::new(memory);
    let block = pool.allocate(4096).expect("there is room");
    let inside = BlockMemory::within(block, &memory).expect("it is from this pool");
    check(&inside, StorageKind::System);
    assert!(inside.nixl_descriptor().is_none(), "the pool is not registered");

    let other = self::pool(MIB);
    let block = other.allocate(4096).expect("there is room");
    let error = BlockMemory::within(block, &memory).expect_err("it is from another pool");
    assert_eq!((error.block_bytes, error.memory_addr), (4096, memory.addr()));
    assert!(error.to_string().contains("give the memory of the pool"), "{error}");
}
