// The name by which Mooncake's programs include it.
#include "../../mooncake_offset_allocator.hpp"
