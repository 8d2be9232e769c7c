// Slab allocators, and the standard library on top of them.
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <memory_resource>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "check.hpp"

static_assert(moves_only<kvmem::SlabAllocator>);

static void blocks() {
    kvmem::SlabAllocator slab;
    void *block = slab.allocate(100);
    std::memset(block, 1, 100);
    CHECK(reinterpret_cast<std::uintptr_t>(block) % 16 == 0 && slab.usable(100) >= 100);
    CHECK(slab.stats().in_use == 1);
    slab.deallocate(block, 100);
    slab.deallocate(nullptr, 100);
    void *zeroed = slab.allocate_zeroed(64);
    CHECK(static_cast<char *>(zeroed)[63] == 0);
    const std::byte text[] = {std::byte{1}, std::byte{2}};
    void *copy = slab.copy(kvmem::bytes_view(text, sizeof text));
    CHECK(std::memcmp(copy, text, sizeof text) == 0);
    slab.deallocate(copy, sizeof text);
    slab.deallocate(zeroed, 64);
    auto batch = slab.allocate_batch(48, 100);
    CHECK(batch.size() == 100 && slab.stats().in_use == 100);
    slab.deallocate_batch(batch, 48);
    CHECK(slab.allocate_batch(48, 0).empty());
    for (const std::uint64_t count : {UINT64_MAX, std::uint64_t{1} << 60, std::uint64_t{1} << 50}) {
        bool thrown = false;
        try {
            slab.allocate_batch(48, count);
        } catch (const std::bad_alloc &) {
            thrown = true;
        }
        CHECK(thrown);
    }

    struct Node {
        char text[24];
        Node *next;
    };
    Node *first = nullptr;
    for (int i = 0; i < 10; ++i) {
        Node *node = static_cast<Node *>(slab.allocate(sizeof(Node)));
        node->next = first;
        first = node;
    }
    slab.deallocate_chain(first, sizeof(Node), offsetof(Node, next));
    THROWS(KVMEM_ERR_OUT_OF_BOUNDS, "", slab.deallocate_chain(nullptr, 8, 1));
    slab.trim();
    slab.tick();
    CHECK(slab.stats().in_use == 0 && slab.report_leaks() == 0);

    THROWS(KVMEM_ERR_ZERO_SIZE, "", slab.allocate(0));
    bool bad_alloc = false;
    try {
        (void)slab.allocate(UINT64_MAX / 2);
    } catch (const std::bad_alloc &) {
        bad_alloc = true;
    }
    CHECK(bad_alloc);
    kvmem::SlabAllocator moved = std::move(slab);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", slab.allocate(1));
    moved.deallocate(moved.allocate(1), 1);
}

static void in_a_region() {
    kvmem::RegionOptions options;
    options.pages = "4k";
    kvmem::Region region(MIB, options);
    const char *begin = static_cast<const char *>(region.data());
    kvmem::SlabOptions plain;
    plain.settings = KVMEM_SLAB_PLAIN;
    kvmem::SlabAllocator slab(std::move(region), plain);
    CHECK(region.native_handle() == nullptr);
    const char *block = static_cast<const char *>(slab.allocate(128));
    CHECK(block >= begin && block < begin + MIB);
    // A region with other users cannot be taken over: it stays the caller's.
    kvmem::Region used(MIB, options);
    const kvmem::BumpArena arena(used);
    THROWS(KVMEM_ERR_IN_USE, "", kvmem::SlabAllocator(std::move(used)));
    CHECK(used.size() == MIB);
}

static void faults() {
    std::vector<std::uint32_t> kinds;
    kvmem::SlabOptions options;
    options.settings = KVMEM_SLAB_DEBUG_BLOCKS;
    options.on_fault = [&](const kvmem::SlabFault &fault) { kinds.push_back(fault.kind); };
    kvmem::SlabAllocator slab(options);
    kvmem::SlabAllocator moved = std::move(slab);
    void *block = moved.allocate(64);
    moved.deallocate(block, 32);
    moved.deallocate(block, 64);
    moved.deallocate(block, 64);
    CHECK(kinds == std::vector<std::uint32_t>{KVMEM_FAULT_WRONG_SIZE, KVMEM_FAULT_DOUBLE_FREE});
}

// A number that requires an alignment of 64.
struct alignas(64) Line {
    std::uint64_t number;
    bool operator<(const Line &other) const { return number < other.number; }
};

