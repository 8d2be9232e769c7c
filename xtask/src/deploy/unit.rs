//! *Unit*: the systemd units, their settings, and the drop-ins beside them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{parses, understands};

const FOLDER: &str = "deploy/systemd";
/// The units of services, their settings, and how many commands they run.
const SERVICES: [(&str, &str, usize); 3] = [
    ("kvmem-serve-mooncake.service", "serve-mooncake.env", 2),
    ("kvmem-serve.service", "serve.env", 1),
    ("kvmem@.service", "tenant.env", 1),
];
/// The other units, of the services after the first.
const SOCKETS: [&str; 2] = ["kvmem-serve.socket", "kvmem@.socket"];
/// The program of the units.
const PROGRAM: &str = "/opt/kvmem/bin/kvmem";
/// The most exposure that `systemd-analyze security` may find, in tenths. 0 is none, 100 is all.
const EXPOSURE: &str = "25";
/// Settings that older systemd ignores, with a line in its log.
const NEWER: [&str; 1] = ["FileDescriptorStorePreserve"];

/// Checks the units against their settings and runs what the built command has of them.
pub(super) fn check(root: &Path, command: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    for (unit, env, expected) in SERVICES {
        let text = fs::read_to_string(folder.join(unit))?;
        let settings = settings(&fs::read_to_string(folder.join(env))?);
        let commands = check_commands(&text, &settings, command).context(unit)?;
        ensure!(commands == expected, "{unit} has {commands} commands, and {expected} are known");
    }
    let read = |name: &str| fs::read_to_string(folder.join(name));
    for ((service, _, _), socket) in SERVICES[1..].iter().zip(SOCKETS) {
        let (service, unit) = (read(service)?, read(socket)?);
        check_socket(&service, &unit, &read("sysusers.conf")?).context(socket)?;
    }
    check_sysctl(&read("sysctl.conf")?, Path::new("/proc/sys"))?;
    check_tmpfiles(&read("tmpfiles.conf")?)
}

/// Has the built command parse, or run, the commands of a unit. Returns how many there are.
fn check_commands(unit: &str, settings: &[(String, String)], command: &Path) -> Result<usize> {
    let mut commands = 0;
    for line in lines(unit) {
        let Some((key, value)) = line.split_once('=') else { continue };
        if !key.starts_with("ExecStart") {
            continue;
        }
        let words = expand(value, settings)?;
        ensure!(words[0] == PROGRAM, "{key} runs {}, not {PROGRAM}", words[0]);
        commands += 1;
        match words[1].as_str() {
            "doctor" => understands(command, &words[1..])?,
            "serve" => parses(command, &words[1..])?,
            // The Python package has the other command; its tests run it.
            _ => {}
        }
    }
    Ok(commands)
}

/// Checks that the server is given the socket of packets that its command names, and a store for
/// its memory, and that the group of the socket is made. The operator makes that of a tenant, and
/// the command of a tenant's server names it.
fn check_socket(service: &str, socket: &str, sysusers: &str) -> Result<()> {
    let value = |unit: &'_ str, key: &str| {
        let mut pairs = lines(unit).filter_map(|line| line.split_once('='));
        let found = pairs.find(|(found, _)| *found == key).map(|(_, value)| value.to_owned());
        found.with_context(|| format!("a unit has no {key}"))
    };
    let path = value(socket, "ListenSequentialPacket")?;
    let run = value(service, "ExecStart")?;
    ensure!(run.contains(&format!("--socket {path} ")), "the command has another socket: {path}");
    ensure!(run.contains("--keep systemd"), "systemd does not keep the memory");
    let store = value(service, "FileDescriptorStoreMax")?;
    ensure!(store.parse::<u32>()? >= 4, "{store} descriptors are too few to set memory aside");
    let group = value(socket, "SocketGroup")?;
    if group.ends_with("%i") {
        let option = format!("--allow-group {group} ");
        ensure!(run.contains(&option), "the command has no {option}");
        ensure!(path.contains("/%i/"), "{path} is in no folder of the tenant's own");
        return Ok(());
    }
    ensure!(lines(sysusers).any(|line| line.starts_with(&format!("g {group} "))), "no {group}");
    Ok(())
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

/// Has `systemd-analyze` check copies of the units whose program exists.
pub(super) fn analyze(root: &Path) -> Result<()> {
    let folder = root.join("target/deploy");
    fs::create_dir_all(&folder)?;
    // A template is checked as that of one tenant.
    let of_tenant = |unit: &str| unit.replace("@.", "@tenant.");
    let services = SERVICES.map(|(unit, _, _)| of_tenant(unit));
    let units: Vec<String> = services.iter().cloned().chain(SOCKETS.map(of_tenant)).collect();
    for unit in SERVICES.map(|(unit, _, _)| unit).into_iter().chain(SOCKETS) {
        let text = fs::read_to_string(root.join(FOLDER).join(unit))?;
        fs::write(folder.join(of_tenant(unit)), text.replace(PROGRAM, "/bin/true"))?;
    }
    let mut verify = Command::new("systemd-analyze");
    let output = verify.arg("verify").args(units.iter().map(|unit| folder.join(unit))).output();
    let output = output.context("cannot run systemd-analyze")?;
    // Unknown settings are only printed.
    let says = String::from_utf8_lossy(&output.stderr);
    let is_newer = |line: &str| NEWER.iter().any(|key| line.contains(&format!("'{key}'")));
    let is_of_unit = |line: &&str| units.iter().any(|unit| line.contains(unit.as_str()));
    let mut of_units = says.lines().filter(is_of_unit);
    let wrong = of_units.any(|line| !is_newer(line));
    ensure!(output.status.success() && !wrong, "{}", says.trim());
    for unit in services {
        let mut security = Command::new("systemd-analyze");
        let exposure = format!("--threshold={EXPOSURE}");
        security.args(["security", "--offline=true", "--no-pager", &exposure]);
        let output = security.arg(folder.join(&unit)).output();
        let output = output.context("cannot run systemd-analyze")?;
        let table = String::from_utf8_lossy(&output.stdout);
        let last = table.lines().last().unwrap_or_default();
        ensure!(output.status.success(), "{unit} exposes more than {EXPOSURE} of 100: {last}");
    }
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
    fn a_service_and_its_socket_belong_together() {
        let service = "FileDescriptorStoreMax=8\nExecStart=x --socket /run/a --keep systemd\n";
        let socket = "ListenSequentialPacket=/run/a\nSocketGroup=b\n";
        assert!(check_socket(service, socket, "g b -\n").is_ok());
        assert!(check_socket(service, socket, "g c -\n").is_err());
        for (was, is) in [("/run/a", "/run/b"), ("8", "2"), (" --keep systemd", " ")] {
            assert!(check_socket(&service.replace(was, is), socket, "g b -\n").is_err(), "{is}");
        }
    }

    #[test]
    fn the_server_of_a_tenant_lets_in_its_group_alone() {
        let service = "FileDescriptorStoreMax=8\n\
                       ExecStart=x --socket /run/%i/a --allow-group b-%i --keep systemd\n";
        let socket = "ListenSequentialPacket=/run/%i/a\nSocketGroup=b-%i\n";
        assert!(check_socket(service, socket, "").is_ok());
        let other = service.replace("b-%i", "b");
        assert!(check_socket(&other, socket, "g b -\n").is_err());
        let shared = |text: &str| text.replace("/run/%i/a", "/run/a-%i");
        assert!(check_socket(&shared(service), &shared(socket), "").is_err());
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
