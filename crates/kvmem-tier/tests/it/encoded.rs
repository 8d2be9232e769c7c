//! Values that are compressed, encrypted, or both.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use kvmem_tier::Keyring;

/// Returns a keyring whose keys are these bytes, 32 times each.
pub(crate) fn keyring(keys: &[u8]) -> Arc<Keyring> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let lines: Vec<String> = keys.iter().map(|key| format!("{key:02x}").repeat(32)).collect();
    fs::write(&path, lines.join("\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    Arc::new(Keyring::open(&path).unwrap())
}
