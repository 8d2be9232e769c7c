// Registration: the right of devices to reach the bytes of a region (layer 2). Part of kvmem.hpp.
#ifndef KVMEM_REGISTRATION_HPP
#define KVMEM_REGISTRATION_HPP

#include <cerrno>
#include <system_error>

#include "region.hpp"

namespace kvmem {

/// The right of a device to reach a range of bytes.
using Key = kvmem_key;

/// What a registrar can take.
using Limits = kvmem_limits;

/// A chunk of a region with its key.
using Chunk = kvmem_chunk;

/// What registering did.
using RegistrationInfo = kvmem_registration_info;

/// A registrar of the program's own: a NIC's protection domain, a transfer engine. Calls come from any thread, one at a time.
class Registrar {
public:
    virtual ~Registrar() = default;

    /// What it is called; no two that register one region are called the same.
    virtual std::string name() const = 0;

    /// The most bytes that one key can cover; 0: no limit.
    virtual std::uint64_t max_key_bytes() const { return 0; }

    /// How many keys it can give; 0: no limit.
    virtual std::uint64_t max_keys() const { return 0; }

    /// Pins `bytes`. Whoever cannot throws: of a std::system_error the code goes into what the caller is told.
    virtual Key register_bytes(bytes_span bytes) = 0;

    /// Takes a key back; whoever cannot throws, and the key stands.
    virtual void deregister(const Key &key) = 0;
};

/// Some registrars: rings, NICs, GPUs. What was registered with them keeps what it needs of them.
class Registrars {
public:
    /// Opens registrars by words with commas between: "io_uring", "io_uring:N" (rings), "mlock", "verbs", "verbs:NIC", "cuda", "cuda:N".
    static Registrars open(const std::string &devices) {
        kvmem_registrars *made = nullptr;
        detail::check(kvmem_registrars_open(devices.c_str(), &made));
        return Registrars(made);
    }

    /// Registrars that are not there, for tests; see kvmem_registrars_simulated.
    static Registrars simulated(std::uint64_t nics, std::uint64_t max_key_bytes = UINT64_MAX,
                                std::uint64_t max_keys = UINT64_MAX) {
        kvmem_registrars *made = nullptr;
        detail::check(kvmem_registrars_simulated(nics, max_key_bytes, max_keys, &made));
        return Registrars(made);
    }

    /// One that the program brings itself. It is kept as long as something is registered with it.
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

    std::uint64_t size() const {
        std::uint64_t count = 0;
        detail::check(kvmem_registrars_count(native_handle(), &count));
        return count;
    }

    /// The name of the registrar at `index`, by which keys are asked for.
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

    /// Keys that a simulated registrar has given and not got back.
    std::uint64_t live_keys(std::uint64_t index) const {
        std::uint64_t keys = 0;
        detail::check(kvmem_registrars_live_keys(native_handle(), index, &keys));
        return keys;
    }

    /// Lets a simulated registrar refuse; see kvmem_registrars_inject.
    void inject(std::uint64_t index, bool on_deregister, std::uint64_t nth, std::uint64_t times) const {
        detail::check(kvmem_registrars_inject(native_handle(), index, on_deregister, nth, times));
    }

    kvmem_registrars *native_handle() const noexcept { return registrars_.get(); }

private:
    explicit Registrars(kvmem_registrars *made) : registrars_(made) {}

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

    static int register_bytes(void *user, void *data, std::uint64_t bytes, kvmem_key *out_key) noexcept {
        auto &registrar = **static_cast<std::shared_ptr<Registrar> *>(user);
        return guarded([&] { *out_key = registrar.register_bytes(detail::bytes_of(data, bytes)); });
    }

    static int deregister(void *user, const kvmem_key *key) noexcept {
        auto &registrar = **static_cast<std::shared_ptr<Registrar> *>(user);
        return guarded([&] { registrar.deregister(*key); });
    }

    static void release(void *user) noexcept { delete static_cast<std::shared_ptr<Registrar> *>(user); }

    detail::Handle<kvmem_registrars, kvmem_registrars_destroy> registrars_;
};

/// Which registrars there are on this machine, and what those that are missing would need.
inline std::string discover() {
    return detail::text([](char *buffer, std::uint64_t capacity, std::uint64_t *needed) {
        return kvmem_discover_report(KVMEM_TEXT, buffer, capacity, needed);
    });
}

/// How a region is to be registered. What is not said is as kvmem_registration_options_init has it.
struct RegistrationOptions {
    /// "auto", "sequential", "parallel" or "parallel:N"; "" is "auto".
    std::string policy;
    /// Who makes resident what is not: `populate_auto`, `populate_none`, or a number of threads.
    std::uint32_t populate = populate_auto;
    /// Each chunk is populated and registered before the next is.
    bool by_range = false;
    /// The most bytes that one key is to cover; 0: as the registrars like it best.
    std::uint64_t chunk_bytes = 0;
    /// Is told of registering, and of giving the keys back.
    ProgressFn progress;
    /// Not owned; used until registering is over.
    const Cancel *cancel = nullptr;
    /// How long it may take; 0: as long as it takes.
    std::chrono::nanoseconds time_budget{0};
};

namespace detail {

/// Options for C, good as long as `options` and `teller`.
inline kvmem_registration_options native(const RegistrationOptions &options, const Teller &teller) {
    kvmem_registration_options wanted;
    check(kvmem_registration_options_init(&wanted, sizeof wanted));
    wanted.policy = or_null(options.policy);
    wanted.populate = options.populate;
    wanted.by_range = options.by_range;
    wanted.chunk_bytes = options.chunk_bytes;
    wanted.progress = teller.function();
    wanted.progress_user = teller.user();
    wanted.cancel = native(options.cancel);
    wanted.time_budget_ns = nanoseconds(options.time_budget);
    return wanted;
}

/// A registration and whom it tells: that goes after it.
template <class T, kvmem_status (*Destroy)(T *)>
struct Told {
    Teller teller;
    Handle<T, Destroy> handle;
};

} // namespace detail

/// A region, registered with some registrars: all of it with all of them. It keeps the memory. The keys are given back when it goes.
class Registration {
public:
    Registration(const Region &region, const Registrars &registrars, const RegistrationOptions &options = {})
        : state_(new State{detail::Teller(options.progress), {}}) {
        const kvmem_registration_options wanted = detail::native(options, state_->teller);
        kvmem_registration *made = nullptr;
        detail::check(kvmem_register(region.native_handle(), registrars.native_handle(), &wanted, &made));
        state_->handle.reset(made);
    }

