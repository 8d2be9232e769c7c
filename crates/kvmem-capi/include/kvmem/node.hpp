// Node: one pool of memory for all engines of a machine, from one of them. Part of kvmem.hpp.
#ifndef KVMEM_NODE_HPP
#define KVMEM_NODE_HPP

#include <chrono>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "handle.hpp"
#include "kv_hints.hpp"
#include "registration.hpp"
#include "span.hpp"

namespace kvmem {

/// Options of a client of a node: those of C.
struct NodeClientOptions
    : detail::WithDefaults<kvmem_node_client_options, kvmem_node_client_options_init> {
    /// The namespace of all keys of the client, such as a model or a tenant.
    std::string namespace_name;
    /// Registrars for the whole memory. Not owned; used until the client is connected. Their keys
    /// stay valid until the client, its pins and its reservations are gone, also when the server
    /// starts again.
    const Registrars *registrars = nullptr;
    /// The users whose servers the client trusts with its values. Empty: its own user and root. The
    /// server of another user throws KVMEM_ERR_PERMISSION.
    std::vector<std::uint32_t> server_users;
};

/// Statistics of a node.
using NodeStats = kvmem_node_stats;

/// Statistics of a namespace of a node.
using NodeNamespaceStats = kvmem_node_namespace_stats;

/// What happened to a value of a node.
enum class NodeEventKind : std::uint32_t {
    /// It can be found under its key.
    stored = KVMEM_NODE_EVENT_STORED,
    /// Another value came under its key.
    replaced = KVMEM_NODE_EVENT_REPLACED,
    /// A client or an operator removed it.
    removed = KVMEM_NODE_EVENT_REMOVED,
    /// It was evicted, or its time was over.
    evicted = KVMEM_NODE_EVENT_EVICTED,
    /// It was removed because its bytes did not have their checksum.
    damaged = KVMEM_NODE_EVENT_DAMAGED,
    /// The tier has let values go whose keys it does not know. The event has no key.
    tier_evicted = KVMEM_NODE_EVENT_TIER_EVICTED,
};

/// Something that happened to a value of a node.
struct NodeEvent {
    /// Counts all events of the server since it started.
    std::uint64_t number;
    NodeEventKind kind;
    /// The number of the key's namespace.
    std::uint32_t namespace_number;
    std::string key;
};

/// Where the value of a key is.
struct NodeLocated {
    bool in_memory;
    bool in_tier;
};

/// Events, and the number to go on with.
struct NodeEvents {
    std::vector<NodeEvent> events;
    std::uint64_t next;
};

/// A value of a node, for operators.
struct NodeListed {
    /// The name of its namespace.
    std::string namespace_name;
    std::string key;
    /// Bytes of the value.
    std::uint64_t bytes;
    /// The time since it was last acquired or stored.
    std::chrono::milliseconds idle;
    /// Clients that have it pinned, and the server itself.
    std::uint32_t pins;
    /// Its priority; values of priority 0 are evicted first.
    std::uint32_t priority;
};

/// Values of a node, and the entry to go on with; empty if there are no more.
struct NodeList {
    std::vector<NodeListed> values;
    std::optional<std::uint64_t> next;
};

/// A client of a node, for operators.
struct NodeSession {
    /// The process; 0: its number is not visible to the server.
    std::uint32_t pid;
    /// The name of its namespace.
    std::string namespace_name;
    /// Values that it has pinned.
    std::uint64_t pins;
    std::uint64_t reservations;
    /// Whether it is connected now.
    bool is_connected;
    /// The time since its last message.
    std::chrono::milliseconds silent;
};

/// The size of the memory of a node after a call that changes it.
struct NodeResized {
    /// Bytes for values and reservations now.
    std::uint64_t size_bytes;
    /// Bytes that were requested, in whole pages. The server goes on until the memory has them.
    std::uint64_t wanted_bytes;
    /// Bytes behind that end that are pinned, reserved, or being stored or verified.
    std::uint64_t held_bytes;
    /// Clients that have registered the memory with devices, or may have: while there are any, the
    /// memory does not shrink.
    std::uint64_t registered_clients;
};

/// Why a key had no value.
enum class NodeMissReason : std::uint32_t {
    /// No value of the key was ever stored, as far as the server knows.
    never_stored = KVMEM_NODE_MISS_NEVER_STORED,
    /// The value was evicted for others.
    evicted = KVMEM_NODE_MISS_EVICTED,
    /// Its time was over.
    expired = KVMEM_NODE_MISS_EXPIRED,
    /// A client or an operator removed it.
    removed = KVMEM_NODE_MISS_REMOVED,
    /// Its bytes did not have their checksum.
    damaged = KVMEM_NODE_MISS_DAMAGED,
    /// It is in the tier, which is away or detached.
    tier_away = KVMEM_NODE_MISS_TIER_AWAY,
    /// It was evicted to the tier, which has let it go since.
    tier_lost = KVMEM_NODE_MISS_TIER_LOST,
    /// The tier has it and did not bring it.
    not_fetched = KVMEM_NODE_MISS_NOT_FETCHED,
};

/// A key that was acquired and had no value.
struct NodeMiss {
    /// The name of its namespace.
    std::string namespace_name;
    std::string key;
    NodeMissReason reason;
    /// The time since the miss.
    std::chrono::milliseconds ago;
    /// The time between the moment when the value left the memory and the miss; empty if the server
    /// does not know a value of the key.
    std::optional<std::chrono::seconds> gone;
    /// The name of the namespace for whose block the value was evicted; empty: for none.
    std::string evicted_for;
    /// The priority of the value, if the server knows one.
    std::optional<std::uint32_t> priority;
};

/// A value of a node. Its bytes are valid as long as the `NodePins` that it is from.
class NodeValue {
public:
    /// The bytes, for reading.
    bytes_view bytes() const noexcept { return detail::bytes_of(value_.data, value_.bytes); }
    std::uint64_t size() const noexcept { return value_.bytes; }

