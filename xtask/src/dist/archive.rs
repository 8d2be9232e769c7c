//! *Archive*: one file of the staged folder, its list of parts, and the checksums of both.
//!
//! Packing the same files again gives the same bytes: they come in the order of their names, all
//! have the time of the commit, belong to user 0 and have the rights of their kind.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Shipment, parts};
use crate::run::output;

/// The file of the checksums.
pub(super) const SUMS: &str = "SHA256SUMS";

/// Packs the staged folder. Returns the files that were written.
pub(super) fn pack(shipment: &Shipment<'_>) -> Result<Vec<PathBuf>> {
    let Shipment { root, triple, version, epoch, out, .. } = shipment;
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let stage = shipment.stage();
    set_rights(&stage)?;
    let archive = out.join(format!("{}.tar.gz", shipment.name()));
    write(&stage, *epoch, &archive)?;

    let list = parts::list(root, triple, version, *epoch)?;
    let parts = out.join(format!("{}.cdx.json", shipment.name()));
    let text = serde_json::to_string_pretty(&list)? + "\n";
    fs::write(&parts, text).with_context(|| format!("cannot write {}", parts.display()))?;
    let sums = sums(out, &format!("kvmem-{version}-"))?;
    Ok(vec![archive, parts, sums])
}

/// Writes a folder as a compressed archive in which all files have the time `epoch`.
pub(super) fn write(folder: &Path, epoch: u64, archive: &Path) -> Result<()> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        anyhow::bail!("{} has no name", folder.display());
    };
    let file =
        File::create(archive).with_context(|| format!("cannot write {}", archive.display()))?;
    let mut tar = Command::new("tar");
    tar.env("LC_ALL", "C").args(["--create", "--format=ustar", "--sort=name", "--numeric-owner"]);
    tar.args(["--owner=0", "--group=0", &format!("--mtime=@{epoch}")]);
    tar.arg("--directory").arg(parent).arg(name).stdout(Stdio::piped());
    let mut tar = tar.spawn().context("cannot run tar: apt-get install tar")?;
    let packed = tar.stdout.take().context("tar has no output")?;
    // Without the name and the time of its input.
    let gzip = Command::new("gzip").arg("--no-name").stdin(packed).stdout(file).status();
    let gzip = gzip.context("cannot run gzip: apt-get install gzip")?;
    let tar = tar.wait()?;
    ensure!(tar.success() && gzip.success(), "tar ended with {tar}, gzip with {gzip}");
    Ok(())
}

/// Gives every file the rights of its kind, whatever the umask of the builder is.
fn set_rights(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_symlink() {
            continue;
        }
        let is_folder = path.is_dir();
        let is_program = folder.ends_with("bin");
        let rights = if is_folder || is_program { 0o755 } else { 0o644 };
        fs::set_permissions(&path, Permissions::from_mode(rights))?;
        if is_folder {
            set_rights(&path)?;
        }
    }
    fs::set_permissions(folder, Permissions::from_mode(0o755)).context("cannot set rights")
}

/// Writes the checksums of all files of this version, of other platforms too.
fn sums(out: &Path, prefix: &str) -> Result<PathBuf> {
    let mut names = Vec::new();
    for entry in fs::read_dir(out)? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        if name.starts_with(prefix) {
            names.push(name);
        }
    }
    names.sort();
    let sums = output(Command::new("sha256sum").current_dir(out).arg("--").args(names))?;
    let file = out.join(SUMS);
    fs::write(&file, sums).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let scratch = tempfile::tempdir().unwrap();
        let mut packed = Vec::new();
        for (run, names) in [["b", "a"], ["a", "b"]].iter().enumerate() {
            let folder = scratch.path().join(run.to_string()).join("folder");
            fs::create_dir_all(folder.join("bin")).unwrap();
            for name in names {
                fs::write(folder.join("bin").join(name), name).unwrap();
            }
            let rights = if run == 0 { 0o700 } else { 0o777 };
            fs::set_permissions(folder.join("bin/a"), Permissions::from_mode(rights)).unwrap();
            set_rights(&folder).unwrap();
            let archive = scratch.path().join(format!("{run}.tar.gz"));
            write(&folder, 1_000_000, &archive).unwrap();
            packed.push(fs::read(archive).unwrap());
        }
        assert!(packed[0] == packed[1] && packed[0].len() > 50);
    }

    #[test]
    fn checksums_tell_every_platform() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["kvmem-1-b.tar.gz", "kvmem-1-a.tar.gz", "other"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let text = fs::read_to_string(sums(folder.path(), "kvmem-1-").unwrap()).unwrap();
        let names: Vec<&str> = text.lines().filter_map(|line| line.split("  ").nth(1)).collect();
        assert_eq!(names, ["kvmem-1-a.tar.gz", "kvmem-1-b.tar.gz"]);
    }
}
