// Registrars, registrations, and a registrar of the program's own.
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
    std::uint64_t told = 0;
    kvmem::RegistrationOptions options;
    options.progress = [&](const kvmem::Progress &) { ++told; };
    {
        kvmem::Registration registration(small_region(MIB), nics, options);
        CHECK(told != 0);
        CHECK(registration.info().devices == 2 && registration.info().keys == 8);
        CHECK(registration.chunks("simulated:0").size() == 4 &&
              kvmem::testing::live_keys(nics, 0) == 4);
        const kvmem::Key key = registration.key("simulated:1", 300 * KIB, KIB);
        CHECK(key.handle == registration.chunks("simulated:1")[1].key.handle);
        THROWS(KVMEM_ERR_STRADDLES, "", registration.key("simulated:1", 0, MIB));
        THROWS(KVMEM_ERR_NO_SUCH_DEVICE, "mlx5_0", registration.key("mlx5_0", 0, 1));
        CHECK(!registration.report().empty() && registration.report_json().front() == '{');

        // The function that is told goes with whoever tells.
        kvmem::Registration moved = std::move(registration);
        move_to_itself(moved);
        CHECK(moved.info().keys == 8);
        moved = kvmem::Registration(small_region(4096), nics, options);
        CHECK(kvmem::testing::live_keys(nics, 0) == 1);
        THROWS(KVMEM_ERR_NULL_ARGUMENT, "", registration.info());

        // One key, tried three times.
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
    std::uint64_t told = 0;
    kvmem::RegistrationOptions options;
    options.progress = [&](const kvmem::Progress &) { ++told; };
    kvmem::BackgroundRegistration background(small_region(MIB), nics, options);
    CHECK(background.wait_ready(MIB, std::chrono::seconds(20)) == MIB);
    CHECK(background.key("simulated:0", 0, 1).handle != 0 ||
          kvmem::testing::live_keys(nics, 0) == 16);
    CHECK(background.progress().ready_bytes == MIB);
    kvmem::BackgroundRegistration moved = std::move(background);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", background.finished());
    kvmem::Registration registration = std::move(moved).wait();
    CHECK(registration.info().keys == 16 && told != 0);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", moved.finished());
    CHECK(registration.deregister() == 16);
    {
        // Not waited for: all is given back.
        const kvmem::BackgroundRegistration left(small_region(MIB), nics);
    }
    CHECK(kvmem::testing::live_keys(nics, 0) == 0);
    kvmem::testing::inject(nics, 0, false, 0, 1);
    THROWS(KVMEM_ERR_REGISTER_FAILED, "",
           kvmem::BackgroundRegistration(small_region(MIB), nics).wait());
}

// Keeps books, and refuses when it is told to.
class Books : public kvmem::Registrar {
public:
    std::string name() const override { return "books"; }
    std::uint64_t max_key_bytes() const override { return 128 * KIB; }

    kvmem::Key register_bytes(kvmem::bytes_span bytes) override {
        if (refuse_with != 0) {
            throw std::system_error(refuse_with, std::generic_category());
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

    int refuse_with = 0;
    bool throw_nonsense = false;
    std::set<std::uint64_t> live;
};

static void custom() {
    auto books = std::make_shared<Books>();
    const std::weak_ptr<Books> watch = books;
    {
        kvmem::Registrars registrars = kvmem::Registrars::custom(books);
        CHECK(registrars.name(0) == "books");
        kvmem::Registration registration(small_region(512 * KIB), registrars);
        CHECK(books->live.size() == 4 && registration.chunks("books").size() == 4);
        registrars = kvmem::testing::simulated_registrars(1);
        registration.deregister();
        CHECK(books->live.empty());

        registrars = kvmem::Registrars::custom(books);
        books->refuse_with = ENOMEM;
        THROWS(KVMEM_ERR_REGISTER_FAILED, "books",
               kvmem::Registration(small_region(512 * KIB), registrars));
        books->refuse_with = 0;
        books->throw_nonsense = true;
        THROWS(KVMEM_ERR_REGISTER_FAILED, "books",
               kvmem::Registration(small_region(512 * KIB), registrars));
    }
    CHECK(!watch.expired());
    books.reset();
    CHECK(watch.expired());
}

int main() {
    simulated();
    in_background();
    custom();
    return 0;
}
