//! `kvmem serve-mooncake`, which starts a program of the Python package.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A folder with a program of the package's name, which prints its arguments.
struct Package(TempDir);

impl Package {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("kvmem-serve-mooncake");
        fs::write(&program, "#!/bin/sh\necho \"serves: $*\"\nexit 7\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Package(folder)
    }
}

fn serve(path: &str, args: &[&str]) -> (Option<i32>, String) {
    let output: Output = Command::new(env!("CARGO_BIN_EXE_kvmem"))
        .arg("serve-mooncake")
        .args(args)
        .env("PATH", path)
        .output()
        .unwrap();
    let both = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&both).into_owned())
}

#[test]
fn every_argument_and_the_status_are_those_of_the_program() {
    let package = Package::new();
    let path = format!("/kvmem-no-such-folder:{}:/usr/bin:/bin", package.0.path().display());
    for (args, printed) in [
        (&["--size", "1GiB", "--pages", "4k"][..], "serves: --size 1GiB --pages 4k\n"),
        (&["--help"], "serves: --help\n"),
        (&[], "serves: \n"),
    ] {
        assert_eq!(serve(&path, args), (Some(7), printed.to_owned()));
    }
}

#[test]
fn without_the_package_the_error_says_how_to_install_it() {
    let (status, printed) = serve("/usr/bin:/bin", &["--size", "1GiB"]);
    assert_eq!(status, Some(2), "{printed}");
    assert!(printed.contains("pip install ./crates/kvmem-python"), "{printed}");
    // A file that cannot be executed is not taken for it.
    let package = Package::new();
    let program = package.0.path().join("kvmem-serve-mooncake");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
    let (status, printed) = serve(&package.0.path().display().to_string(), &[]);
    assert_eq!(status, Some(2), "{printed}");
}

#[test]
fn a_relative_folder_of_path_has_no_program() {
    let package = Package::new();
    for path in ["", ".", ":/usr/bin:/bin", "/usr/bin:/bin:", "./"] {
        let output = Command::new(env!("CARGO_BIN_EXE_kvmem"))
            .arg("serve-mooncake")
            .env("PATH", path)
            .current_dir(package.0.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "PATH={path}: {text}");
        assert!(text.contains("in an absolute folder of PATH"), "{text}");
    }
}
