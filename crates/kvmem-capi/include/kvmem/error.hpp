// Error: the exception of calls that fail. Part of kvmem.hpp.
#ifndef KVMEM_ERROR_HPP
#define KVMEM_ERROR_HPP

#include <stdexcept>
#include <string>

#include "../kvmem.h"

namespace kvmem {

/// A call failed. `what()` is the text, with the numbers and what to do; `status()` is the number.
///
/// Functions that allocate do not throw this when they run out of space: they return an empty
/// `std::optional`.
class error : public std::runtime_error {
public:
    error(kvmem_status status, const std::string &text)
        : std::runtime_error(text), status_(status) {}

    /// The status, such as KVMEM_ERR_NOT_FOUND.
    kvmem_status status() const noexcept { return status_; }

    /// The name of the status, such as "KVMEM_ERR_NOT_FOUND".
    const char *status_name() const noexcept { return kvmem_status_name(status_); }

private:
    kvmem_status status_;
};

/// Returns the version of the loaded library, such as "0.1.0".
inline const char *version() noexcept { return kvmem_version(); }

namespace detail {

/// Throws the last error of this thread.
[[noreturn]] inline void fail(kvmem_status status) { throw error(status, kvmem_last_error()); }

/// Throws if a call failed.
inline void check(kvmem_status status) {
    if (status != KVMEM_OK) {
        fail(status);
    }
}

/// Returns an object that is passed as an argument. Throws if it was moved from, because NULL can
/// mean "none" in the C interface.
template <class T>
T *present(T *object, const char *what) {
    if (object == nullptr) {
        throw error(KVMEM_ERR_NULL_ARGUMENT,
                    std::string(what) +
                        " was moved from: pass an object that was not, or leave it out");
    }
    return object;
}

/// Returns whether a call failed for lack of space, now or for any request of that size.
inline bool out_of_space(kvmem_status status) noexcept {
    return status == KVMEM_ERR_OUT_OF_SPACE || status == KVMEM_ERR_TOO_LARGE ||
           status == KVMEM_ERR_TOO_MANY_RANGES || status == KVMEM_ERR_NOT_READY ||
           status == KVMEM_ERR_NOTHING_TO_EVICT;
}

/// Returns whether a call allocated; throws if it failed for another reason than lack of space.
inline bool allocated(kvmem_status status) {
    if (status == KVMEM_OK) {
        return true;
    }
    if (!out_of_space(status)) {
        fail(status);
    }
    return false;
}

} // namespace detail
} // namespace kvmem

#endif
