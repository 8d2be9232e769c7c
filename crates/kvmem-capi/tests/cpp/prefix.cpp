// Keys of prefixes: the vectors that the tests of all languages read. The environment variable
// KVMEM_TEST_PREFIX_KEYS has the path of their file.
#include <kvmem.hpp>

#include <array>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "check.hpp"

using kvmem::PrefixKey;
using kvmem::prefix_keys;

static std::string unhex(const std::string &text) {
    std::string bytes;
    for (std::size_t at = 0; text != "-" && at < text.size(); at += 2) {
        bytes.push_back(static_cast<char>(std::stoi(text.substr(at, 2), nullptr, 16)));
    }
    return bytes;
}

static std::vector<std::string> list(const std::string &text) {
    std::vector<std::string> parts;
    std::istringstream stream(text == "-" ? "" : text);
    for (std::string part; std::getline(stream, part, ',');) {
        parts.push_back(part);
    }
    return parts;
}

static std::size_t compare(const std::string &line) {
    std::istringstream stream(line);
    std::string salt, token_text, key_text;
    std::size_t block = 0;
    stream >> salt >> block >> token_text >> key_text;
    CHECK(!stream.fail());
    std::vector<std::int32_t> tokens;
    for (const std::string &token : list(token_text)) {
        tokens.push_back(static_cast<std::int32_t>(std::stol(token)));
    }
    const std::vector<PrefixKey> keys = prefix_keys(tokens, block, unhex(salt));
    const std::vector<std::string> wanted = list(key_text);
    CHECK(keys.size() == wanted.size());
    for (std::size_t at = 0; at < keys.size(); at++) {
        CHECK(keys[at].view() == unhex(wanted[at]));
    }
    return keys.size();
}

int main() {
    const char *path = std::getenv("KVMEM_TEST_PREFIX_KEYS");
    CHECK(path != nullptr);
    std::ifstream file(path);
    std::size_t compared = 0;
    for (std::string line; std::getline(file, line);) {
        compared += line[0] == '#' ? 0 : compare(line);
    }
    CHECK(compared > 10);

    const std::array<std::int32_t, 4> tokens = {1, 2, 3, 4};
    const auto keys = prefix_keys(tokens, 2, "salt");
    CHECK(keys.size() == 2 && keys[0] != keys[1]);
    const kvmem::span<const std::int32_t> first(tokens.data(), 2);
    CHECK(prefix_keys(first, 2, "salt")[0] == keys[0]);
    THROWS(KVMEM_ERR_ZERO_SIZE, "block is 0", prefix_keys(tokens, 0, "salt"));
    return 0;
}
