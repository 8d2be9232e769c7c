// Registrars, registrations, and a registrar that the program implements.
#include <cerrno>
#include <memory>
#include <set>
#include <vector>

#include "check.hpp"

static_assert(moves_only<kvmem::Registration> && moves_only<kvmem::Registrars> &&
              moves_only<kvmem::BackgroundRegistration>);

static kvmem::Region small_region(std::uint64_t bytes) {
    kvmem::RegionOptions options;
    options.pages = "4k";
    return kvmem::Region(bytes, options);
}

static void simulated() {
    kvmem::Registrars nics = kvmem::testing::simulated_registrars(2, 256 * KIB);
    CHECK(nics.size() == 2 && nics.name(1) == "simulated:1" &&
          nics.limits(0).max_key_bytes == 256 * KIB);
    std::uint64_t reports = 0;
    kvmem::RegistrationOptions options;
    options.progress = [&](const kvmem::Progress &) { ++reports; };
    {
        kvmem::Registration registration(small_region(MIB), nics, options);
        CHECK(reports != 0);
        CHECK(registration.info().devices == 2 && registration.info().keys == 8);
        CHECK(registration.chunks("simulated:0").size() == 4 &&
              kvmem::testing::live_keys(nics, 0) == 4);
        const kvmem::Key key = registration.key("simulated:1", 300 * KIB, KIB);
        CHECK(key.handle == registration.chunks("simulated:1")[1].key.handle);
        THROWS(KVMEM_ERR_STRADDLES, "", registration.key("simulated:1", 0, MIB));
        THROWS(KVMEM_ERR_NO_SUCH_DEVICE, "mlx5_0", registration.key("mlx5_0", 0, 1));
        CHECK(!registration.report().empty() && registration.report_json().front() == '{');

        // The callback is kept by the object that calls it.
        kvmem::Registration moved = std::move(registration);
        move_to_itself(moved);
        CHECK(moved.info().keys == 8);
        moved = kvmem::Registration(small_region(4096), nics, options);
        CHECK(kvmem::testing::live_keys(nics, 0) == 1);
        THROWS(KVMEM_ERR_NULL_ARGUMENT, "", registration.info());

        // One key, three attempts.
        kvmem::testing::inject(nics, 0, true, 0, 3);
        THROWS(KVMEM_ERR_DEREGISTER_FAILED, "", moved.deregister());
        CHECK(moved.deregister() == 1 && moved.deregister() == 0);
    }
    CHECK(kvmem::testing::live_keys(nics, 0) == 0 && kvmem::testing::live_keys(nics, 1) == 0);
    kvmem::testing::inject(nics, 1, false, 2, 1);
    THROWS(KVMEM_ERR_REGISTER_FAILED, "simulated:1", kvmem::Registration(small_region(MIB), nics));
    CHECK(kvmem::testing::live_keys(nics, 0) == 0 && kvmem::testing::live_keys(nics, 1) == 0);
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "teapot", kvmem::Registrars::open("teapot"));
    CHECK(kvmem::discover().find("mlock") != std::string::npos);
}

static void in_background() {
    kvmem::Registrars nics = kvmem::testing::simulated_registrars(1, 64 * KIB);
    std::uint64_t reports = 0;
    kvmem::RegistrationOptions options;
    options.progress = [&](const kvmem::Progress &) { ++reports; };
    kvmem::BackgroundRegistration background(small_region(MIB), nics, options);
    CHECK(background.wait_ready(MIB, std::chrono::seconds(20)) == MIB);
    CHECK(background.key("simulated:0", 0, 1).handle != 0 ||
          kvmem::testing::live_keys(nics, 0) == 16);
    CHECK(background.progress().ready_bytes == MIB);
    kvmem::BackgroundRegistration moved = std::move(background);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", background.finished());
    kvmem::Registration registration = std::move(moved).wait();
    CHECK(registration.info().keys == 16 && reports != 0);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", moved.finished());
    CHECK(registration.deregister() == 16);
    {
        // Destroyed without a wait: all keys are given back.
        const kvmem::BackgroundRegistration dropped(small_region(MIB), nics);
    }
    CHECK(kvmem::testing::live_keys(nics, 0) == 0);
    kvmem::testing::inject(nics, 0, false, 0, 1);
    THROWS(KVMEM_ERR_REGISTER_FAILED, "",
           kvmem::BackgroundRegistration(small_region(MIB), nics).wait());
}

// Counts its keys, and fails when reports to.
class CountingRegistrar : public kvmem::Registrar {
public:
    std::string name() const override { return "counting"; }
    std::uint64_t max_key_bytes() const override { return 128 * KIB; }

    kvmem::Key register_bytes(kvmem::bytes_span bytes) override {
        if (fail_with != 0) {
            throw std::system_error(fail_with, std::generic_category());
        }
        if (throw_nonsense) {
            throw 42;
        }
        kvmem::Key key = {};
        key.handle = reinterpret_cast<std::uintptr_t>(bytes.data());
        live.insert(key.handle);
        return key;
    }

    void deregister(const kvmem::Key &key) override { CHECK(live.erase(key.handle) == 1); }

    int fail_with = 0;
    bool throw_nonsense = false;
    std::set<std::uint64_t> live;
};

static void custom() {
    auto counting = std::make_shared<CountingRegistrar>();
    const std::weak_ptr<CountingRegistrar> weak = counting;
    {
        kvmem::Registrars registrars = kvmem::Registrars::custom(counting);
        CHECK(registrars.name(0) == "counting");
        kvmem::Registration registration(small_region(512 * KIB), registrars);
        CHECK(counting->live.size() == 4 && registration.chunks("counting").size() == 4);
        registrars = kvmem::testing::simulated_registrars(1);
        registration.deregister();
        CHECK(counting->live.empty());

        registrars = kvmem::Registrars::custom(counting);
        counting->fail_with = ENOMEM;
        THROWS(KVMEM_ERR_REGISTER_FAILED, "counting",
               kvmem::Registration(small_region(512 * KIB), registrars));
        counting->fail_with = 0;
        counting->throw_nonsense = true;
        THROWS(KVMEM_ERR_REGISTER_FAILED, "counting",
               kvmem::Registration(small_region(512 * KIB), registrars));
    }
    CHECK(!weak.expired());
    counting.reset();
    CHECK(weak.expired());
}

int main() {
    simulated();
    in_background();
    custom();
    return 0;
}
