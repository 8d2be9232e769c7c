//! *Unit*: the systemd unit, its settings, and the drop-ins beside it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::understands;

const FOLDER: &str = "deploy/systemd";
const UNIT: &str = "kvmem-serve-mooncake.service";
/// The program of the unit.
const PROGRAM: &str = "/opt/kvmem/bin/kvmem";
/// The most exposure that `systemd-analyze security` may find, in tenths. 0 is none, 100 is all.
const EXPOSURE: &str = "25";

/// Checks the unit against its settings and runs what the built command has of it.
pub(super) fn check(root: &Path, command: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    let unit = fs::read_to_string(folder.join(UNIT))?;
    let settings = settings(&fs::read_to_string(folder.join("serve-mooncake.env"))?);
    let mut commands = 0;
    for line in lines(&unit) {
        let Some((key, value)) = line.split_once('=') else { continue };
        if !key.starts_with("ExecStart") {
            continue;
        }
        let words = expand(value, &settings)?;
        ensure!(words[0] == PROGRAM, "{key} runs {}, not {PROGRAM}", words[0]);
        commands += 1;
        // The Python package has the other command; its tests run it.
        if words[1] == "doctor" {
            understands(command, &words[1..])?;
        }
    }
    ensure!(commands == 2, "{UNIT} has {commands} commands, and 2 are known");
    check_sysctl(&fs::read_to_string(folder.join("sysctl.conf"))?, Path::new("/proc/sys"))?;
    check_tmpfiles(&fs::read_to_string(folder.join("tmpfiles.conf"))?)
}

/// Checks that the kernel has the settings.
fn check_sysctl(text: &str, folder: &Path) -> Result<()> {
    for line in lines(text) {
        let (key, value) =
            line.split_once('=').with_context(|| format!("{line:?} sets nothing"))?;
        let file = folder.join(key.trim().replace('.', "/"));
        ensure!(file.is_file(), "the kernel has no setting {}", key.trim());
        ensure!(value.trim().parse::<u64>().is_ok(), "{value:?} is no number");
    }
    Ok(())
}

/// Checks that what is written exists, and takes the value.
fn check_tmpfiles(text: &str) -> Result<()> {
    for line in lines(text) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["w", path, .., value] = words.as_slice() else { continue };
        // A kernel without transparent hugepages has no such file.
        let Ok(values) = fs::read_to_string(path) else { continue };
        let mut known = values.split_whitespace().map(|one| one.trim_matches(['[', ']']));
        ensure!(known.any(|known| known == *value), "{path} takes {values:?}, not {value}");
    }
    Ok(())
}

/// Has `systemd-analyze` check a copy of the unit whose program exists.
pub(super) fn analyze(root: &Path) -> Result<()> {
    let folder = root.join("target/deploy");
    fs::create_dir_all(&folder)?;
    let unit = folder.join(UNIT);
    let text = fs::read_to_string(root.join(FOLDER).join(UNIT))?;
    fs::write(&unit, text.replace(PROGRAM, "/bin/true"))?;
    let mut verify = Command::new("systemd-analyze");
    let output = verify.arg("verify").arg(&unit).output().context("cannot run systemd-analyze")?;
    // Unknown settings are only printed.
    let says = String::from_utf8_lossy(&output.stderr);
    let of_unit: Vec<&str> = says.lines().filter(|line| line.contains(UNIT)).collect();
    ensure!(output.status.success() && of_unit.is_empty(), "{UNIT}: {}", says.trim());
    let mut security = Command::new("systemd-analyze");
    let exposure = format!("--threshold={EXPOSURE}");
    let output = security.args(["security", "--offline=true", "--no-pager", &exposure]).arg(&unit);
    let output = output.output().context("cannot run systemd-analyze")?;
    let table = String::from_utf8_lossy(&output.stdout);
    let last = table.lines().last().unwrap_or_default();
    ensure!(output.status.success(), "{UNIT} exposes more than {EXPOSURE} of 100: {last}");
    Ok(())
}

/// Returns the lines that are no comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Returns names and values of a file of settings.
fn settings(text: &str) -> Vec<(String, String)> {
    let pairs = lines(text).filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns the words of a command as systemd expands them: `${NAME}` is one word or a part of one,
/// `$NAME` is as many words as the value has.
fn expand(line: &str, settings: &[(String, String)]) -> Result<Vec<String>> {
    let value = |name: &str| {
        let found = settings.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).with_context(|| format!("{name} has no value"))
    };
    let mut words = Vec::new();
    for word in line.split_whitespace() {
        if let Some(name) = word.strip_prefix('$').filter(|name| !name.starts_with('{')) {
            words.extend(value(name)?.split_whitespace().map(str::to_owned));
            continue;
        }
        let mut parts = word.split("${");
        let mut whole = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = part.split_once('}').with_context(|| format!("{word}: no `}}`"))?;
            whole = whole + value(name)? + rest;
        }
        words.push(whole);
    }
    ensure!(words.len() >= 2, "{line:?} is too short");
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_expanded_as_systemd_does() {
        let settings = settings("# a\nA=one\nB=two three\n");
        let expand = |line| expand(line, &settings);
        assert_eq!(expand("x ${A} y=${B}!").unwrap(), ["x", "one", "y=two three!"]);
        assert_eq!(expand("x $B").unwrap(), ["x", "two", "three"]);
        assert!(expand("x ${C}").is_err() && expand("x $C").is_err() && expand("x ${A").is_err());
    }

    #[test]
    fn a_setting_that_the_kernel_does_not_have_is_found() {
        let folder = Path::new("/proc/sys");
        assert!(check_sysctl("vm.max_map_count = 1", folder).is_ok());
        for wrong in ["vm.no_such_setting = 1", "vm.max_map_count = many", "vm.max_map_count"] {
            assert!(check_sysctl(wrong, folder).is_err(), "{wrong}");
        }
    }
}
