// Mooncake's msgpack serializers of the offset allocator and its handles, on kvmem. Mooncake's own
// read private members of the class that kvmem's replaces.
// https://www.apache.org/licenses/LICENSE-2.0
//
// Include it in Mooncake's src/serialize/serializer.cpp after the other headers, in place of the
// definitions of the members of Serializer<__Allocator>, Serializer<OffsetAllocator> and
// Serializer<OffsetAllocationHandle>. The declarations in serialize/serializer.h stay. Without that
// header in the include path, this one is empty.
//
// An allocator is the bytes of OffsetAllocator::serialize_to. A handle is an array of its address
// and size; `deserialize` makes it by createHandleAt, once for each range.
#ifndef KVMEM_COMPAT_MOONCAKE_SERIALIZER_HPP
#define KVMEM_COMPAT_MOONCAKE_SERIALIZER_HPP

#if __has_include("serialize/serializer.h")

#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "mooncake_offset_allocator.hpp"
#include "serialize/serializer.h"

namespace mooncake {
namespace offset_allocator::detail {

/// Collects what `serialize_to` writes.
struct MsgpackWriter {
    void write(const void *data, size_t size) {
        const char *bytes = static_cast<const char *>(data);
        written.insert(written.end(), bytes, bytes + size);
    }
    std::vector<char> written;
};

/// Reads a binary value.
struct MsgpackReader {
    void read(void *data, size_t size) {
        require(size <= left, "the data ends early");
        std::memcpy(data, at, size);
        at += size;
        left -= size;
    }
    const char *at;
    size_t left;
};

} // namespace offset_allocator::detail

inline tl::expected<void, SerializationError>
Serializer<offset_allocator::OffsetAllocator>::serialize(
    const offset_allocator::OffsetAllocator &allocator, MsgpackPacker &packer) {
    offset_allocator::detail::MsgpackWriter writer;
    allocator.serialize_to(writer);
    // The length of a binary value has 32 bits.
    if (writer.written.size() > std::numeric_limits<uint32_t>::max()) {
        return tl::unexpected(SerializationError(ErrorCode::SERIALIZE_FAIL,
                                                 "the allocator has too many ranges"));
    }
    packer.pack_bin(static_cast<uint32_t>(writer.written.size()));
    packer.pack_bin_body(writer.written.data(), static_cast<uint32_t>(writer.written.size()));
    return {};
}

inline auto
Serializer<offset_allocator::OffsetAllocator>::deserialize(const msgpack::object &obj)
    -> tl::expected<PointerType, SerializationError> {
    const auto failed = [](const char *what) {
        return tl::unexpected(SerializationError(ErrorCode::DESERIALIZE_FAIL, what));
    };
    if (obj.type != msgpack::type::BIN) {
        return failed("an offset allocator of kvmem is a binary value");
    }
    try {
        offset_allocator::detail::MsgpackReader reader{obj.via.bin.ptr, obj.via.bin.size};
        auto allocator = offset_allocator::OffsetAllocator::deserialize_from(reader);
        if (reader.left != 0) {
            return failed("bytes follow the offset allocator");
        }
        return allocator;
    } catch (const std::exception &error) {
        return failed(error.what());
    }
}

inline tl::expected<void, SerializationError>
Serializer<offset_allocator::OffsetAllocationHandle>::serialize(
    const offset_allocator::OffsetAllocationHandle &handle, MsgpackPacker &packer) {
    packer.pack_array(2);
    packer.pack(static_cast<uint64_t>(handle.address()));
    packer.pack(static_cast<uint64_t>(handle.size()));
    return {};
}

inline auto Serializer<offset_allocator::OffsetAllocationHandle>::deserialize(
    const msgpack::object &obj,
    const std::shared_ptr<offset_allocator::OffsetAllocator> &allocator)
    -> tl::expected<PointerType, SerializationError> {
    const auto failed = [](const char *what) {
        return tl::unexpected(SerializationError(ErrorCode::DESERIALIZE_FAIL, what));
    };
    if (!allocator || obj.type != msgpack::type::ARRAY || obj.via.array.size != 2) {
        return failed("a handle is an array of address and size, of an allocator");
    }
    try {
        auto handle = allocator->createHandleAt(obj.via.array.ptr[0].as<uint64_t>(),
                                                obj.via.array.ptr[1].as<uint64_t>());
        if (!handle) {
            return failed("no range without a handle has this address and size");
        }
        return std::make_shared<offset_allocator::OffsetAllocationHandle>(std::move(*handle));
    } catch (const std::exception &error) {
        return failed(error.what());
    }
}

} // namespace mooncake

#endif

#endif