    /// The key with which `device` can reach all of `[offset, offset + bytes)`; throws with KVMEM_STRADDLES if that takes more than one.
    Key key(const std::string &device, std::uint64_t offset, std::uint64_t bytes) const {
        Key key;
        detail::check(kvmem_registration_key(native_handle(), device.c_str(), offset, bytes, &key));
        return key;
    }

    /// All chunks of a device with their keys, in order; none if they have been given back.
    std::vector<Chunk> chunks(const std::string &device) const {
        return detail::list<Chunk>([&](Chunk *chunks, std::uint64_t capacity, std::uint64_t *count) {
            return kvmem_registration_chunks(native_handle(), device.c_str(), chunks, capacity, count);
        });
    }

    RegistrationInfo info() const {
        RegistrationInfo info;
        detail::check(kvmem_registration_get_info(native_handle(), &info));
        return info;
    }

    /// What registering did, and on what grounds.
    std::string report() const { return report(KVMEM_TEXT); }
    std::string report_json() const { return report(KVMEM_JSON); }

    /// Gives all keys back; how many. A second time does nothing. If a registrar does not take some of them it throws, with KVMEM_KEPT: they
    /// stay out, and it can be tried again.
    std::uint64_t deregister() const {
        std::uint64_t keys = 0;
        detail::check(kvmem_registration_deregister(native_handle(), &keys));
        return keys;
    }

    /// NULL after it was moved from.
    kvmem_registration *native_handle() const noexcept { return state_ ? state_->handle.get() : nullptr; }

private:
    friend class BackgroundRegistration;
    using State = detail::Told<kvmem_registration, kvmem_registration_destroy>;

    explicit Registration(std::unique_ptr<State> state) : state_(std::move(state)) {}

    std::string report(std::uint32_t format) const {
        return detail::text([&](char *buffer, std::uint64_t capacity, std::uint64_t *needed) {
            return kvmem_registration_report(native_handle(), format, buffer, capacity, needed);
        });
    }

    std::unique_ptr<State> state_;
};

/// A region that a thread of the library is registering, chunk by chunk in order of addresses. If it goes before it has been waited for, everything is
/// given back.
class BackgroundRegistration {
public:
    BackgroundRegistration(const Region &region, const Registrars &registrars,
                           const RegistrationOptions &options = {})
        : state_(new State{detail::Teller(options.progress), {}}) {
        const kvmem_registration_options wanted = detail::native(options, state_->teller);
        kvmem_background *made = nullptr;
        detail::check(
            kvmem_register_in_background(region.native_handle(), registrars.native_handle(), &wanted, &made));
        state_->handle.reset(made);
    }

    /// Waits until the first `bytes` bytes can be used with all registrars, the work has ended, or the time is over; how many can be used
    /// then.
    std::uint64_t wait_ready(std::uint64_t bytes, std::chrono::nanoseconds timeout) const {
        std::uint64_t ready = 0;
        detail::check(
            kvmem_background_wait_ready(native_handle(), bytes, detail::nanoseconds(timeout), &ready));
        return ready;
    }

    Progress progress() const {
        Progress progress;
        detail::check(kvmem_background_progress(native_handle(), &progress, nullptr));
        return progress;
    }

    /// Whether there is nothing more to wait for.
    bool finished() const {
        Progress progress;
        std::uint32_t finished = 0;
        detail::check(kvmem_background_progress(native_handle(), &progress, &finished));
        return finished != 0;
    }

    /// As Registration::key, for what is registered already.
    Key key(const std::string &device, std::uint64_t offset, std::uint64_t bytes) const {
        Key key;
        detail::check(kvmem_background_key(native_handle(), device.c_str(), offset, bytes, &key));
        return key;
    }

    /// Waits for the end, and makes a registration of it: `std::move(background).wait()`. If it throws all keys have been given back.
    Registration wait() && {
        auto done = std::make_unique<Registration::State>(
            Registration::State{detail::Teller(nullptr), {}});
        kvmem_registration *made = nullptr;
        const kvmem_status status = kvmem_background_wait(native_handle(), &made);
        if (status != KVMEM_NULL_ARGUMENT && status != KVMEM_BAD_HANDLE) {
            // The object is gone, also if the call failed.
            (void)state_->handle.release();
        }
        detail::check(status);
        done->handle.reset(made);
        done->teller = std::move(state_->teller);
        state_.reset();
        return Registration(std::move(done));
    }

    /// NULL after it was moved from.
    kvmem_background *native_handle() const noexcept { return state_ ? state_->handle.get() : nullptr; }

private:
    using State = detail::Told<kvmem_background, kvmem_background_destroy>;

    std::unique_ptr<State> state_;
};

} // namespace kvmem

#endif
