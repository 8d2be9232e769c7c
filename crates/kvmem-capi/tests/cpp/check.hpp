// Checks for the test programs. A failed check prints what it expected and ends the program.
#ifndef CHECK_HPP
#define CHECK_HPP

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include <kvmem.hpp>
#include <kvmem/testing.hpp>

#define CHECK(...)                                                                            \
    do {                                                                                      \
        if (!(__VA_ARGS__)) {                                                                 \
            std::fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #__VA_ARGS__, \
                         kvmem_last_error());                                                 \
            std::exit(1);                                                                     \
        }                                                                                     \
    } while (0)

// Checks that a call throws kvmem::error with this status, and that its text contains these words.
#define THROWS(wanted, words, ...)                                                                 \
    do {                                                                                           \
        bool thrown = false;                                                                       \
        try {                                                                                      \
            (void)(__VA_ARGS__);                                                                   \
        } catch (const kvmem::error &error) {                                                      \
            thrown = true;                                                                         \
            if (error.status() != (wanted) || std::strstr(error.what(), (words)) == nullptr) {     \
                std::fprintf(stderr, "%s:%d: %s threw %s: %s; wanted %s: %s\n", __FILE__,          \
                             __LINE__, #__VA_ARGS__, error.status_name(), error.what(), #wanted,   \
                             words);                                                               \
                std::exit(1);                                                                      \
            }                                                                                      \
        }                                                                                          \
        CHECK(thrown && #__VA_ARGS__ != nullptr);                                                  \
    } while (0)

// The properties of every class.
template <class T>
constexpr bool moves_only =
    !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T> &&
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T>;

// Moves an object to itself. In a function, because compilers warn about it where they see it.
template <class T>
void move_to_itself(T &object) {
    T &same = object;
    object = std::move(same);
}

// Returns how many rounds to run instead of `usual`, at least one. A tool that slows the program
// down fifty times sees the same calls in fewer rounds: its test sets KVMEM_TEST_DIVISOR.
inline int rounds(int usual) {
    const char *divisor = std::getenv("KVMEM_TEST_DIVISOR");
    return divisor == nullptr ? usual : std::max(1, usual / std::atoi(divisor));
}

constexpr std::uint64_t KIB = std::uint64_t{1} << 10;
constexpr std::uint64_t MIB = std::uint64_t{1} << 20;

#endif
