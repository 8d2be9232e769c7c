// Registration: the right of devices to access the bytes of a region (layer 2). Part of kvmem.hpp.
#ifndef KVMEM_REGISTRATION_HPP
#define KVMEM_REGISTRATION_HPP

#include <cerrno>
#include <system_error>

#include "region.hpp"

namespace kvmem {

/// The right of a device to access a range of bytes.
using Key = kvmem_key;

/// Limits of a registrar.
using Limits = kvmem_limits;

/// A chunk of a region, and its key.
using Chunk = kvmem_chunk;

/// The result of registering.
using RegistrationInfo = kvmem_registration_info;

/// A registrar that the program implements: a NIC's protection domain, a transfer engine. Any
/// thread calls it, one call at a time.
class Registrar {
public:
    virtual ~Registrar() = default;

    /// Name of the registrar. Two registrars of one region must have different names.
    virtual std::string name() const = 0;

    /// Largest number of bytes that one key covers; 0: no limit.
    virtual std::uint64_t max_key_bytes() const { return 0; }

    /// Number of keys that the registrar can give; 0: no limit.
    virtual std::uint64_t max_keys() const { return 0; }

    /// Pins `bytes`, or throws. The code of a std::system_error becomes part of the error that the
    /// caller receives.
    virtual Key register_bytes(bytes_span bytes) = 0;

    /// Takes a key back, or throws; the key then stays valid.
    virtual void deregister(const Key &key) = 0;
};

/// A list of registrars: rings, NICs, GPUs. Registrations keep what they need of it.
class Registrars {
public:
    /// Opens registrars by name, separated by commas: "io_uring", "io_uring:N" (rings), "mlock",
    /// "verbs", "verbs:NIC", "cuda", "cuda:N".
    static Registrars open(const std::string &devices) {
        kvmem_registrars *made = nullptr;
        detail::check(kvmem_registrars_open(devices.c_str(), &made));
        return Registrars(made);
    }

    /// Makes a list of one registrar that the program implements. It is kept as long as memory is
    /// registered with it.
    static Registrars custom(std::shared_ptr<Registrar> registrar) {
        const std::string name = registrar->name();
        kvmem_registrar_callbacks callbacks = {};
        callbacks.struct_size = sizeof callbacks;
        callbacks.name = name.c_str();
        callbacks.max_key_bytes = registrar->max_key_bytes();
        callbacks.max_keys = registrar->max_keys();
        auto kept = std::make_unique<std::shared_ptr<Registrar>>(std::move(registrar));
        callbacks.user = kept.get();
        callbacks.register_bytes = &register_bytes;
        callbacks.deregister = &deregister;
        callbacks.release = &release;
        kvmem_registrars *made = nullptr;
        detail::check(kvmem_registrars_custom(&callbacks, &made));
        kept.release();
        return Registrars(made);
    }

    /// Takes over a handle of the C interface.
    static Registrars adopt(kvmem_registrars *made) noexcept { return Registrars(made); }

    std::uint64_t size() const {
        std::uint64_t count = 0;
        detail::check(kvmem_registrars_count(native_handle(), &count));
        return count;
    }

    /// Returns the name of the registrar at `index`; keys are requested by this name.
    std::string name(std::uint64_t index) const {
        return detail::text([&](char *buffer, std::uint64_t capacity, std::uint64_t *needed) {
            return kvmem_registrars_name(native_handle(), index, buffer, capacity, needed);
        });
    }

    Limits limits(std::uint64_t index) const {
        Limits limits;
        detail::check(kvmem_registrars_limits(native_handle(), index, &limits));
        return limits;
    }

    kvmem_registrars *native_handle() const noexcept { return registrars_.get(); }

private:
    explicit Registrars(kvmem_registrars *made) noexcept : registrars_(made) {}

    template <class Call>
    static int guarded(Call call) noexcept {
        try {
            call();
            return 0;
        } catch (const std::system_error &error) {
            return error.code().value() > 0 ? error.code().value() : EIO;
        } catch (const std::bad_alloc &) {
            return ENOMEM;
        } catch (...) {
            return EIO;
        }
    }