    /// Offset of the first byte in the memory of the node.
    std::uint64_t offset() const noexcept { return value_.offset; }

private:
    friend class NodePins;
    explicit NodeValue(const kvmem_node_value &value) noexcept : value_(value) {}

    kvmem_node_value value_;
};

/// The values that one call has found, pinned until this object is destroyed: they are neither
/// evicted nor overwritten, also if they are removed or replaced. Can be moved and not copied. May
/// outlive its client. Any thread.
class NodePins {
public:
    /// The number of keys.
    std::size_t size() const noexcept { return pins_ ? values_.size() : 0; }

    /// The number of keys that have values.
    std::size_t hits() const noexcept {
        std::size_t hits = 0;
        for (std::size_t at = 0; at < size(); at++) {
            hits += values_[at].is_present;
        }
        return hits;
    }

    /// The value of the key at `index`; empty if it has none, or if there is no such key.
    std::optional<NodeValue> value(std::size_t index) const noexcept {
        if (index >= size() || values_[index].is_present == 0) {
            return std::nullopt;
        }
        return NodeValue(values_[index]);
    }

    /// Whether the tier below the node is about to read the value of the key at `index`: a later
    /// call finds it.
    bool is_pending(std::size_t index) const noexcept {
        return index < size() && values_[index].is_pending != 0;
    }

    /// Whether the values are still pinned; see kvmem_node_pins_is_valid.
    bool is_valid() const {
        std::uint32_t valid = 0;
        detail::check(kvmem_node_pins_is_valid(native_handle(), &valid));
        return valid != 0;
    }

    /// The address of the value at `index`, for reading, valid as long as this object. Throws
    /// KVMEM_ERR_STALE_ALLOCATION if the values are no longer pinned, and KVMEM_ERR_NOT_FOUND if
    /// there is no value.
    const void *address(std::size_t index) const {
        const void *address = nullptr;
        detail::check(kvmem_node_pins_address(native_handle(), index, &address));
        return address;
    }

