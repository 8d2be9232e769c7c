// Slices, and the standard library over them.
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
    kvmem::SlabAllocator slices;
    void *block = slices.allocate(100);
    std::memset(block, 1, 100);
    CHECK(reinterpret_cast<std::uintptr_t>(block) % 16 == 0 && slices.usable(100) >= 100);
    CHECK(slices.stats().in_use == 1);
    slices.deallocate(block, 100);
    slices.deallocate(nullptr, 100);
    void *zeroed = slices.allocate_zeroed(64);
    CHECK(static_cast<char *>(zeroed)[63] == 0);
    const std::byte text[] = {std::byte{1}, std::byte{2}};
    void *copy = slices.copy(kvmem::bytes_view(text, sizeof text));
    CHECK(std::memcmp(copy, text, sizeof text) == 0);
    slices.deallocate(copy, sizeof text);
    slices.deallocate(zeroed, 64);
    auto batch = slices.allocate_batch(48, 100);
    CHECK(batch.size() == 100 && slices.stats().in_use == 100);
    slices.deallocate_batch(batch, 48);
    CHECK(slices.allocate_batch(48, 0).empty());
    for (const std::uint64_t count : {UINT64_MAX, std::uint64_t{1} << 60, std::uint64_t{1} << 50}) {
        bool thrown = false;
        try {
            slices.allocate_batch(48, count);
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
        Node *node = static_cast<Node *>(slices.allocate(sizeof(Node)));
        node->next = first;
        first = node;
    }
    slices.deallocate_chain(first, sizeof(Node), offsetof(Node, next));
    THROWS(KVMEM_ERR_OUT_OF_BOUNDS, "", slices.deallocate_chain(nullptr, 8, 1));
    slices.trim();
    slices.tick();
    CHECK(slices.stats().in_use == 0 && slices.report_leaks() == 0);

    THROWS(KVMEM_ERR_ZERO_SIZE, "", slices.allocate(0));
    bool bad_alloc = false;
    try {
        (void)slices.allocate(UINT64_MAX / 2);
    } catch (const std::bad_alloc &) {
        bad_alloc = true;
    }
    CHECK(bad_alloc);
    kvmem::SlabAllocator moved = std::move(slices);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", slices.allocate(1));
    moved.deallocate(moved.allocate(1), 1);
}

static void in_a_region() {
    kvmem::RegionOptions options;
    options.pages = "4k";
    kvmem::Region region(MIB, options);
    const char *begin = static_cast<const char *>(region.data());
    kvmem::SlabOptions plain;
    plain.settings = KVMEM_SLAB_PLAIN;
    kvmem::SlabAllocator slices(std::move(region), plain);
    CHECK(region.native_handle() == nullptr);
    const char *block = static_cast<const char *>(slices.allocate(128));
    CHECK(block >= begin && block < begin + MIB);
    // Not if somebody else uses it: then it stays the caller's.
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
    kvmem::SlabAllocator slices(options);
    kvmem::SlabAllocator moved = std::move(slices);
    void *block = moved.allocate(64);
    moved.deallocate(block, 32);
    moved.deallocate(block, 64);
    moved.deallocate(block, 64);
    CHECK(kinds == std::vector<std::uint32_t>{KVMEM_FAULT_WRONG_SIZE, KVMEM_FAULT_DOUBLE_FREE});
}

// A number that wants to stand at a multiple of 64.
struct alignas(64) Line {
    std::uint64_t number;
    bool operator<(const Line &other) const { return number < other.number; }
};

static void pmr() {
    kvmem::SlabAllocator slices;
    kvmem::SlabAllocator others;
    kvmem::SlabResource resource(slices);
    const kvmem::SlabResource same(slices);
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
    // 0 bytes too, and every alignment.
    for (std::size_t align = 1; align <= 4096; align *= 2) {
        for (const std::size_t bytes :
             {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{20000}}) {
            void *at = resource.allocate(bytes, align);
            CHECK(at != nullptr && reinterpret_cast<std::uintptr_t>(at) % align == 0);
            std::memset(at, 0xff, bytes);
            resource.deallocate(at, bytes, align);
        }
    }
    // Compilers warn about so much where they see it.
    volatile std::size_t too_much = SIZE_MAX - 8;
    bool bad_alloc = false;
    try {
        (void)resource.allocate(too_much, 64);
    } catch (const std::bad_alloc &) {
        bad_alloc = true;
    }
    CHECK(bad_alloc);
    CHECK(slices.stats().in_use == 0 && slices.stats().system_blocks == 0);
}

template <class T>
using On = kvmem::StdAllocator<T>;

static void containers() {
    kvmem::SlabAllocator slices;
    kvmem::SlabAllocator others;
    CHECK(On<int>(slices) == On<char>(slices) && On<int>(slices) != On<int>(others));
    {
        std::list<int, On<int>> list(slices);
        std::vector<Line, On<Line>> vector(slices);
        std::map<int, int, std::less<>, On<std::pair<const int, int>>> map(slices);
        std::unordered_map<int, int, std::hash<int>, std::equal_to<>, On<std::pair<const int, int>>>
            hashed(16, std::hash<int>(), std::equal_to<>(), slices);
        std::basic_string<char, std::char_traits<char>, On<char>> text(slices);
        for (int i = 0; i < 2000; ++i) {
            list.push_back(i);
            vector.push_back(Line{static_cast<std::uint64_t>(i)});
            map[i] = i;
            hashed[i] = i;
            text += "text";
        }
        CHECK(list.back() == 1999 && vector[1999].number == 1999 && map[5] == 5 && hashed[6] == 6);
        CHECK(text.size() == 8000 && reinterpret_cast<std::uintptr_t>(vector.data()) % 64 == 0);

        // The allocator goes with what is moved and swapped, and stays with what is copied.
        std::list<int, On<int>> other(others);
        other.push_back(1);
        const int *node = &list.front();
        other = std::move(list);
        CHECK(&other.front() == node && other.get_allocator() == On<int>(slices));
        std::list<int, On<int>> copy(others);
        copy = other;
        CHECK(copy.size() == 2000 && copy.get_allocator() == On<int>(others));
        swap(copy, other);
        CHECK(other.get_allocator() == On<int>(others));

        const auto shared = std::allocate_shared<std::string>(On<std::string>(slices), "together");
        CHECK(*shared == "together");
        volatile std::size_t too_many = SIZE_MAX / 2;
        bool too_long = false;
        try {
            (void)On<int>(slices).allocate(too_many);
        } catch (const std::bad_array_new_length &) {
            too_long = true;
        }
        CHECK(too_long);
    }
    CHECK(slices.stats().in_use == 0 && others.stats().in_use == 0 &&
          slices.stats().system_blocks == 0);
}

int main() {
    blocks();
    in_a_region();
    faults();
    pmr();
    containers();
    // What one thread has allocated another frees.
    kvmem::SlabAllocator slices;
    std::list<int, On<int>> list(slices);
    std::thread([&] { list.resize(1000, 7); }).join();
    list.clear();
    CHECK(slices.stats().in_use == 0);
    return 0;
}
