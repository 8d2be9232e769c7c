// Stand-in for Mooncake's header of this name, and for the parts of msgpack and of tl::expected
// that it needs: the same declarations, over a value that is only kept in memory.
#ifndef KVMEM_TEST_SERIALIZE_SERIALIZER_H
#define KVMEM_TEST_SERIALIZE_SERIALIZER_H

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tl {

template <class E>
struct unexpected {
    explicit unexpected(E reason) : error(std::move(reason)) {}
    E error;
};

template <class T, class E>
class expected {
public:
    expected(T value) : value_(std::move(value)) {}
    expected(unexpected<E> failed) : error_(std::move(failed.error)) {}
    explicit operator bool() const { return !error_; }
    T &operator*() { return value_; }
    const E &error() const { return *error_; }

private:
    T value_ = {};
    std::optional<E> error_;
};

template <class E>
class expected<void, E> {
public:
    expected() = default;
    expected(unexpected<E> failed) : error_(std::move(failed.error)) {}
    explicit operator bool() const { return !error_; }

private:
    std::optional<E> error_;
};

} // namespace tl

namespace msgpack {
namespace type {
enum object_type { POSITIVE_INTEGER, ARRAY, BIN };
} // namespace type

struct object {
    type::object_type type = type::POSITIVE_INTEGER;
    struct {
        uint64_t u64;
        struct {
            uint32_t size;
            object *ptr;
        } array;
        struct {
            uint32_t size;
            const char *ptr;
        } bin;
    } via = {};

    template <class T>
    T as() const {
        if (type != type::POSITIVE_INTEGER) {
            throw std::runtime_error("not a number");
        }
        return static_cast<T>(via.u64);
    }
};

struct sbuffer {
    std::vector<uint64_t> numbers;
    std::string bytes;
    uint32_t array_size = 0;
};

template <class Buffer>
class packer {
public:
    explicit packer(Buffer &buffer) : buffer_(buffer) {}
    void pack_array(uint32_t size) { buffer_.array_size = size; }
    void pack(uint64_t number) { buffer_.numbers.push_back(number); }
    void pack_bin(uint32_t size) { buffer_.bytes.reserve(size); }
    void pack_bin_body(const char *bytes, uint32_t size) { buffer_.bytes.append(bytes, size); }

private:
    Buffer &buffer_;
};

} // namespace msgpack

namespace mooncake::offset_allocator {
class __Allocator;
class OffsetAllocator;
class OffsetAllocationHandle;
} // namespace mooncake::offset_allocator

namespace mooncake {

enum class ErrorCode { SERIALIZE_FAIL, DESERIALIZE_FAIL };

struct SerializationError {
    SerializationError(ErrorCode error, const std::string &what) : code(error), message(what) {}
    ErrorCode code;
    std::string message;
};

using MsgpackPacker = msgpack::packer<msgpack::sbuffer>;

template <typename T>
class Serializer;

template <>
class Serializer<offset_allocator::OffsetAllocator> {
public:
    using PointerType = std::shared_ptr<offset_allocator::OffsetAllocator>;
    static tl::expected<void, SerializationError>
    serialize(const offset_allocator::OffsetAllocator &allocator, MsgpackPacker &packer);
    static tl::expected<PointerType, SerializationError> deserialize(const msgpack::object &obj);
};

template <>
class Serializer<offset_allocator::OffsetAllocationHandle> {
public:
    using PointerType = std::shared_ptr<offset_allocator::OffsetAllocationHandle>;
    static tl::expected<void, SerializationError>
    serialize(const offset_allocator::OffsetAllocationHandle &handle, MsgpackPacker &packer);
    static tl::expected<PointerType, SerializationError>
    deserialize(const msgpack::object &obj,
                const std::shared_ptr<offset_allocator::OffsetAllocator> &allocator);
};

} // namespace mooncake

#endif