    /// Compares the value at `index` with the checksum that its writer has calculated. Throws
    /// KVMEM_ERR_DAMAGED if they differ, KVMEM_ERR_UNSUPPORTED if the writer has calculated none,
    /// and KVMEM_ERR_NOT_FOUND if there is no value.
    void verify(std::size_t index) const {
        detail::check(kvmem_node_pins_verify(native_handle(), index));
    }

    kvmem_node_pins *native_handle() const noexcept { return pins_.get(); }

    /// Whether this holds pins: false after a move or an exchange.
    explicit operator bool() const noexcept { return static_cast<bool>(pins_); }

private:
    friend class NodeClient;

    NodePins(kvmem_node_pins *pins, std::vector<kvmem_node_value> values) noexcept
        : pins_(pins), values_(std::move(values)) {}

    detail::Handle<kvmem_node_pins, kvmem_node_pins_release> pins_;
    std::vector<kvmem_node_value> values_;
};

/// A block of a node's memory for a value that the processor or a device writes in place. The
/// destructor frees it unless it was committed. Can be moved and not copied. May outlive its
/// client. Any thread.
class NodeReservation {
public:
    /// The bytes, for writing. They hold what an earlier value left there.
    bytes_span bytes() const noexcept {
        return reservation_ ? detail::bytes_of(reserved_.data, reserved_.bytes) : bytes_span();
    }
    std::uint64_t size() const noexcept { return bytes().size(); }

    /// Offset of the first byte in the memory of the node.
    std::uint64_t offset() const noexcept { return reservation_ ? reserved_.offset : 0; }

    /// Whether the server still has the reservation; see kvmem_node_reservation_is_valid.
    bool is_valid() const {
        std::uint32_t valid = 0;
        detail::check(kvmem_node_reservation_is_valid(native_handle(), &valid));
        return valid != 0;
    }

    /// The address of the bytes, for writing, until the reservation is committed or destroyed.
    /// Throws KVMEM_ERR_STALE_ALLOCATION if the server has ended its session.
    void *address() const {
        void *address = nullptr;
        detail::check(kvmem_node_reservation_address(native_handle(), &address));
        return address;
    }

    kvmem_node_reservation *native_handle() const noexcept { return reservation_.get(); }

    /// Whether this holds a reservation: false after a move or a commit.
    explicit operator bool() const noexcept { return static_cast<bool>(reservation_); }

private:
    friend class NodeClient;

    explicit NodeReservation(const kvmem_node_reserved &reserved) noexcept
        : reservation_(reserved.reservation), reserved_(reserved) {}

    detail::Handle<kvmem_node_reservation, kvmem_node_reservation_release> reservation_;
    kvmem_node_reserved reserved_;
};

/// Hints about the worth of a value of a node.
struct NodeHints {
    /// After this time the value is gone. Zero: it stays until it is evicted.
    std::chrono::milliseconds ttl{0};
    /// 0 to 3: values of a lower priority are evicted first.
    std::uint32_t priority = 0;
    /// The key of the parent, the value before it in a chain; empty: the value stands alone. See
    /// kvmem_node_hints.
    std::string_view parent{};
    /// The type of the value's elements. The node passes it to its tier.
    DataType data_type = DataType::unknown;

