//! *Agent*: an agent of NIXL, if its library is installed.

use dynamo_memory::nixl::{NixlAgent, is_stub};

/// Set to 1 if no test may be skipped because NIXL is missing.
const REQUIRED: &str = "KVMEM_REQUIRE_ENGINES";

/// Returns an agent that moves memory with UCX; `None` if the library is not installed. Dynamo's
/// crates are then built with stubs that find `libnixl_capi.so` at run time, through
/// `LD_LIBRARY_PATH`.
pub(crate) fn agent(name: &str) -> Option<NixlAgent> {
    if is_stub() {
        let required = std::env::var(REQUIRED).is_ok_and(|value| value == "1");
        assert!(!required, "libnixl_capi.so is not in LD_LIBRARY_PATH, and {REQUIRED} is 1");
        eprintln!("skipped: libnixl_capi.so is not in LD_LIBRARY_PATH");
        return None;
    }
    Some(NixlAgent::with_backends(name, &["UCX"]).expect("an agent with UCX"))
}
