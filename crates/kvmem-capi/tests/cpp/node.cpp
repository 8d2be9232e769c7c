// A node: clients of one server share values. The server is in another process; the environment
// variable KVMEM_TEST_NODE has the path of its socket, and KVMEM_TEST_NODE_IMPATIENT that of one
// with a short lease.
#include <kvmem.hpp>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"

using kvmem::NodeClient;
using kvmem::NodePins;
using kvmem::NodeReservation;

static_assert(moves_only<NodeClient> && moves_only<NodePins> && moves_only<NodeReservation>);

using Keys = std::vector<std::string>;

static std::string node;

static std::string text(kvmem::bytes_view bytes) {
    return std::string(reinterpret_cast<const char *>(bytes.data()), bytes.size());
}

static void fill(const NodeReservation &reservation, char filler) {
    std::memset(reservation.bytes().data(), filler, reservation.size());
}

static kvmem::span<const std::uint64_t> span_of(const std::vector<std::uint64_t> &sizes) {
    return {sizes.data(), sizes.size()};
}

static void registrars() {
    kvmem::Registrars nics = kvmem::testing::simulated_registrars(1);
    kvmem::NodeClientOptions options;
    options.registrars = &nics;
    NodeClient client(node, options);
    const std::uint64_t bytes = client.memory().size();
    CHECK(client.key("simulated:0", 0, bytes).handle != UINT64_MAX);
    THROWS(KVMEM_ERR_OUT_OF_BOUNDS, "", client.key("simulated:0", bytes, 1));
    THROWS(KVMEM_ERR_NO_SUCH_DEVICE, "cuda:0", client.key("cuda:0", 0, 1));
    options.read_only = true;
    THROWS(KVMEM_ERR_READ_ONLY, "read-only", NodeClient(node, options));
}

static void shared(bool rings) {
    kvmem::NodeClientOptions options;
    options.rings = rings;
    NodeClient writer(node, options);
    std::optional<NodeClient> reader(std::in_place, node, options);
    CHECK(writer.has_rings() == rings && writer.memory().size() == writer.stats().capacity);
    CHECK(writer.boundary() == 4 * MIB);

    auto reserved = writer.reserve(span_of({1000, 2000}));
    CHECK(reserved && reserved->size() == 2);
    NodeReservation &first = (*reserved)[0], &second = (*reserved)[1];
    CHECK(first.size() == 1000 && first.bytes().data() == writer.memory().data() + first.offset());
    CHECK(first.address() == first.bytes().data());
    fill(first, 'a');
    fill(second, 'b');
    CHECK(reader->lookup(Keys{"a", "b"}) == 0);

    // One of them is wrong: nothing changes.
    const kvmem::NodeCommit twice[] = {{&first, "a"}, {&second, "a"}};
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "element 1",
           writer.commit(kvmem::span<const kvmem::NodeCommit>(twice, 2)));
    THROWS(KVMEM_ERR_FOREIGN_ALLOCATION, "another client",
           reader->commit(kvmem::span<const kvmem::NodeCommit>(twice, 2)));
    CHECK(first && second && writer.stats().reservations == 2);
    CHECK(first.is_valid() && second.is_valid());
    const kvmem::NodeCommit right[] = {{&first, "a"},
                                       {&second, "b", {std::chrono::hours(1), 2, "lost"}}};
    writer.commit(kvmem::span<const kvmem::NodeCommit>(right, 2));
    CHECK(!first && !second && first.bytes().empty() && first.offset() == 0);
    // Its parent is not there.
    CHECK(writer.stats().dead_bytes == 2000);
    CHECK(writer.insert("c", "short", 5));
    const auto bytes = kvmem::detail::bytes_of("short", 5);
    const kvmem::NodeHints low{{}, 0, "c"}, bad{{}, 4, {}};
    CHECK(writer.insert_batch({{"d", bytes, low}, {"e", bytes}}) && writer.insert_batch({}));
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "priority is 4",
           writer.insert_batch({{"f", bytes}, {"g", bytes, bad}}));
    const std::array<std::string_view, 4> batch = {"d", "e", "f", "g"};
    CHECK(reader->lookup(batch) == 2 && writer.remove(batch) == 2);

    const std::array<std::string_view, 4> keys = {"a", "b", "none", "c"};
    CHECK(reader->lookup(keys) == 2);
    NodePins pins = reader->acquire(keys);
    CHECK(pins.size() == 4 && pins.hits() == 3 && pins.is_valid());
    CHECK(text(pins.value(1)->bytes()) == std::string(2000, 'b') && pins.value(3)->size() == 5);
    CHECK(!pins.value(2) && !pins.value(4));
    CHECK(pins.address(1) == pins.value(1)->bytes().data());
    THROWS(KVMEM_ERR_NOT_FOUND, "", pins.address(2));
    CHECK(pins.value(0)->bytes().data() == reader->memory().data() + pins.value(0)->offset());
    THROWS(KVMEM_ERR_UNSUPPORTED, "no checksum", pins.verify(3));
    THROWS(KVMEM_ERR_NOT_FOUND, "", pins.verify(2));
    const NodePins prefix = reader->acquire_prefix(keys);
    CHECK(prefix.hits() == 2 && !prefix.value(3) && writer.stats().pinned == 3);
    CHECK(reader->try_acquire_prefix(keys).hits() == 2);
    const NodePins tried = reader->try_acquire(keys);
    CHECK(tried.hits() == 3 && !tried.is_pending(2) && !tried.is_pending(9));
    CHECK(writer.try_reserve(span_of({64, 64}))->size() == 2);

    NodePins other = reader->exchange(std::move(pins), Keys{"c"});
    CHECK(!pins && pins.size() == 0 && text(other.value(0)->bytes()) == "short");
    CHECK(writer.touch(keys) == 3 && writer.remove(keys) == 3 && writer.lookup(keys) == 0);
    // Pins keep their values and the memory.
    reader.reset();
    CHECK(text(other.value(0)->bytes()) == "short" && text(prefix.value(0)->bytes())[999] == 'a');
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "1 to 64", writer.exchange(std::move(other), Keys{""}));
    CHECK(!other);
    writer.keep_alive();

    auto one = writer.reserve(100);
    CHECK(one);
    fill(*one, 'x');
    writer.commit(std::move(*one), "one");
    CHECK(!*one && writer.remove(Keys{"one"}) == 1);
}