    /// Valid as long as the parent's key. A time that is less than zero counts as zero.
    kvmem_node_hints native() const noexcept {
        const std::uint64_t ttl_ms = ttl.count() < 0 ? 0 : static_cast<std::uint64_t>(ttl.count());
        return {ttl_ms, priority, static_cast<std::uint32_t>(data_type),
                parent.empty() ? nullptr : parent.data(), parent.size()};
    }
};

/// A value to insert: its key, its bytes, and its hints.
struct NodeNewValue {
    std::string_view key;
    bytes_view bytes;
    NodeHints hints{};
};

/// A reservation, and what it becomes: see `NodeClient::commit`.
struct NodeCommit {
    /// The reservation, which is empty after the commit.
    NodeReservation *reservation;
    /// The key: 1 to KVMEM_NODE_MAX_KEY_BYTES bytes.
    std::string_view key;
    NodeHints hints{};
};

namespace detail {

template <class Call>
std::vector<NodeMiss> node_misses(Call call, const kvmem_node_client *client, std::size_t max) {
    std::vector<kvmem_node_miss> list(max < 256 ? max : 256);
    std::uint64_t count = 0;
    check(call(client, list.data(), list.size(), &count));
    std::vector<NodeMiss> found;
    found.reserve(count);
    for (std::size_t at = 0; at < count; at++) {
        const kvmem_node_miss &one = list[at];
        NodeMiss miss = {one.namespace_name,
                         std::string(reinterpret_cast<const char *>(one.key), one.key_bytes),
                         static_cast<NodeMissReason>(one.reason),
                         std::chrono::milliseconds(one.ago_ms),
                         std::nullopt,
                         one.evicted_for,
                         std::nullopt};
        if (one.gone_s != UINT64_MAX) {
            miss.gone = std::chrono::seconds(one.gone_s);
            miss.priority = one.priority;
        }
        found.push_back(std::move(miss));
    }
    return found;
}

template <class Call>
NodeList node_list(Call call, const kvmem_node_client *client, std::uint64_t from,
                   std::size_t max) {
    std::vector<kvmem_node_listed> list(max < 512 ? max : 512);
    std::uint64_t count = 0;
    std::uint64_t next = 0;
    detail::check(call(client, from, list.data(), list.size(), &count, &next));
    NodeList found;
    found.values.reserve(count);
    for (std::size_t at = 0; at < count; at++) {
        const kvmem_node_listed &one = list[at];
        const char *key = reinterpret_cast<const char *>(one.key);
        found.values.push_back({one.namespace_name, std::string(key, one.key_bytes), one.bytes,
                                std::chrono::milliseconds(one.idle_ms), one.pins,
                                one.priority});
    }
    if (next != UINT64_MAX) {
        found.next = next;
    }
    return found;
}

} // namespace detail

class NodeOperator;

/// A connection to the server of a node: `kvmem serve`. The server keeps the values of all engines
/// of a machine in one memory, which outlives them. The client maps it once, and reads and writes
/// values in place. Calls that find the server ended connect again by themselves.
///
/// All clients that map the memory for writing trust each other: each writes to its own
/// reservations and to nothing else.
class NodeClient {
public:
    /// Connects to the server at the socket `path`. Throws KVMEM_ERR_DISCONNECTED if no server
    /// answers.
    explicit NodeClient(const std::string &path, const NodeClientOptions &options = {}) {
        kvmem_node_client_options wanted = options;
        wanted.namespace_name = options.namespace_name.c_str();
        wanted.registrars = detail::native(options.registrars);
        wanted.server_users = options.server_users.empty() ? nullptr : options.server_users.data();
        wanted.server_user_count = options.server_users.size();
        kvmem_node_client *made = nullptr;
        detail::check(kvmem_node_client_connect(path.c_str(), &wanted, &made));
        client_.reset(made);
    }

    /// The memory, to register it with a GPU or a NIC. Offsets count from its first byte. It stays
    /// mapped until the client, its pins and its reservations are gone. Of a client that is
    /// `read_only`, it must not be written to.
    bytes_span memory() const {
        void *data = nullptr;
        std::uint64_t bytes = 0;
        detail::check(kvmem_node_client_memory(native_handle(), &data, &bytes));
        return detail::bytes_of(data, bytes);
    }

    /// Number of bytes of which no value crosses a multiple, or is longer; 0: a value may be as
    /// long as the memory. A program that registers the memory by itself, in pieces, ends them at
    /// multiples.
    std::uint64_t boundary() const {
        std::uint64_t bytes = 0;
        detail::check(kvmem_node_client_boundary(native_handle(), &bytes));
        return bytes;
    }

