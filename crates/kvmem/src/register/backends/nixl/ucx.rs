//! *UCX*: a setting that UCX needs before it is loaded.
//!
//! The wheels of NIXL 1.5.1 contain their own `libibverbs`. If the system has drivers for it
//! (Debian's `ibverbs-providers`), UCX's module `ib` loads these drivers in addition to the wheel's
//! library, and every process that has created an agent ends with `SIGSEGV`. Without a device the
//! module is useless. UCX therefore must not load it: the library sets `UCX_MODULES=^ib`, unless
//! the variable is set.

use std::env;
use std::ffi::CStr;
use std::path::Path;
use std::sync::Once;

use crate::sys;
use crate::trace::event;

/// UCX's variable for the modules that it loads.
const VARIABLE: &str = "UCX_MODULES";

/// All modules except the one for InfiniBand.
const ENTRY: &CStr = c"UCX_MODULES=^ib";

/// The kernel's list of InfiniBand and RoCE devices.
const CARDS: &str = "/sys/class/infiniband";

/// Prevents UCX from loading its module `ib` if there is no device for it and the user has not set
/// the variable.
pub(super) fn avoid_ib() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if env::var_os(VARIABLE).is_none() && !has_entries(Path::new(CARDS)) {
            sys::add_to_environment(ENTRY);
            event!(
                WARN,
                variable = "UCX_MODULES",
                value = "^ib",
                "no InfiniBand device: UCX does not load its module ib"
            );
        }
    });
}

/// Returns whether the folder exists and has entries.
fn has_entries(folder: &Path) -> bool {
    folder.read_dir().is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_empty_folder_has_no_devices() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!has_entries(&folder.path().join("none")));
        assert!(!has_entries(folder.path()));
        std::fs::create_dir(folder.path().join("mlx5_0")).unwrap();
        assert!(has_entries(folder.path()));
    }

    #[test]
    fn the_entry_sets_the_variable() {
        assert_eq!(ENTRY.to_str().unwrap(), format!("{VARIABLE}=^ib"));
    }
}
