// Prefix: keys of the blocks of a prompt. Part of kvmem.hpp.
#ifndef KVMEM_PREFIX_HPP
#define KVMEM_PREFIX_HPP

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include "error.hpp"

namespace kvmem {

/// The key of a block of tokens, and of all tokens up to its end.
class PrefixKey {
public:
    /// Returns the bytes as the functions of nodes and caches take a key. Valid as long as this.
    std::string_view view() const noexcept {
        return std::string_view(reinterpret_cast<const char *>(key_.bytes), sizeof key_.bytes);
    }

    /// A key converts to what the functions of nodes and caches take.
    operator std::string_view() const noexcept { return view(); }

    friend bool operator==(const PrefixKey &one, const PrefixKey &other) noexcept {
        return one.view() == other.view();
    }

    friend bool operator!=(const PrefixKey &one, const PrefixKey &other) noexcept {
        return !(one == other);
    }

private:
    kvmem_prefix_key key_{};
};

static_assert(sizeof(PrefixKey) == KVMEM_PREFIX_KEY_BYTES, "an array of keys is one of C's");

/// Returns the keys of the complete blocks of a prompt, the first one first: see kvmem_prefix_keys.
/// `tokens` is a vector, an array or a span of `std::int32_t`. `salt` names all else that the
/// values depend on. Throws KVMEM_ERR_ZERO_SIZE if `block` is 0.
template <class Tokens>
std::vector<PrefixKey> prefix_keys(const Tokens &tokens, std::size_t block, std::string_view salt) {
    const std::int32_t *first = std::data(tokens);
    std::vector<PrefixKey> keys(block == 0 ? 0 : std::size(tokens) / block);
    std::uint64_t count = 0;
    detail::check(kvmem_prefix_keys(first, std::size(tokens), block, salt.data(), salt.size(),
                                    reinterpret_cast<kvmem_prefix_key *>(keys.data()), keys.size(),
                                    &count));
    return keys;
}

} // namespace kvmem

#endif
