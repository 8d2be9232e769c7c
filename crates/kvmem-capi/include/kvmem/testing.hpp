// Testing: simulated registrars with injected failures, for tests of programs that register. Not
// included by kvmem.hpp.
#ifndef KVMEM_TESTING_HPP
#define KVMEM_TESTING_HPP

#include "registration.hpp"
#include "testing.h"

namespace kvmem {
namespace testing {

/// Makes simulated NICs with the names "simulated:0", "simulated:1" and so on; see
/// kvmem_registrars_simulated.
inline Registrars simulated_registrars(std::uint64_t nics, std::uint64_t max_key_bytes = UINT64_MAX,
                                       std::uint64_t max_keys = UINT64_MAX) {
    kvmem_registrars *made = nullptr;
    detail::check(kvmem_registrars_simulated(nics, max_key_bytes, max_keys, &made));
    return Registrars::adopt(made);
}

/// Returns the number of keys that a simulated registrar has given and not received back.
inline std::uint64_t live_keys(const Registrars &registrars, std::uint64_t index) {
    std::uint64_t keys = 0;
    detail::check(kvmem_registrars_live_keys(registrars.native_handle(), index, &keys));
    return keys;
}

/// Makes calls of a simulated registrar fail; see kvmem_registrars_inject.
inline void inject(const Registrars &registrars, std::uint64_t index, bool on_deregister,
                   std::uint64_t nth, std::uint64_t times) {
    detail::check(
        kvmem_registrars_inject(registrars.native_handle(), index, on_deregister, nth, times));
}

} // namespace testing
} // namespace kvmem

#endif
