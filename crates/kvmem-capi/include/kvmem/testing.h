/*
 * kvmem, functions for tests: simulated registrars, injected failures, and a tier that records its
 * calls.
 * https://www.apache.org/licenses/LICENSE-2.0
 *
 * This file is generated from crates/kvmem-capi/src/testing.rs by the crate's tests; change it
 * there. The rules of kvmem.h hold here too. Programs in production do not need this header.
 */

#ifndef KVMEM_TESTING_H
#define KVMEM_TESTING_H

#include "../kvmem.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// Makes simulated NICs with the names "simulated:0", "simulated:1" and so on, at most 4096. They
/// only count their keys, and their calls take no time. A key covers at most `max_key_bytes` bytes.
/// Each NIC gives at most `max_keys` keys (UINT64_MAX: no limit).
kvmem_status kvmem_registrars_simulated(uint64_t nics,
                                        uint64_t max_key_bytes,
                                        uint64_t max_keys,
                                        kvmem_registrars **out_registrars);

/// Makes calls of a simulated registrar fail: the `nth` call from now on, counted from 0, and the
/// following ones, `times` in all. `deregister` selects the calls: 0 for those that request keys, 1
/// for those that give them back. KVMEM_ERR_UNSUPPORTED if the registrar is not simulated.
kvmem_status kvmem_registrars_inject(const kvmem_registrars *registrars,
                                     uint64_t index,
                                     uint32_t deregister,
                                     uint64_t nth,
                                     uint64_t times);

/// Returns the number of keys that a simulated registrar has given and not received back.
/// KVMEM_ERR_UNSUPPORTED if the registrar is not simulated.
kvmem_status kvmem_registrars_live_keys(const kvmem_registrars *registrars,
                                        uint64_t index,
                                        uint64_t *out_keys);

/// Makes a lower tier in memory that records its calls. All of them are the same tier.
kvmem_status kvmem_lower_tier_counting(kvmem_lower_tier **out_lower_tier);

/// Writes the calls of that tier since the last call of this function, such as "ask+fetch", and a
/// NUL; "-" if there were none. `out_needed` (may be NULL) receives the number of bytes with the
/// NUL. KVMEM_ERR_BUFFER_TOO_SMALL: the text was truncated.
kvmem_status kvmem_lower_tier_calls(char *buffer, uint64_t capacity, uint64_t *out_needed);

/// Returns the hints with which that tier has the value of a key. KVMEM_ERR_NOT_FOUND if it has
/// none.
kvmem_status kvmem_lower_tier_hints(const void *key,
                                    uint64_t key_bytes,
                                    kvmem_value_hints *out_hints);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVMEM_TESTING_H */