    static int register_bytes(void *user, void *data, std::uint64_t bytes,
                              kvmem_key *out_key) noexcept {
        auto &registrar = **static_cast<std::shared_ptr<Registrar> *>(user);
        return guarded([&] { *out_key = registrar.register_bytes(detail::bytes_of(data, bytes)); });
    }

    static int deregister(void *user, const kvmem_key *key) noexcept {
        auto &registrar = **static_cast<std::shared_ptr<Registrar> *>(user);
        return guarded([&] { registrar.deregister(*key); });
    }

    static void release(void *user) noexcept {
        delete static_cast<std::shared_ptr<Registrar> *>(user);
    }

    detail::Handle<kvmem_registrars, kvmem_registrars_destroy> registrars_;
};

/// Reports which registrars this machine has, and what the missing ones require.
inline std::string discover() {
    return detail::text([](char *buffer, std::uint64_t capacity, std::uint64_t *needed) {
        return kvmem_discover_report(KVMEM_TEXT, buffer, capacity, needed);
    });
}

/// Options of a registration: those of C.
struct RegistrationOptions
    : detail::WithDefaults<kvmem_registration_options, kvmem_registration_options_init> {
    /// "auto", "sequential", "parallel" or "parallel:N"; "" is "auto".
    std::string policy;
    /// Receives the progress of registering and of giving the keys back.
    ProgressFn progress;
    /// Not owned; used until registering ends.
    const CancelToken *cancel = nullptr;
};

namespace detail {

/// Returns the handle of an option; NULL is none.
inline const kvmem_registrars *native(const Registrars *registrars) {
    return registrars == nullptr
               ? nullptr
               : present(registrars->native_handle(), "the Registrars of the options");
}

/// Converts options for C. Valid as long as `options` and `callback`.
inline kvmem_registration_options native(const RegistrationOptions &options,
                                         const ProgressCallback &callback) {
    kvmem_registration_options wanted = options;
    wanted.policy = or_null(options.policy);
    wanted.progress = callback.function();
    wanted.progress_user = callback.user();
    wanted.cancel = native(options.cancel);
    return wanted;
}

/// A registration and its callback, which is destroyed after it.
template <class T, kvmem_status (*Destroy)(T *)>
struct WithCallback {
    ProgressCallback callback;
    Handle<T, Destroy> handle;
};

} // namespace detail

/// A region that is registered with some registrars: the whole region with each of them. Keeps the
/// memory mapped. The destructor gives the keys back.
class Registration {
public:
    Registration(const Region &region, const Registrars &registrars,
                 const RegistrationOptions &options = {})
        : state_(new State{detail::ProgressCallback(options.progress), {}}) {
        const kvmem_registration_options wanted = detail::native(options, state_->callback);
        kvmem_registration *made = nullptr;
        detail::check(kvmem_registration_create(region.native_handle(), registrars.native_handle(),
                                                &wanted, &made));
        state_->handle.reset(made);
    }

    /// Returns the key with which `device` can access all of `[offset, offset + bytes)`; throws
    /// with KVMEM_ERR_STRADDLES if the range needs several keys.
    Key key(const std::string &device, std::uint64_t offset, std::uint64_t bytes) const {
        Key key;
        detail::check(kvmem_registration_key(native_handle(), device.c_str(), offset, bytes, &key));
        return key;
    }

    /// Returns all chunks of a device with their keys, in order; none if the keys were given back.
    std::vector<Chunk> chunks(const std::string &device) const {
        return detail::list<Chunk>(
            [&](Chunk *chunks, std::uint64_t capacity, std::uint64_t *count) {
                return kvmem_registration_chunks(native_handle(), device.c_str(), chunks, capacity,
                                                 count);
            });
    }

    RegistrationInfo info() const {
        RegistrationInfo info;
        detail::check(kvmem_registration_get_info(native_handle(), &info));
        return info;
    }

    /// Reports what registering did, and on which measurements it decided.
    std::string report() const { return report(KVMEM_TEXT); }
    std::string report_json() const { return report(KVMEM_JSON); }