static void pmr() {
    kvmem::SlabAllocator slab;
    kvmem::SlabAllocator others;
    kvmem::SlabResource resource(slab);
    const kvmem::SlabResource same(slab);
    const kvmem::SlabResource other(others);
    CHECK(resource == same && resource != other && resource != *std::pmr::new_delete_resource());
    {
        std::pmr::vector<int> numbers(&resource);
        std::pmr::map<int, std::pmr::string> words(&resource);
        std::pmr::set<Line> lines(&resource);
        for (int i = 0; i < 3000; ++i) {
            numbers.push_back(i);
            words.emplace(i, "a text that is too long to stand in the string itself");
            const auto line = lines.insert(Line{static_cast<std::uint64_t>(i)}).first;
            CHECK(reinterpret_cast<std::uintptr_t>(&*line) % 64 == 0);
        }
        CHECK(numbers[2999] == 2999 && words.at(7).size() == 53 && lines.size() == 3000);
        CHECK(words.begin()->second.get_allocator().resource() == &resource);
        words.erase(8);
        std::pmr::unsynchronized_pool_resource pool(&resource);
        std::pmr::deque<double> deque(&pool);
        deque.resize(5000, 1.5);
    }
    // 0 bytes, and every alignment.
    for (std::size_t align = 1; align <= 4096; align *= 2) {
        for (const std::size_t bytes :
             {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{20000}}) {
            void *at = resource.allocate(bytes, align);
            CHECK(at != nullptr && reinterpret_cast<std::uintptr_t>(at) % align == 0);
            std::memset(at, 0xff, bytes);
            resource.deallocate(at, bytes, align);
        }
    }
    // Volatile, because compilers warn about such a size where they see it.
    volatile std::size_t too_much = SIZE_MAX - 8;
    bool bad_alloc = false;
    try {
        (void)resource.allocate(too_much, 64);
    } catch (const std::bad_alloc &) {
        bad_alloc = true;
    }
    CHECK(bad_alloc);
    CHECK(slab.stats().in_use == 0 && slab.stats().system_blocks == 0);
}

template <class T>
using On = kvmem::StdAllocator<T>;

static void containers() {
    kvmem::SlabAllocator slab;
    kvmem::SlabAllocator others;
    CHECK(On<int>(slab) == On<char>(slab) && On<int>(slab) != On<int>(others));
    {
        std::list<int, On<int>> list(slab);
        std::vector<Line, On<Line>> vector(slab);
        std::map<int, int, std::less<>, On<std::pair<const int, int>>> map(slab);
        std::unordered_map<int, int, std::hash<int>, std::equal_to<>, On<std::pair<const int, int>>>
            hashed(16, std::hash<int>(), std::equal_to<>(), slab);
        std::basic_string<char, std::char_traits<char>, On<char>> text(slab);
        for (int i = 0; i < 2000; ++i) {
            list.push_back(i);
            vector.push_back(Line{static_cast<std::uint64_t>(i)});
            map[i] = i;
            hashed[i] = i;
            text += "text";
        }
        CHECK(list.back() == 1999 && vector[1999].number == 1999 && map[5] == 5 && hashed[6] == 6);
        CHECK(text.size() == 8000 && reinterpret_cast<std::uintptr_t>(vector.data()) % 64 == 0);

        // Move and swap take the allocator along; copy does not.
        std::list<int, On<int>> other(others);
        other.push_back(1);
        const int *node = &list.front();
        other = std::move(list);
        CHECK(&other.front() == node && other.get_allocator() == On<int>(slab));
        std::list<int, On<int>> copy(others);
        copy = other;
        CHECK(copy.size() == 2000 && copy.get_allocator() == On<int>(others));
        swap(copy, other);
        CHECK(other.get_allocator() == On<int>(others));

        const auto shared = std::allocate_shared<std::string>(On<std::string>(slab), "together");
        CHECK(*shared == "together");
        volatile std::size_t too_many = SIZE_MAX / 2;
        bool too_long = false;
        try {
            (void)On<int>(slab).allocate(too_many);
        } catch (const std::bad_array_new_length &) {
            too_long = true;
        }
        CHECK(too_long);
    }
    CHECK(slab.stats().in_use == 0 && others.stats().in_use == 0 &&
          slab.stats().system_blocks == 0);
}

int main() {
    blocks();
    in_a_region();
    faults();
    pmr();
    containers();
    // Another thread frees the blocks of this one.
    kvmem::SlabAllocator slab;
    std::list<int, On<int>> list(slab);
    std::thread([&] { list.resize(1000, 7); }).join();
    list.clear();
    CHECK(slab.stats().in_use == 0);
    return 0;
}