    /// Returns the key with which a device of `registrars` can access all of
    /// `[offset, offset + bytes)` of the memory. Throws KVMEM_ERR_STRADDLES if the range needs
    /// several.
    Key key(const std::string &device, std::uint64_t offset, std::uint64_t bytes) const {
        Key key;
        detail::check(kvmem_node_client_key(native_handle(), device.c_str(), offset, bytes, &key));
        return key;
    }

    /// Whether the calls go through rings now.
    bool has_rings() const {
        std::uint32_t has_rings = 0;
        detail::check(kvmem_node_client_has_rings(native_handle(), &has_rings));
        return has_rings != 0;
    }

    /// Returns how many values were misses because the client verifies values and these have no
    /// checksum.
    std::uint64_t unverified() const {
        std::uint64_t unverified = 0;
        detail::check(kvmem_node_client_unverified(native_handle(), &unverified));
        return unverified;
    }

    /// Returns how many keys, from the first one on, have values without a gap. Nothing is pinned.
    /// Here and below, `keys` is a range of values that convert to `std::string_view`, at most
    /// KVMEM_NODE_MAX_BATCH.
    template <class Keys>
    std::size_t lookup(const Keys &keys) const {
        const auto list = list_of(keys);
        std::uint64_t found = 0;
        detail::check(
            kvmem_node_client_lookup(native_handle(), list.data(), list.size(), &found));
        return found;
    }

    /// Returns where the values of keys are, one element for each. Nothing is pinned or fetched.
    template <class Keys>
    std::vector<NodeLocated> locate(const Keys &keys) const {
        const auto list = list_of(keys);
        std::vector<std::uint32_t> places(list.size());
        detail::check(
            kvmem_node_client_locate(native_handle(), list.data(), list.size(), places.data()));
        std::vector<NodeLocated> located;
        located.reserve(places.size());
        for (const std::uint32_t place : places) {
            located.push_back(
                {(place & KVMEM_NODE_IN_MEMORY) != 0, (place & KVMEM_NODE_IN_TIER) != 0});
        }
        return located;
    }

    /// Pins the values of keys, in one call. This counts as a use.
    template <class Keys>
    NodePins acquire(const Keys &keys) const {
        return acquire_by(keys, kvmem_node_client_acquire);
    }

    /// Pins the values of the keys before the first one that has none.
    template <class Keys>
    NodePins acquire_prefix(const Keys &keys) const {
        return acquire_by(keys, kvmem_node_client_acquire_prefix);
    }

    /// Pins the values that memory has, without waiting for the tier below the node.
    /// `NodePins::is_pending` says which of the other keys the tier reads meanwhile.
    template <class Keys>
    NodePins try_acquire(const Keys &keys) const {
        return acquire_by(keys, kvmem_node_client_try_acquire);
    }

    /// Pins the values of the keys before the first one that memory does not have, without waiting
    /// for the tier below the node.
    template <class Keys>
    NodePins try_acquire_prefix(const Keys &keys) const {
        return acquire_by(keys, kvmem_node_client_try_acquire_prefix);
    }

    /// Releases earlier pins and acquires those of keys, in one message to the server. The earlier
    /// pins are released and empty afterwards, also if the call throws.
    template <class Keys>
    NodePins exchange(NodePins &&earlier, const Keys &keys) const {
        NodePins released = std::move(earlier);
        return acquire_by(keys, [&](auto *client, auto *list, std::uint64_t count, auto *values,
                                    auto *pins) {
            const kvmem_status status = kvmem_node_client_exchange(
                client, released.native_handle(), list, count, values, pins);
            if (status == KVMEM_OK) {
                (void)released.pins_.release();
            }
            return status;
        });
    }

    /// Reserves a block for each size, all or none; empty if there is no space for all of them.
    std::optional<std::vector<NodeReservation>> reserve(span<const std::uint64_t> sizes) const {
        return reserve_by(sizes, kvmem_node_client_reserve);
    }

