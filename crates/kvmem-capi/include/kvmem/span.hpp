// Span: a view of contiguous elements. Part of kvmem.hpp.
#ifndef KVMEM_SPAN_HPP
#define KVMEM_SPAN_HPP

#include <cstddef>
#include <type_traits>

#if __cplusplus >= 202002L
#include <ranges>
#endif

namespace kvmem {

/// C++20's `std::span<T>` for C++17. From C++20 on it converts to a `std::span`. It owns nothing.
template <class T>
class span {
public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;
    using size_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using pointer = T *;
    using reference = T &;
    using iterator = T *;

    constexpr span() noexcept = default;
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}

    /// Converts a writable view to a read-only one.
    template <class U, class = std::enable_if_t<std::is_same_v<T, const U>>>
    constexpr span(const span<U> &other) noexcept : data_(other.data()), size_(other.size()) {}

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }

    /// The element at `at`, which must be less than `size()`.
    constexpr T &operator[](std::size_t at) const noexcept { return data_[at]; }

    /// The `count` elements from `offset` on, which must exist.
    constexpr span subspan(std::size_t offset, std::size_t count) const noexcept {
        return span(data_ + offset, count);
    }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/// A view of bytes.
using bytes_view = span<const std::byte>;

/// A writable view of bytes.
using bytes_span = span<std::byte>;

namespace detail {

inline bytes_span bytes_of(void *data, std::size_t size) noexcept {
    return bytes_span(static_cast<std::byte *>(data), size);
}

inline bytes_view bytes_of(const void *data, std::size_t size) noexcept {
    return bytes_view(static_cast<const std::byte *>(data), size);
}

} // namespace detail
} // namespace kvmem

#if __cplusplus >= 202002L
/// Allows conversion to a `std::span`, also of a temporary.
template <class T>
inline constexpr bool std::ranges::enable_borrowed_range<kvmem::span<T>> = true;

template <class T>
inline constexpr bool std::ranges::enable_view<kvmem::span<T>> = true;
#endif

#endif
