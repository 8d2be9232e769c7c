// A moved-from object is empty: every call on it throws, it can be destroyed, and it can be
// assigned to.
#include <kvmem.hpp>

#include <list>
#include <memory_resource>

#include "check.hpp"

// Moves the contents out; the object itself stays.
template <class T>
static T taken(T &object) {
    return T(std::move(object));
}

#define EMPTY(...) THROWS(KVMEM_ERR_NULL_ARGUMENT, "", __VA_ARGS__)

static kvmem::PoolOptions small() {
    kvmem::PoolOptions options;
    options.pages = "4k";
    return options;
}

static void arenas() {
    kvmem::CancelToken cancel;
    const kvmem::CancelToken used = taken(cancel);
    EMPTY(cancel.cancel());
    CHECK(cancel.native_handle() == nullptr);
    // A moved-from token must not count as "no token".
    kvmem::RegionOptions cancelled;
    cancelled.cancel = &cancel;
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "the CancelToken was moved from",
           kvmem::Region(MIB, cancelled));
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "the CancelToken was moved from",
           kvmem::preflight(MIB, cancelled));

    kvmem::Region region(MIB);
    kvmem::Region mapped = taken(region);
    CHECK(region.data() == nullptr && region.size() == 0 && region.bytes().empty());
    CHECK(region.native_handle() == nullptr && region.release() == nullptr);
    EMPTY(region.info());
    EMPTY(region.report());
    EMPTY(region.report_json());
    EMPTY(region.populate(0, 1));
    EMPTY(region.populate_aliases());
    EMPTY(region.resident_bytes(0, 1));
    EMPTY(region.discard(0, 4096));
    EMPTY(region.share(false));
    EMPTY(kvmem::BumpArena(region));
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "the Region was moved from",
           kvmem::SlabAllocator(std::move(region)));
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "the CancelToken",
           mapped.populate(0, 4096, kvmem::populate_auto, nullptr, &cancel));

    kvmem::BumpArena arena(mapped);
    const kvmem::BumpArena bump = taken(arena);
    EMPTY(arena.allocate(1));
    EMPTY(arena.owns(&arena));
    EMPTY(arena.stats());
    EMPTY(arena.reset());
    CHECK(arena.native_handle() == nullptr);
    arena = kvmem::BumpArena(mapped);
    CHECK(arena.allocate(1));
    region = std::move(mapped);
    CHECK(region.size() == MIB);
}

static void registrations() {
    kvmem::Region region(MIB);
    kvmem::Registrars registrars = kvmem::testing::simulated_registrars(1);
    kvmem::Registrars nics = taken(registrars);
    EMPTY(registrars.size());
    EMPTY(registrars.name(0));
    EMPTY(registrars.limits(0));
    EMPTY(kvmem::testing::live_keys(registrars, 0));
    EMPTY(kvmem::testing::inject(registrars, 0, false, 0, 1));
    EMPTY(kvmem::Registration(region, registrars));
    EMPTY(kvmem::BackgroundRegistration(region, registrars));
    kvmem::PoolOptions options = small();
    options.registrars = &registrars;
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "the Registrars of the options was moved from",
           kvmem::Pool(MIB, options));

    kvmem::Registration registration(region, nics);
    kvmem::Registration kept = taken(registration);
    EMPTY(registration.key("simulated:0", 0, 1));
    EMPTY(registration.chunks("simulated:0"));
    EMPTY(registration.info());
    EMPTY(registration.report());
    EMPTY(registration.report_json());
    EMPTY(registration.deregister());
    CHECK(registration.native_handle() == nullptr);
    registration = std::move(kept);
    CHECK(registration.deregister() == 1);

    kvmem::BackgroundRegistration background(region, nics);
    kvmem::BackgroundRegistration working = taken(background);
    EMPTY(background.wait_ready(1, std::chrono::seconds(0)));
    EMPTY(background.progress());
    EMPTY(background.finished());
    EMPTY(background.key("simulated:0", 0, 1));
    EMPTY(std::move(background).wait());
    CHECK(background.native_handle() == nullptr);
    background = std::move(working);
    CHECK(std::move(background).wait().info().keys == 1);
    // The object has become a registration.
    EMPTY(background.finished());
}

static void spaces() {
    kvmem::OffsetAllocator space(MIB);
    kvmem::OffsetAllocator there = taken(space);
    EMPTY(space.allocate(1));
    EMPTY(space.allocate(UINT64_MAX));
    EMPTY(space.allocate_aligned(1, 8));
    EMPTY(space.allocate_batch(1, 0));
    EMPTY(space.allocate_batch(1, 2));
    EMPTY(space.allocate_batch(1, UINT64_MAX));
    EMPTY(space.allocate_scattered(1, 0));
    EMPTY(space.allocate_scattered(1, 1));
    EMPTY(space.allocate_scattered(1, UINT64_MAX));
    EMPTY(space.grow_to(2 * MIB));
    EMPTY(space.shrink_to(1));
    EMPTY(space.metrics());
    EMPTY(space.largest_free_hint());
    EMPTY(space.bins());
    EMPTY(space.map());
    EMPTY(space.trim());
    EMPTY(space.check());
    EMPTY(space.report());
    CHECK(space.native_handle() == nullptr);

    kvmem::Allocation allocation = *there.allocate(100);
    kvmem::Allocation kept = taken(allocation);
    CHECK(!allocation && allocation.offset() == 0 && allocation.size() == 0);
    EMPTY(allocation.shrink(1));
    EMPTY(allocation.extend(200));
    allocation.reset();
    allocation = std::move(kept);
    CHECK(allocation && allocation.size() == 100);
    space = std::move(there);
    CHECK(space.allocate(1));
}