    /// Reserves a block for each size, all or none, without waiting for the tier below the node;
    /// empty also while the tier is about to free space.
    std::optional<std::vector<NodeReservation>> try_reserve(
        span<const std::uint64_t> sizes) const {
        return reserve_by(sizes, kvmem_node_client_try_reserve);
    }

    /// Reserves a block; empty if there is no space.
    std::optional<NodeReservation> reserve(std::uint64_t bytes) const {
        kvmem_node_reserved reserved;
        if (!detail::allocated(
                kvmem_node_client_reserve(native_handle(), &bytes, 1, &reserved))) {
            return std::nullopt;
        }
        return NodeReservation(reserved);
    }

    /// Makes reservations values under keys, all of them or none, whatever ends meanwhile. The
    /// reservations are empty afterwards. If the call throws, they stay as they were, and it may be
    /// repeated; see kvmem_node_client_commit.
    void commit(span<const NodeCommit> values) {
        std::vector<kvmem_node_commit> list;
        list.reserve(values.size());
        for (const NodeCommit &one : values) {
            const NodeReservation *reservation =
                detail::present(one.reservation, "the NodeReservation");
            list.push_back({reservation->native_handle(), one.key.data(), one.key.size(),
                            one.hints.native()});
        }
        detail::check(kvmem_node_client_commit(native_handle(), list.data(), list.size()));
        for (const NodeCommit &one : values) {
            (void)one.reservation->reservation_.release();
        }
    }

    /// Makes one reservation a value under a key.
    void commit(NodeReservation &&reservation, std::string_view key) {
        const NodeCommit one = {&reservation, key};
        commit(span<const NodeCommit>(&one, 1));
    }

    /// Copies a value into a new block and commits it; returns false if there is no space for it.
    bool insert(std::string_view key, bytes_view value, const NodeHints &hints = {}) {
        const kvmem_node_hints native = hints.native();
        return detail::allocated(kvmem_node_client_insert(native_handle(), key.data(), key.size(),
                                                          value.data(), value.size(), &native));
    }

    bool insert(std::string_view key, const void *value, std::size_t bytes,
                const NodeHints &hints = {}) {
        return insert(key, detail::bytes_of(value, bytes), hints);
    }

    /// Inserts values as `insert` does, all of them or none; returns false if they cannot fit.
    bool insert_batch(const std::vector<NodeNewValue> &values) {
        std::vector<kvmem_node_new_value> list;
        for (const NodeNewValue &one : values) {
            list.push_back({one.key.data(), one.key.size(), one.bytes.data(), one.bytes.size(),
                            one.hints.native()});
        }
        return detail::allocated(
            kvmem_node_client_insert_batch(native_handle(), list.data(), list.size()));
    }

    /// Removes the values of keys; returns how many there were. Pinned ones keep their bytes until
    /// the last pin is released.
    template <class Keys>
    std::size_t remove(const Keys &keys) {
        const auto list = list_of(keys);
        std::uint64_t removed = 0;
        detail::check(
            kvmem_node_client_remove(native_handle(), list.data(), list.size(), &removed));
        return removed;
    }

    /// Marks the values of keys as used now; returns how many there are.
    template <class Keys>
    std::size_t touch(const Keys &keys) {
        const auto list = list_of(keys);
        std::uint64_t touched = 0;
        detail::check(
            kvmem_node_client_touch(native_handle(), list.data(), list.size(), &touched));
        return touched;
    }

    /// Says that this client lives. A client that has reservations makes this call, or another one,
    /// more often than the server's lease.
    void keep_alive() { detail::check(kvmem_node_client_keep_alive(native_handle())); }

    NodeStats stats() const {
        NodeStats stats;
        detail::check(kvmem_node_client_get_stats(native_handle(), &stats));
        return stats;
    }

    /// Returns the statistics of all namespaces. The position of each is its number, and those that
    /// the client may not use have no figures.
    std::vector<NodeNamespaceStats> namespaces() const {
        std::vector<NodeNamespaceStats> list(256);
        std::uint64_t count = 0;
        detail::check(
            kvmem_node_client_namespaces(native_handle(), list.data(), list.size(), &count));
        list.resize(count);
        return list;
    }

