//! *Mooncake*: a cluster as the tier of the node, through a helper in Python.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use kvmem_cluster::{ClusterOptions, ClusterTier, Keyring};

use crate::args::{ServeArgs, ServeMooncake};
use crate::output::{Failure, print_message};

/// The module of the Python package that is the helper.
const HELPER: &str = "kvmem.mooncake.node_tier";

/// Returns the options of the cluster of `--mooncake`, with its keys.
pub(super) fn options(args: &ServeArgs) -> Result<Option<ClusterOptions>, Failure> {
    let Some(mooncake) = &args.mooncake else { return Ok(None) };
    let python = args.mooncake_python.clone().unwrap_or_else(python);
    let mut options = ClusterOptions::new(command(python, mooncake));
    options.codec = mooncake.codec;
    if let Some(path) = &mooncake.key_file {
        let failed =
            |error| Failure::usage(format_args!("--mooncake {}: {error}", mooncake.master));
        options.keys = Some(Arc::new(Keyring::open(path).map_err(failed)?));
    }
    options.staging_bytes = mooncake.staging_bytes.unwrap_or(options.staging_bytes);
    Ok(Some(options))
}

/// Starts the helper of a cluster. The server does not wait for it.
pub(super) fn start(options: ClusterOptions) -> Result<Arc<ClusterTier>, Failure> {
    let tier = ClusterTier::start(options, |line| print_message(format_args!("kvmem: {line}")));
    let failed = |error| Failure::new(format_args!("cannot start the cluster: {error}"), 1);
    Ok(Arc::new(tier.map_err(failed)?))
}

fn command(python: PathBuf, mooncake: &ServeMooncake) -> Vec<OsString> {
    let mut command = vec![python.into_os_string()];
    command.extend(["-m", HELPER, "--master", &mooncake.master].map(OsString::from));
    command.extend(mooncake.arguments.iter().map(OsString::from));
    command
}

/// Returns the Python of the virtual environment in which this program is, or that of `PATH`.
fn python() -> PathBuf {
    let of_environment = || {
        let program = env::current_exe().ok()?;
        let folder = program.parent()?;
        let python = folder.join("python3");
        (folder.parent()?.join("pyvenv.cfg").is_file() && python.is_file()).then_some(python)
    };
    of_environment().unwrap_or_else(|| PathBuf::from("python3"))
}
