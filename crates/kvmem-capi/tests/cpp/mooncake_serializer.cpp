// Mooncake's msgpack serializers of the offset allocator and its handles, on kvmem.
#include <kvmem/compat/mooncake_serializer.hpp>

#include "check.hpp"

using namespace mooncake;
using mooncake::offset_allocator::OffsetAllocationHandle;
using mooncake::offset_allocator::OffsetAllocator;

/// Returns the value of a binary string.
static msgpack::object binary(const std::string &bytes) {
    msgpack::object value;
    value.type = msgpack::type::BIN;
    value.via.bin = {static_cast<uint32_t>(bytes.size()), bytes.data()};
    return value;
}

/// Returns the array of these values.
static msgpack::object array(std::vector<msgpack::object> &values) {
    msgpack::object value;
    value.type = msgpack::type::ARRAY;
    value.via.array = {static_cast<uint32_t>(values.size()), values.data()};
    return value;
}

static msgpack::object number(uint64_t number) {
    msgpack::object value;
    value.via.u64 = number;
    return value;
}

int main() {
    using Allocators = Serializer<OffsetAllocator>;
    using Handles = Serializer<OffsetAllocationHandle>;
    const auto space = OffsetAllocator::create(4096, 1 << 20);
    std::vector<OffsetAllocationHandle> handles;
    for (size_t i = 1; i < 20; ++i) {
        handles.push_back(std::move(*space->allocate(100 * i)));
    }
    handles.erase(handles.begin() + 5);

    msgpack::sbuffer buffer;
    MsgpackPacker packer(buffer);
    CHECK(Allocators::serialize(*space, packer));
    auto restored = Allocators::deserialize(binary(buffer.bytes));
    CHECK(restored && (*restored)->get_metrics().allocated_num_ == handles.size());
    {
        std::vector<Handles::PointerType> again;
        for (const OffsetAllocationHandle &handle : handles) {
            msgpack::sbuffer one;
            MsgpackPacker packs(one);
            CHECK(Handles::serialize(handle, packs) && one.array_size == 2);
            std::vector<msgpack::object> values = {number(one.numbers[0]), number(one.numbers[1])};
            auto made = Handles::deserialize(array(values), *restored);
            CHECK(made && (*made)->isValid() && (*made)->address() == handle.address() &&
                  (*made)->size() == handle.size());
            again.push_back(*made);
            // Each range has one handle.
            auto twice = Handles::deserialize(array(values), *restored);
            CHECK(!twice && twice.error().code == ErrorCode::DESERIALIZE_FAIL);
        }
    }
    CHECK((*restored)->get_metrics().allocated_num_ == 0);

    // Other values, and damaged ones.
    CHECK(!Allocators::deserialize(number(5)) && !Allocators::deserialize(binary("")));
    CHECK(!Allocators::deserialize(binary(buffer.bytes + "x")));
    CHECK(!Allocators::deserialize(binary(buffer.bytes.substr(1))));
    std::string flipped = buffer.bytes;
    flipped[90] = static_cast<char>(flipped[90] ^ 1);
    CHECK(!Allocators::deserialize(binary(flipped)));
    restored = Allocators::deserialize(binary(buffer.bytes));
    std::vector<msgpack::object> values = {number(4096)};
    CHECK(!Handles::deserialize(number(4096), *restored));
    CHECK(!Handles::deserialize(array(values), *restored));
    values.push_back(binary("100"));
    CHECK(!Handles::deserialize(array(values), *restored));
    values[1] = number(101);
    CHECK(!Handles::deserialize(array(values), *restored));
    values[1] = number(100);
    CHECK(!Handles::deserialize(array(values), nullptr));
    CHECK(Handles::deserialize(array(values), *restored));
    return 0;
}