    /// Returns at most `max` events from number `from` on, for routers. Waits for the first one for
    /// at most `wait`. Events of numbers below the first one were dropped.
    NodeEvents events(std::uint64_t from, std::size_t max = 512,
                      std::chrono::milliseconds wait = std::chrono::milliseconds(0)) const {
        std::vector<kvmem_node_event> list(max < 512 ? max : 512);
        std::uint64_t count = 0;
        NodeEvents found = {{}, from};
        detail::check(kvmem_node_client_events(native_handle(), from, milliseconds(wait),
                                               list.data(), list.size(), &count, &found.next));
        found.events.reserve(count);
        for (std::size_t at = 0; at < count; at++) {
            const kvmem_node_event &one = list[at];
            const char *key = reinterpret_cast<const char *>(one.key);
            found.events.push_back({one.number, static_cast<NodeEventKind>(one.kind),
                                    one.namespace_number, std::string(key, one.key_bytes)});
        }
        return found;
    }

    /// Lists the last misses of the client's own namespace, at most `max`, the last one first. Of
    /// each call the server remembers the first key without a value, and of all calls the last 256.
    std::vector<NodeMiss> misses(std::size_t max = 256) const {
        return detail::node_misses(kvmem_node_client_misses, native_handle(), max);
    }

    /// Lists at most `max` values of the client's own namespace, from entry `from` on: those in
    /// memory, and those in the tier that the server has stored there or fetched. There may be none
    /// before the end. Any client may call it.
    NodeList list_namespace(std::uint64_t from = 0, std::size_t max = 512) const {
        return detail::node_list(kvmem_node_client_list_namespace, native_handle(), from, max);
    }

    /// Evicts values of at least `bytes` from the client's own namespace; returns the bytes of
    /// those that were evicted.
    std::uint64_t evict(std::uint64_t bytes) {
        std::uint64_t evicted = 0;
        detail::check(kvmem_node_client_evict(native_handle(), bytes, &evicted));
        return evicted;
    }

    /// Removes all values of the client's own namespace; returns how many there were. Pinned ones
    /// keep their bytes until the last pin is released. Throws if the server has a tier: see
    /// kvmem_node_client_clear.
    std::size_t clear() {
        std::uint64_t removed = 0;
        detail::check(kvmem_node_client_clear(native_handle(), &removed));
        return removed;
    }

    /// Returns the calls of operators: those that concern other namespaces and other clients. The
    /// client must outlive it.
    inline NodeOperator as_operator();

    kvmem_node_client *native_handle() const noexcept { return client_.get(); }

private:
    /// A time that is less than zero counts as zero.
    static std::uint64_t milliseconds(std::chrono::milliseconds time) noexcept {
        return time.count() < 0 ? 0 : static_cast<std::uint64_t>(time.count());
    }

    template <class Keys>
    static std::vector<kvmem_kv_cache_key> list_of(const Keys &keys) {
        using Element = decltype(*std::begin(keys));
        static_assert(std::is_lvalue_reference_v<Element> ||
                          std::is_same_v<std::decay_t<Element>, std::string_view>,
                      "the range must own its keys: all of them are passed on together");
        std::vector<kvmem_kv_cache_key> list;
        for (const auto &one : keys) {
            const std::string_view key(one);
            list.push_back({key.data(), key.size()});
        }
        return list;
    }

    template <class Call>
    std::optional<std::vector<NodeReservation>> reserve_by(span<const std::uint64_t> sizes,
                                                           Call call) const {
        std::vector<kvmem_node_reserved> list(sizes.size());
        std::vector<NodeReservation> reservations;
        reservations.reserve(sizes.size());
        if (!detail::allocated(call(native_handle(), sizes.data(), sizes.size(), list.data()))) {
            return std::nullopt;
        }
        for (const kvmem_node_reserved &one : list) {
            reservations.push_back(NodeReservation(one));
        }
        return reservations;
    }

