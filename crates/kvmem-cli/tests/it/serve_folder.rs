//! `kvmem serve` in a folder of somebody else: nothing of the folder runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::serving::{Place, eventually};

/// A folder with code that writes a file when it runs.
struct Planted {
    folder: PathBuf,
    marks: PathBuf,
}

impl Planted {
    fn new(place: &Place) -> Planted {
        let [folder, marks] = ["planted", "marks"].map(|name| place.folder().join(name));
        let planted = Planted { folder, marks };
        fs::create_dir_all(&planted.marks).expect("a folder can be made");
        for name in ["kvmem/__init__.py", "kvmem/mooncake/__init__.py", "kvmem.py", "json.py"] {
            planted.python(&planted.folder, name, name);
        }
        planted.python(&planted.folder, "kvmem/mooncake/node_tier.py", "node_tier.py");
        let mark = planted.marks.join("program");
        for name in ["python3", "kvmem", "kvmem-serve-mooncake"] {
            let program = planted.folder.join("bin").join(name);
            fs::create_dir_all(planted.folder.join("bin")).expect("a folder can be made");
            fs::write(&program, format!("#!/bin/sh\necho > {}\n", mark.display())).expect("space");
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("our own");
        }
        planted
    }

    /// Writes a module that says where it ran, and goes on.
    fn python(&self, folder: &Path, name: &str, mark: &str) {
        let file = folder.join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder can be made");
        let mark = self.marks.join(mark.replace('/', "-"));
        let code = format!("import os\nopen({mark:?}, 'w').write(os.getcwd())\n");
        fs::write(file, code).expect("there is space");
    }

    fn marks(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.marks).expect("a folder").flatten();
        let mut names: Vec<String> =
            entries.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// Serves in the folder, and returns what has run when the installed helper has.
fn ran(path: &str, more: &[&str]) -> Option<Vec<String>> {
    let found = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let Some(found) = found.ok().filter(|it| it.status.success()) else {
        println!("skipped: there is no python3");
        return None;
    };
    let python = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
    let place = Place::new();
    let planted = Planted::new(&place);
    // An installed package, as a wheel in a folder of PYTHONPATH.
    let installed = place.folder().join("installed");
    for name in ["kvmem/__init__.py", "kvmem/mooncake/__init__.py"] {
        let file = installed.join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder can be made");
        fs::write(file, "import json\n").expect("there is space");
    }
    planted.python(&installed, "kvmem/mooncake/node_tier.py", "installed");
    // The environment of Python has its program under a name of its own.
    let environment = planted.folder.join("own");
    fs::create_dir_all(&environment).expect("a folder can be made");
    std::os::unix::fs::symlink(&python, environment.join("python")).expect("a new name");
    let other = python.parent().expect("a folder").display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
    command
        .current_dir(&planted.folder)
        .env("PATH", path.replace("PYTHON", &other))
        // An empty entry of this list is the folder in which Python runs.
        .env("PYTHONPATH", format!(":{}:", installed.display()))
        .env("NOTIFY_SOCKET", "/no/such/socket");
    let options = ["--retain", "none", "--mooncake", "127.0.0.1:1"];
    let options: Vec<&str> = options.iter().chain(more).copied().collect();
    let server = place.serve_by(command, "4MiB", &options);
    let mark = planted.marks.join("installed");
    eventually("the helper runs", || fs::read_to_string(&mark).is_ok_and(|text| !text.is_empty()));
    assert_eq!(fs::read_to_string(&mark).expect("it ran"), "/");
    drop(server);
    Some(planted.marks())
}

#[test]
fn the_helper_of_a_cluster_runs_no_code_of_the_current_folder() {
    for path in ["PYTHON:/usr/bin:/bin", ":./bin:bin:PYTHON:/usr/bin:/bin"] {
        let Some(ran) = ran(path, &[]) else { return };
        assert_eq!(ran, ["installed"], "PATH={path}");
    }
}

#[test]
fn a_named_python_counts_from_the_current_folder() {
    let Some(ran) = ran("PYTHON:/usr/bin:/bin", &["--mooncake-python", "own/python"]) else {
        return;
    };
    assert_eq!(ran, ["installed"]);
}