static void options() {
    kvmem::NodeClientOptions options;
    options.namespace_name = "model";
    options.checksums = options.populate = true;
    NodeClient writer(node, options);
    CHECK(writer.insert("key", "value", 5));
    CHECK(NodeClient(node).lookup(Keys{"key"}) == 0);
    options.read_only = true;
    NodeClient reader(node, options);
    CHECK(text(reader.acquire(Keys{"key"}).value(0)->bytes()) == "value");
    THROWS(KVMEM_ERR_READ_ONLY, "read-only", reader.insert("key", "value", 5));

    // A byte is changed in place.
    NodePins pins = reader.acquire(Keys{"key"});
    pins.verify(0);
    writer.memory()[pins.value(0)->offset()] = std::byte{'V'};
    THROWS(KVMEM_ERR_DAMAGED, "checksum", pins.verify(0));
    options.read_only = false;
    options.verify = true;
    NodeClient careful(node, options);
    CHECK(careful.acquire(Keys{"key"}).hits() == 0 && writer.lookup(Keys{"key"}) == 0);

    // A writer without checksums.
    kvmem::NodeClientOptions plain;
    plain.namespace_name = "model";
    CHECK(NodeClient(node, plain).insert("none", "value", 5) && careful.unverified() == 0);
    CHECK(careful.acquire(Keys{"none"}).hits() == 0 && careful.unverified() == 1);
    CHECK(writer.acquire(Keys{"none"}).hits() == 1 && writer.unverified() == 0);

    options.server_users = {geteuid() + 1};
    THROWS(KVMEM_ERR_PERMISSION, "server_users", NodeClient(node, options));
    options.server_users.push_back(geteuid());
    CHECK(NodeClient(node, options).stats().capacity > 0);
    options.retry_ms = 0;
    THROWS(KVMEM_ERR_DISCONNECTED, "kvmem serve", NodeClient(node + ".none", options));
}

static void silent_server() {
    // It listens, and nothing answers.
    const std::string path = node + ".silent";
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    CHECK(path.size() < sizeof address.sun_path);
    path.copy(address.sun_path, path.size());
    CHECK(bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0);
    CHECK(listen(listener, 4) == 0);
    kvmem::NodeClientOptions options;
    options.retry_ms = 0;
    options.answer_within_ms = 200;
    const auto started = std::chrono::steady_clock::now();
    THROWS(KVMEM_ERR_DISCONNECTED, "does not answer", NodeClient(path, options));
    CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(20));
    close(listener);
    unlink(path.c_str());
}