    template <class Keys, class Call>
    NodePins acquire_by(const Keys &keys, Call call) const {
        const auto list = list_of(keys);
        std::vector<kvmem_node_value> values(list.size());
        kvmem_node_pins *pins = nullptr;
        detail::check(call(native_handle(), list.data(), list.size(), values.data(), &pins));
        return NodePins(pins, std::move(values));
    }

    detail::Handle<kvmem_node_client, kvmem_node_client_destroy> client_;
};

/// The calls of operators on a node. The server answers them to its own user, to root and to those
/// that its options name; for others they throw. Made by `NodeClient::as_operator`.
class NodeOperator {
public:
    /// Lists at most `max` values from entry `from` on.
    NodeList list(std::uint64_t from = 0, std::size_t max = 512) const {
        return detail::node_list(kvmem_node_operator_list, client(), from, max);
    }

    /// Lists the last misses of all namespaces, at most `max`, as `NodeClient::misses` those of
    /// one.
    std::vector<NodeMiss> misses(std::size_t max = 256) const {
        return detail::node_misses(kvmem_node_operator_misses, client(), max);
    }

    /// Lists the clients of the server.
    std::vector<NodeSession> sessions() const {
        std::vector<kvmem_node_session> list(256);
        std::uint64_t count = 0;
        detail::check(
            kvmem_node_operator_sessions(client(), list.data(), list.size(), &count));
        std::vector<NodeSession> found;
        found.reserve(count);
        for (std::size_t at = 0; at < count; at++) {
            const kvmem_node_session &one = list[at];
            found.push_back({one.pid, one.namespace_name, one.pins, one.reservations,
                             one.is_connected != 0, std::chrono::milliseconds(one.silent_ms)});
        }
        return found;
    }

    /// Evicts values of at least `bytes`, of one namespace or of all; returns the bytes of those
    /// that were evicted.
    std::uint64_t evict(std::uint64_t bytes,
                        const std::optional<std::string> &namespace_name = std::nullopt) {
        std::uint64_t evicted = 0;
        detail::check(kvmem_node_operator_evict(client(), name_of(namespace_name), bytes,
                                              &evicted));
        return evicted;
    }

    /// Removes all values of one namespace or of all; returns how many there were. Pinned ones keep
    /// their bytes until the last pin is released.
    std::size_t clear(const std::optional<std::string> &namespace_name = std::nullopt) {
        std::uint64_t removed = 0;
        detail::check(
            kvmem_node_operator_clear(client(), name_of(namespace_name), &removed));
        return removed;
    }

    /// Changes the bytes of the memory that are used, up to the server's --max. A smaller memory
    /// evicts values in the usual order, moves others to its front, and gives its pages back to the
    /// kernel. Blocks that are pinned or reserved stay, and the server goes on when they are free.
    NodeResized resize(std::uint64_t bytes) {
        kvmem_node_resized resized{};
        detail::check(kvmem_node_operator_resize(client(), bytes, &resized));
        return {resized.size_bytes, resized.wanted_bytes, resized.held_bytes,
                resized.registered_clients};
    }

    /// Ends the pins of a process that no longer reads; returns how many values it had pinned.
    std::size_t reclaim_pins(std::uint32_t pid) {
        std::uint64_t reclaimed = 0;
        detail::check(kvmem_node_operator_reclaim_pins(client(), pid, &reclaimed));
        return reclaimed;
    }

private:
    friend class NodeClient;

    explicit NodeOperator(NodeClient &client) noexcept : client_(&client) {}

    static const char *name_of(const std::optional<std::string> &name) noexcept {
        return name ? name->c_str() : nullptr;
    }

    kvmem_node_client *client() const noexcept { return client_->native_handle(); }

    NodeClient *client_;
};

inline NodeOperator NodeClient::as_operator() { return NodeOperator(*this); }

} // namespace kvmem

#endif
