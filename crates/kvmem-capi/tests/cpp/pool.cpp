// Pools, blocks, and pools of other processes.
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <unistd.h>

#include "check.hpp"

static_assert(moves_only<kvmem::Pool> && moves_only<kvmem::Block> &&
              moves_only<kvmem::AttachedPool>);

static kvmem::PoolOptions small_pages() {
    kvmem::PoolOptions options;
    options.pages = "4k";
    return options;
}

static void blocks() {
    kvmem::Registrars nics = kvmem::testing::simulated_registrars(2);
    kvmem::PoolOptions options = small_pages();
    options.registrars = &nics;
    options.hot_sizes = {4096};
    std::uint64_t reports = 0;
    options.progress = [&](const kvmem::Progress &) { ++reports; };
    kvmem::Pool pool(4 * MIB, options);
    CHECK(reports != 0 && pool.info().devices == 2 && pool.info().ready_bytes == 4 * MIB);
    CHECK(!pool.report().empty() && pool.report_json().front() == '{');

    auto block = pool.allocate(4096);
    auto aligned = pool.allocate_aligned(100, 64 * KIB);
    CHECK(block && aligned && block->size() == 4096 && block->bytes().size() == 4096);
    CHECK(reinterpret_cast<std::uintptr_t>(aligned->data()) % (64 * KIB) == 0);
    CHECK(static_cast<char *>(pool.info().data) + block->offset() == block->data());
    std::memset(block->data(), 3, block->size());
    CHECK(block->key("simulated:1").handle == aligned->key("simulated:1").handle);
    THROWS(KVMEM_ERR_NO_SUCH_DEVICE, "teapot", block->key("teapot"));
    THROWS(KVMEM_ERR_WRONG_BACKING, "", block->reference());
    CHECK(!pool.allocate(64 * MIB));
    THROWS(KVMEM_ERR_ZERO_SIZE, "", pool.allocate(0));

    kvmem::Block moved = std::move(*block);
    CHECK(!*block && block->data() == nullptr && block->bytes().empty() && moved.size() == 4096);
    move_to_itself(moved);
    CHECK(moved.size() == 4096 && pool.metrics().live == 2);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", block->key("simulated:0"));
    moved.shrink(1000);
    CHECK(moved.size() == 1000 && moved.extend(1100) && moved.size() == 1100);
    CHECK(!moved.extend(64 * MIB));
    moved.reset();
    CHECK(pool.metrics().live == 1);
    aligned->quarantine("it was bad");
    CHECK(!*aligned && pool.report().find("it was bad") != std::string::npos);

    auto batch = pool.allocate_batch(1024, 20);
    CHECK(batch && batch->size() == 20 && !pool.allocate_batch(MIB, 5));
    for (const std::uint64_t count : {UINT64_MAX, std::uint64_t{1} << 60, std::uint64_t{1} << 40}) {
        CHECK(!pool.allocate_batch(1, count) && pool.allocate_scattered(100, count)->size() == 1);
        CHECK(!pool.allocate_scattered(1 << 30, count));
    }
    auto scattered = pool.allocate_scattered(3 * MIB, 4);
    CHECK(scattered && !scattered->empty());
    batch.reset();
    scattered.reset();
    pool.trim();
    pool.check();
    CHECK(!pool.bins().empty() && !pool.map().empty());

    kvmem::Pool other = std::move(pool);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", pool.allocate(1));
    CHECK(other.allocate(1));
    other = kvmem::Pool(MIB, small_pages());
    CHECK(kvmem::testing::live_keys(nics, 0) == 0);
    options.registrars = nullptr;
    options.pages = "teapot";
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "teapot", kvmem::Pool(MIB, options));
}

static void in_the_background() {
    kvmem::PoolOptions options = small_pages();
    options.in_background = true;
    options.max_bytes = 8 * MIB;
    auto reports = std::make_shared<int>(0);
    options.progress = [reports](const kvmem::Progress &) { ++*reports; };
    kvmem::Pool pool(2 * MIB, options);
    CHECK(pool.wait_ready(2 * MIB, std::chrono::seconds(20)) == 2 * MIB);
    // The size can be changed only when no part is being prepared.
    const auto wait_until_idle = [&] {
        while (pool.info().initializing) {
            std::this_thread::yield();
        }
    };
    wait_until_idle();
    pool.grow_to(4 * MIB);
    CHECK(pool.wait_ready(4 * MIB, std::chrono::seconds(20)) == 4 * MIB);
    wait_until_idle();
    CHECK(pool.shrink_to(2 * MIB) >= 2 * MIB);
    options.progress = nullptr;
    auto block = pool.allocate(100);
    {
        const kvmem::Pool gone = std::move(pool);
    }
    // The block keeps the pool, and the pool keeps its callback.
    CHECK(reports.use_count() == 2);
    std::memset(block->data(), 1, block->size());
    block.reset();
    CHECK(reports.use_count() == 1);
}

static void outlive() {
    kvmem::Registrars nics = kvmem::testing::simulated_registrars(1);
    std::optional<kvmem::Block> last;
    {
        kvmem::PoolOptions options = small_pages();
        options.registrars = &nics;
        std::vector<kvmem::Block> blocks;
        {
            kvmem::Pool pool(MIB, options);
            for (int i = 0; i < 5; ++i) {
                blocks.push_back(*pool.allocate(1000));
            }
        }
        last = std::move(blocks[3]);
    }
    std::memset(last->data(), 1, last->size());
    CHECK(kvmem::testing::live_keys(nics, 0) == 1 && last->key("simulated:0").handle != UINT64_MAX);
    last.reset();
    CHECK(kvmem::testing::live_keys(nics, 0) == 0);
}

static void attached() {
    kvmem::PoolOptions options = small_pages();
    options.backing = KVMEM_BACKING_SHARED;
    kvmem::Pool pool(MIB, options);
    auto block = pool.allocate(5);
    std::memcpy(block->data(), "kvmem", 5);
    const int readable = pool.share(true);
    const int writable = pool.share(false);
    const kvmem::AttachedPool reader(readable);
    const kvmem::AttachedPool writer(writable, true);
    close(readable);
    close(writable);
    CHECK(pool.populate_aliases(1) == MIB);
    const kvmem::BlockRef reference = block->reference();
    CHECK(reader.info().share_id == pool.info().share_id && !reader.info().writable);
    const kvmem::bytes_view bytes = reader.bytes(reference);
    CHECK(bytes.data() != block->bytes().data() && std::memcmp(bytes.data(), "kvmem", 5) == 0);
    writer.writable_bytes(reference)[0] = std::byte{'K'};
    CHECK(block->bytes()[0] == std::byte{'K'});
    THROWS(KVMEM_ERR_READ_ONLY, "", reader.writable_bytes(reference));
    kvmem::BlockRef wrong = reference;
    wrong.bytes = 2 * MIB;
    THROWS(KVMEM_ERR_OUT_OF_BOUNDS, "", reader.bytes(wrong));
}

int main() {
    blocks();
    in_the_background();
    outlive();
    attached();
    return 0;
}
