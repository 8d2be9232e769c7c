// The name by which Mooncake's programs include it.
#include "../mooncake_mmap_arena.hpp"
