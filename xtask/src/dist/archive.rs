//! *Archive*: one file of the staged folder, its list of parts, and the checksums of both.
//!
//! Packing the same files again gives the same bytes: they come in the order of their names, all
//! have the time of the commit, belong to user 0 and have the rights of their kind.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Shipment, build, files};
use crate::notices;
use crate::run::output;

/// The file of the checksums.
pub(super) const SUMS: &str = "SHA256SUMS";

/// Packs the staged folder. Returns the files that were written.
pub(super) fn pack(shipment: &Shipment<'_>) -> Result<Vec<PathBuf>> {
    let Shipment { root, triple, version, epoch, out, .. } = shipment;
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let stage = shipment.stage();
    let archive = out.join(format!("{}.tar.gz", shipment.name()));
    write(&stage, *epoch, &archive)?;

    let list = notices::parts(root, &build::PACKAGES, triple, *epoch)?;
    let parts = out.join(format!("{}.cdx.json", shipment.name()));
    fs::write(&parts, list).with_context(|| format!("cannot write {}", parts.display()))?;
    let sums = sums(out, &format!("kvmem-{version}-"))?;
    Ok(vec![archive, parts, sums])
}

/// Writes a folder as a compressed archive in which all files have the time `epoch`.
pub(super) fn write(folder: &Path, epoch: u64, archive: &Path) -> Result<()> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        anyhow::bail!("{} has no name", folder.display());
    };
    let file = File::create(archive).with_context(|| archive.display().to_string())?;
    let mut tar = Command::new("tar");
    tar.env("LC_ALL", "C").args(["--create", "--format=ustar", "--sort=name", "--numeric-owner"]);
    // Whatever the umask of the builder is.
    tar.args(["--owner=0", "--group=0", "--mode=u=rwX,go=rX", &format!("--mtime=@{epoch}")]);
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

/// Writes the checksums of all files of this version, of other platforms too.
fn sums(out: &Path, prefix: &str) -> Result<PathBuf> {
    let names = files(out)?.into_iter().filter_map(|file| Some(file.file_name()?.to_owned()));
    let names = names.filter(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
    let sums = output(Command::new("sha256sum").current_dir(out).arg("--").args(names))?;
    let file = out.join(SUMS);
    fs::write(&file, sums).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

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
            for (name, rights) in [("a", [0o700, 0o777]), ("b", [0o600, 0o664])] {
                let rights = Permissions::from_mode(rights[run]);
                fs::set_permissions(folder.join("bin").join(name), rights).unwrap();
            }
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
