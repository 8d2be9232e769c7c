//! *UCX*: what it is told before it is loaded.
//!
//! The wheels of NIXL 1.5.1 bring a `libibverbs` of their own. Where the system has drivers for it
//! (Debian's `ibverbs-providers`), UCX's module `ib` loads these drivers beside the wheel's
//! library, and every process that has made an agent ends with `SIGSEGV`. Without a device the
//! module has nothing to do. So UCX is told not to load it, by `UCX_MODULES=^ib`, unless the
//! variable is set.

use std::env;
use std::ffi::CStr;
use std::path::Path;
use std::sync::Once;

use crate::sys;
use crate::trace::event;

/// UCX's variable: which of its modules it loads.
const VARIABLE: &str = "UCX_MODULES";

/// All but the one for InfiniBand.
const ENTRY: &CStr = c"UCX_MODULES=^ib";

/// Where the kernel lists InfiniBand and RoCE devices.
const CARDS: &str = "/sys/class/infiniband";

/// Keeps UCX's module `ib` from being loaded where there is no device for it and nothing else was
/// said.
pub(super) fn avoid_ib() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if env::var_os(VARIABLE).is_none() && !has_entries(Path::new(CARDS)) {
            sys::add_to_environment(ENTRY);
            event!(
                WARN,
                variable = "UCX_MODULES",
                value = "^ib",
                "no InfiniBand device: UCX does not load its module for them"
            );
        }
    });
}

/// Whether there is a folder with something in it.
fn has_entries(folder: &Path) -> bool {
    folder.read_dir().is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_devices_is_as_none() {
        let folder = env::temp_dir().join(format!("kvmem-cards-{}", std::process::id()));
        assert!(!has_entries(&folder));
        std::fs::create_dir(&folder).unwrap();
        assert!(!has_entries(&folder));
        std::fs::create_dir(folder.join("mlx5_0")).unwrap();
        assert!(has_entries(&folder));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_entry_is_of_the_variable() {
        assert_eq!(ENTRY.to_str().unwrap(), format!("{VARIABLE}=^ib"));
    }
}