static void operators() {
    NodeClient client(node);
    kvmem::NodeClientOptions options;
    options.namespace_name = "operated";
    NodeClient other(node, options);
    CHECK(other.insert("first", "value", 5) && other.insert("second", "value", 5));
    NodePins pins = other.acquire(Keys{"second"});
    std::size_t seen = 0;
    std::optional<std::uint64_t> from = 0;
    while (from) {
        const kvmem::NodeList list = client.as_operator().list(*from, 1);
        CHECK(list.values.size() <= 1);
        for (const kvmem::NodeListed &one : list.values) {
            if (one.namespace_name == "operated") {
                CHECK(one.bytes == 5 && one.pins == (one.key == "second" ? 1 : 0));
                seen++;
            }
        }
        from = list.next;
    }
    CHECK(seen == 2);
    CHECK(other.list_namespace().values.size() == 2 && !other.list_namespace().next);
    const auto located = other.locate(Keys{"first", "missing"});
    CHECK(located.size() == 2 && located[0].in_memory && !located[0].in_tier);
    CHECK(!located[1].in_memory && !located[1].in_tier);
    CHECK(other.acquire(Keys{"missing"}).hits() == 0);
    const std::vector<kvmem::NodeMiss> misses = other.misses(1);
    CHECK(misses.size() == 1 && misses[0].key == "missing" && !misses[0].gone);
    CHECK(misses[0].reason == kvmem::NodeMissReason::never_stored && !misses[0].priority);
    CHECK(misses[0].namespace_name == "operated" && misses[0].evicted_for.empty());
    CHECK(client.as_operator().misses(1).at(0).key == "missing");
    for (const kvmem::NodeNamespaceStats &one : client.namespaces()) {
        const bool is_other = std::string_view(one.namespace_name) == "operated";
        CHECK(!is_other || (one.hits_at_2 == one.hits && one.keys == one.hits + one.misses));
    }
    bool found = false;
    for (const kvmem::NodeSession &one : client.as_operator().sessions()) {
        CHECK(one.pid == static_cast<std::uint32_t>(getpid()));
        found |= one.namespace_name == "operated" && one.pins == 1 && one.is_connected;
    }
    CHECK(found);
    kvmem::NodeOperator all = client.as_operator();
    CHECK(all.evict(1, "operated") == 4096 && all.evict(1, "operated") == 0);
    // Its own namespace.
    CHECK(client.insert("own", "value", 5) && other.clear() == 1 && client.clear() >= 1);
    CHECK(other.insert("second", "value", 5));
    pins = other.acquire(Keys{"second"});
    CHECK(pins.is_valid());
    CHECK(client.as_operator().reclaim_pins(static_cast<std::uint32_t>(getpid())) >= 1);
    CHECK(!pins.is_valid());
    CHECK(client.stats().pinned_bytes == 0);
    const std::uint64_t whole = client.stats().max_capacity;
    CHECK(all.resize(whole).size_bytes == whole);
    CHECK(all.clear("none") == 0 && all.clear("operated") == 1);
    CHECK(client.stats().tier_state == KVMEM_NODE_TIER_NONE);
}

static void events() {
    NodeClient client(node);
    const std::uint64_t from = client.events(UINT64_MAX).next;
    CHECK(client.insert("event", "value", 5));
    CHECK(client.remove(Keys{"event"}) == 1);
    const kvmem::NodeEvents found = client.events(from);
    CHECK(found.events.size() == 2 && found.next == from + 2);
    CHECK(found.events[0].kind == kvmem::NodeEventKind::stored);
    CHECK(found.events[1].kind == kvmem::NodeEventKind::removed);
    CHECK(found.events[1].key == "event" && found.events[1].number == from + 1);
    CHECK(client.events(from, 1).events.size() == 1 && client.events(from, 0).events.empty());
    CHECK(client.events(found.next, 5, std::chrono::milliseconds(20)).events.empty());
}

#define EMPTY(...) THROWS(KVMEM_ERR_NULL_ARGUMENT, "", __VA_ARGS__)

// A moved-from object is empty: every call on it throws, and it can be assigned to.
static void moved() {
    NodeClient client(node);
    NodeClient there = std::move(client);
    EMPTY(client.memory());
    EMPTY(client.has_rings());
    EMPTY(client.unverified());
    EMPTY(client.key("simulated:0", 0, 1));
    EMPTY(client.lookup(Keys()));
    EMPTY(client.acquire(Keys()));
    EMPTY(client.acquire_prefix(Keys()));
    EMPTY(client.reserve(1));
    EMPTY(client.reserve(span_of({})));
    EMPTY(client.commit(kvmem::span<const kvmem::NodeCommit>()));
    EMPTY(client.insert("key", "value", 5));
    EMPTY(client.remove(Keys()));
    EMPTY(client.touch(Keys()));
    EMPTY(client.keep_alive());
    EMPTY(client.stats());
    EMPTY(client.events(0));
    CHECK(client.native_handle() == nullptr);

    NodePins pins = there.acquire(Keys{"none"});
    NodePins kept = std::move(pins);
    CHECK(!pins && pins.size() == 0 && pins.hits() == 0 && !pins.value(0));
    EMPTY(pins.is_valid());
    EMPTY(pins.verify(0));
    EMPTY(there.exchange(std::move(pins), Keys()));
    EMPTY(client.exchange(std::move(kept), Keys()));
    CHECK(!kept && there.stats().pinned == 0);

    NodeReservation reservation = *there.reserve(5);
    NodeReservation open = std::move(reservation);
    CHECK(!reservation && reservation.size() == 0 && reservation.native_handle() == nullptr);
    EMPTY(there.commit(std::move(reservation), "key"));
    const kvmem::NodeCommit none = {nullptr, "key"};
    EMPTY(there.commit(kvmem::span<const kvmem::NodeCommit>(&none, 1)));
    reservation = std::move(open);
    move_to_itself(reservation);
    client = std::move(there);
    client.commit(std::move(reservation), "key");
    CHECK(client.lookup(Keys{"key"}) == 1);
}

int main() {
    CHECK(std::getenv("KVMEM_TEST_NODE") && std::getenv("KVMEM_TEST_NODE_IMPATIENT"));
    node = std::getenv("KVMEM_TEST_NODE");
    shared(false);
    shared(true);
    registrars();
    options();
    silent_server();
    operators();
    events();
    moved();
    return 0;
}
