// Error: what a call throws when it cannot do what it was asked for. Part of kvmem.hpp.
#ifndef KVMEM_ERROR_HPP
#define KVMEM_ERROR_HPP

#include <stdexcept>
#include <string>

#include "../kvmem.h"

namespace kvmem {

/// A call failed. `what()` is the text, with the numbers and the way out; `status()` is for programs.
///
/// Out of space is no error where it is an answer: allocations are `std::optional`, and empty then.
class error : public std::runtime_error {
public:
    error(kvmem_status status, const std::string &text) : std::runtime_error(text), status_(status) {}

    /// KVMEM_NO_ROOM and so on.
    kvmem_status status() const noexcept { return status_; }

    /// Its name, such as "KVMEM_NO_ROOM".
    const char *status_name() const noexcept { return kvmem_status_name(status_); }

private:
    kvmem_status status_;
};

/// The version of the library that was loaded, such as "0.1.0".
inline const char *version() noexcept { return kvmem_version(); }

namespace detail {

/// Throws what this thread's last call met.
[[noreturn]] inline void fail(kvmem_status status) { throw error(status, kvmem_last_error()); }

/// Throws if a call failed.
inline void check(kvmem_status status) {
    if (status != KVMEM_OK) {
        fail(status);
    }
}

/// An object that is handed over as an argument. Throws if it was moved from: to the C interface
/// NULL may mean that there is none.
template <class T>
T *present(T *object, const char *what) {
    if (object == nullptr) {
        throw error(KVMEM_NULL_ARGUMENT,
                    std::string(what) + " was moved from: hand over one that is there, or say nothing");
    }
    return object;
}

/// Whether a call was refused because there is no room: now, or for so much.
inline bool no_room(kvmem_status status) noexcept {
    return status == KVMEM_NO_ROOM || status == KVMEM_TOO_LARGE || status == KVMEM_BOOKS_FULL ||
           status == KVMEM_NOT_READY || status == KVMEM_NOTHING_TO_EVICT;
}

/// Whether there was room; throws if the call failed for another reason.
inline bool granted(kvmem_status status) {
    if (status == KVMEM_OK) {
        return true;
    }
    if (!no_room(status)) {
        fail(status);
    }
    return false;
}

} // namespace detail
} // namespace kvmem

#endif
