//! *Program*: the file of a helper, and the surroundings in which it runs.
//!
//! The server may have been started in any folder, also in one that other users can write to. The
//! helper has the rights of the server, so nothing of that folder may decide which code it runs:
//! no program that a relative entry of `PATH` finds, and no module that Python finds in the folder
//! in which it starts.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf, absolute};
use std::process::Command;

/// Variables of a service manager, which speaks to the server and not to its helper.
const OF_THE_SERVER: [&str; 8] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "FDSTORE",
    "MAINPID",
];

/// Returns a command that runs a program in the root folder. Python finds modules among its
/// packages and in `PYTHONPATH` alone, whose relative entries count from the root folder.
pub(super) fn command(program: &OsStr) -> io::Result<Command> {
    let mut command = Command::new(find(program, env::var_os("PATH").as_deref())?);
    // The variable is that of `python3 -P`. An older Python ignores it, and has only the root
    // folder before its packages.
    command.current_dir("/").env("PYTHONSAFEPATH", "1");
    hide_service_manager(&mut command);
    Ok(command)
}

/// Keeps the variables by which a service manager talks to a server from its child.
#[doc(hidden)]
pub fn hide_service_manager(command: &mut Command) {
    OF_THE_SERVER.iter().for_each(|name| {
        command.env_remove(name);
    });
}

/// Returns the absolute path of a program: a name is looked up in the absolute folders of `path`, a
/// path counts from the current folder.
fn find(program: &OsStr, path: Option<&OsStr>) -> io::Result<PathBuf> {
    let named = Path::new(program);
    if named.components().count() != 1 || named.has_root() {
        return absolute(named);
    }
    let path = path.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    let folders = env::split_paths(path).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(named)).find(|file| is_executable(file)).ok_or_else(|| {
        let why = format!(
            "no absolute folder of PATH has a program {}: install it, or give its path",
            named.display()
        );
        io::Error::new(io::ErrorKind::NotFound, why)
    })
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(program: &str, path: &str) -> Option<PathBuf> {
        find(program.as_ref(), Some(path.as_ref())).ok()
    }

    #[test]
    fn names_are_found_in_absolute_folders_alone() {
        assert_eq!(found("sh", "/no/such/folder:/bin"), Some("/bin/sh".into()));
        assert_eq!(found("sh", ""), None);
        // Each of these has a file of this name for a program that runs in `/bin` or in `/`.
        let here = env::current_dir().expect("there is one");
        let up = "../".repeat(here.components().count());
        assert!(Path::new(&format!("{up}bin/sh")).exists());
        for relative in [format!("{up}bin"), format!(":{up}bin:."), "bin".to_owned()] {
            assert_eq!(found("sh", &relative), None, "{relative}");
        }
        // A folder, and a file that cannot be executed.
        assert_eq!(found("bin", "/usr"), None);
        assert_eq!(found("passwd", "/etc"), None);
        let error = find("sh".as_ref(), Some("relative".as_ref())).expect_err("none is absolute");
        assert!(error.to_string().contains("no absolute folder of PATH has a program sh"));
    }

    #[test]
    fn paths_count_from_the_current_folder() {
        let here = env::current_dir().expect("there is one");
        for path in ["venv/bin/python", "./python"] {
            let plain = path.trim_start_matches("./");
            assert_eq!(found(path, "/bin"), Some(here.join(plain)));
        }
        // A link is not followed: an environment's Python is one.
        assert_eq!(found("/proc/self/exe", "/bin"), Some("/proc/self/exe".into()));
    }
}