static void slab() {
    kvmem::SlabAllocator slab;
    kvmem::SlabAllocator there = taken(slab);
    EMPTY(slab.allocate(1));
    EMPTY(slab.allocate_zeroed(1));
    EMPTY(slab.copy(kvmem::bytes_view()));
    slab.deallocate(nullptr, 1);
    EMPTY(slab.deallocate_chain(nullptr, 16, 0));
    EMPTY(slab.allocate_batch(1, 0));
    EMPTY(slab.allocate_batch(1, 2));
    EMPTY(slab.deallocate_batch({}, 1));
    EMPTY(slab.usable(1));
    EMPTY(slab.trim());
    EMPTY(slab.tick());
    EMPTY(slab.stats());
    EMPTY(slab.report_leaks());
    CHECK(slab.native_handle() == nullptr);
    // Not out of memory: there is no allocator.
    kvmem::SlabResource resource(slab);
    EMPTY(resource.allocate(1));
    EMPTY(resource.allocate(1, 64));
    kvmem::StdAllocator<int> ints(slab);
    EMPTY(ints.allocate(1));
    slab = std::move(there);
    slab.deallocate(slab.allocate(1), 1);
}

static void pools() {
    kvmem::PoolOptions options = small();
    options.backing = KVMEM_BACKING_SHARED;
    const kvmem::Registrars nics = kvmem::testing::simulated_registrars(1);
    options.registrars = &nics;
    kvmem::Pool pool(MIB, options);
    kvmem::Pool there = taken(pool);
    EMPTY(pool.allocate(1));
    EMPTY(pool.allocate_aligned(1, 8));
    EMPTY(pool.allocate_batch(1, 0));
    EMPTY(pool.allocate_batch(1, UINT64_MAX));
    EMPTY(pool.allocate_scattered(1, 0));
    EMPTY(pool.allocate_scattered(1, UINT64_MAX));
    EMPTY(pool.info());
    EMPTY(pool.report());
    EMPTY(pool.report_json());
    EMPTY(pool.metrics());
    EMPTY(pool.bins());
    EMPTY(pool.map());
    EMPTY(pool.wait_ready(1, std::chrono::seconds(0)));
    EMPTY(pool.grow_to(1));
    EMPTY(pool.shrink_to(1));
    EMPTY(pool.trim());
    EMPTY(pool.check());
    EMPTY(pool.populate_aliases());
    EMPTY(pool.share(true));
    EMPTY(kvmem::KvCache(pool));
    CHECK(pool.native_handle() == nullptr);

    kvmem::Block block = *there.allocate(100);
    kvmem::Block kept = taken(block);
    CHECK(!block && block.data() == nullptr && block.size() == 0 && block.bytes().empty() &&
          block.offset() == 0);
    EMPTY(block.shrink(1));
    EMPTY(block.extend(200));
    EMPTY(block.key("simulated:0"));
    EMPTY(block.reference());
    EMPTY(block.quarantine("it is bad"));
    block.reset();
    const kvmem::BlockRef reference = kept.reference();
    block = std::move(kept);
    CHECK(block.key("simulated:0").has_rkey == 1);

    kvmem::AttachedPool attached(there.share(true));
    kvmem::AttachedPool seen = taken(attached);
    EMPTY(attached.bytes(reference));
    EMPTY(attached.writable_bytes(reference));
    EMPTY(attached.info());
    CHECK(attached.native_handle() == nullptr);
    attached = std::move(seen);
    CHECK(attached.bytes(reference).size() == 100);
    pool = std::move(there);
    CHECK(pool.allocate(1));
}

static void caches() {
    kvmem::Pool pool(MIB, small());
    kvmem::KvCache cache(pool);
    kvmem::KvCache there = taken(cache);
    EMPTY(cache.get("key"));
    EMPTY(cache.get_in_memory("key"));
    EMPTY(cache.contains("key"));
    EMPTY(cache.contains_in_memory("key"));
    EMPTY(cache.len());
    EMPTY(cache.len_in_memory());
    EMPTY(cache.prefetch(std::vector<std::string_view>()));
    EMPTY(cache.insert("key", "value", 5));
    EMPTY(cache.reserve("key", 5));
    EMPTY(cache.remove("key"));
    EMPTY(cache.remove_in_memory("key"));
    EMPTY(cache.clear());
    EMPTY(cache.clear_in_memory());
    EMPTY(cache.evict_to(0));
    EMPTY(cache.stats());
    EMPTY(cache.check());
    CHECK(cache.native_handle() == nullptr);

    CHECK(there.insert("key", "value", 5));
    kvmem::KvValue value = *there.get("key");
    kvmem::KvValue kept = taken(value);
    CHECK(!value && value.bytes().empty() && value.size() == 0 && value.offset() == 0);
    EMPTY(value.cache_key());
    EMPTY(value.key("simulated:0"));
    EMPTY(value.is_superseded());
    EMPTY(value.clone());
    value = std::move(kept);
    CHECK(value.size() == 5);

    kvmem::KvReservation reserved = *there.reserve("other", 5);
    kvmem::KvReservation open = taken(reserved);
    CHECK(!reserved && reserved.bytes().empty() && reserved.size() == 0 && reserved.offset() == 0);
    EMPTY(reserved.cache_key());
    EMPTY(reserved.key("simulated:0"));
    EMPTY(std::move(reserved).commit());
    CHECK(open && open.size() == 5);
    reserved = std::move(open);
    CHECK(std::move(reserved).commit().size() == 5);
    // A committed reservation is empty.
    CHECK(!reserved);
    EMPTY(std::move(reserved).commit());
    cache = std::move(there);
    CHECK(cache.contains("other"));
}

int main() {
    arenas();
    registrations();
    spaces();
    slab();
    pools();
    caches();
    return 0;
}