    /// Gives all keys back; returns how many. A second call does nothing. Throws with
    /// KVMEM_ERR_DEREGISTER_FAILED if a registrar failed to take some keys back: those stay valid,
    /// and the call can be repeated.
    std::uint64_t deregister() const {
        std::uint64_t keys = 0;
        detail::check(kvmem_registration_deregister(native_handle(), &keys));
        return keys;
    }

    /// The handle of the C interface; NULL after a move.
    kvmem_registration *native_handle() const noexcept {
        return state_ ? state_->handle.get() : nullptr;
    }

private:
    friend class BackgroundRegistration;
    using State = detail::WithCallback<kvmem_registration, kvmem_registration_destroy>;

    explicit Registration(std::unique_ptr<State> state) : state_(std::move(state)) {}

    std::string report(std::uint32_t format) const {
        return detail::text([&](char *buffer, std::uint64_t capacity, std::uint64_t *needed) {
            return kvmem_registration_report(native_handle(), format, buffer, capacity, needed);
        });
    }

    std::unique_ptr<State> state_;
};

/// A region that a thread of the library is registering, chunk by chunk in address order. If it is
/// destroyed before `wait`, all keys are given back.
class BackgroundRegistration {
public:
    BackgroundRegistration(const Region &region, const Registrars &registrars,
                           const RegistrationOptions &options = {})
        : state_(new State{detail::ProgressCallback(options.progress), {}}) {
        const kvmem_registration_options wanted = detail::native(options, state_->callback);
        kvmem_background_registration *made = nullptr;
        detail::check(kvmem_background_registration_create(
            region.native_handle(), registrars.native_handle(), &wanted, &made));
        state_->handle.reset(made);
    }

    /// Waits until the first `bytes` bytes can be used with all registrars, the work ends, or the
    /// time is over. Returns how many can be used then.
    std::uint64_t wait_ready(std::uint64_t bytes, std::chrono::nanoseconds timeout) const {
        std::uint64_t ready = 0;
        detail::check(kvmem_background_registration_wait_ready(
            native_handle(), bytes, detail::nanoseconds(timeout), &ready));
        return ready;
    }

    Progress progress() const {
        Progress progress;
        detail::check(kvmem_background_registration_progress(native_handle(), &progress, nullptr));
        return progress;
    }

    /// Returns whether the work has ended.
    bool finished() const {
        Progress progress;
        std::uint32_t finished = 0;
        detail::check(
            kvmem_background_registration_progress(native_handle(), &progress, &finished));
        return finished != 0;
    }

    /// Returns the key with which `device` can access all of `[offset, offset + bytes)`, if that
    /// range is registered already.
    Key key(const std::string &device, std::uint64_t offset, std::uint64_t bytes) const {
        Key key;
        detail::check(kvmem_background_registration_key(native_handle(), device.c_str(), offset,
                                                        bytes, &key));
        return key;
    }

    /// Waits for the end and makes a registration of it: `std::move(background).wait()`. If it
    /// throws, all keys have been given back.
    Registration wait() && {
        auto done = std::make_unique<Registration::State>(
            Registration::State{detail::ProgressCallback(nullptr), {}});
        kvmem_registration *made = nullptr;
        const kvmem_status status = kvmem_background_registration_wait(native_handle(), &made);
        if (status != KVMEM_ERR_NULL_ARGUMENT && status != KVMEM_ERR_BAD_HANDLE) {
            // The call consumed the object, although it failed.
            (void)state_->handle.release();
        }
        detail::check(status);
        done->handle.reset(made);
        done->callback = std::move(state_->callback);
        state_.reset();
        return Registration(std::move(done));
    }

    /// The handle of the C interface; NULL after a move.
    kvmem_background_registration *native_handle() const noexcept {
        return state_ ? state_->handle.get() : nullptr;
    }

private:
    using State =
        detail::WithCallback<kvmem_background_registration, kvmem_background_registration_destroy>;

    std::unique_ptr<State> state_;
};

} // namespace kvmem

#endif
