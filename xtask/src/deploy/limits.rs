//! *Limits*: runs the commands of the README under the limits that they give a container.
//!
//! The README shows `docker run` with a limit, and what `kvmem doctor` prints then. Here the built
//! command gets the same limit from `prlimit`, a mount or a cgroup, and must print every shown
//! line. A `…` in a line stands for whatever differs between machines.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::dockerfile::USER;
use crate::chaos::machine::Cgroup;
use crate::say;

/// The start of a shown command.
const DOCKER: &str = "docker run --rm ";

/// Runs every command of the README that gives a limit.
pub(super) fn check(root: &Path, command: &Path) -> Result<()> {
    let readme = fs::read_to_string(root.join("deploy/README.md"))?;
    let shown = blocks(&readme);
    ensure!(shown.len() == 3, "the README shows {} outputs, and 3 are known", shown.len());
    for (run, lines) in shown {
        match output(&run, command)? {
            Ok(output) => compare(&lines, &output).with_context(|| run.clone())?,
            Err(why) => say!("({run}: not run, {why})"),
        }
    }
    Ok(())
}

/// Returns the commands with limits and the lines that they print.
fn blocks(readme: &str) -> Vec<(String, Vec<String>)> {
    let parts: Vec<&str> = readme.split("```").collect();
    let mut blocks = Vec::new();
    // A fenced part, the text between, and the next fenced part.
    for three in parts.windows(3) {
        let (Some(run), Some(shown)) =
            (three[0].strip_prefix("bash\n"), three[2].strip_prefix("text\n"))
        else {
            continue;
        };
        if run.starts_with(DOCKER) && run.trim().lines().count() == 1 {
            let lines = shown.lines().filter(|line| line.trim() != "…").map(str::to_owned);
            blocks.push((run.trim().to_owned(), lines.collect()));
        }
    }
    blocks
}

/// Runs a command under its limit. Returns what it prints, or why it cannot be run here.
fn output(run: &str, command: &Path) -> Result<Result<String, String>> {
    let words = run.strip_prefix(DOCKER).context("it is no container")?;
    let (limit, rest) = words.split_once(' ').context("it has no limit")?;
    let arguments =
        rest.strip_prefix("kvmem ").with_context(|| format!("{run}: no image kvmem"))?;
    let kvmem = format!("exec {} {arguments}", command.display());
    let mut shell = Command::new("sh");
    shell.stdin(Stdio::null());
    // Kept until the command has ended.
    let mut group = None;
    if let Some(bytes) = limit.strip_prefix("--ulimit=memlock=") {
        shell.args(["-c", &format!("exec prlimit --memlock={bytes} -- {}", &kvmem[5..])]);
        if works_as_user(command) {
            // Root may pin more than the limit.
            shell.uid(USER as u32).gid(USER as u32);
        }
    } else if let Some(size) = limit.strip_prefix("--shm-size=") {
        shell = Command::new("unshare");
        let mount = format!("mount -t tmpfs -o size={size} tmpfs /dev/shm && {kvmem}");
        shell.args(["--user", "--map-root-user", "--mount", "sh", "-c", &mount]);
    } else if let Some(size) = limit.strip_prefix("--memory=") {
        let mib: u64 = size.strip_suffix('m').context("--memory is in MiB")?.parse()?;
        match Cgroup::memory(mib << 20) {
            Ok(made) => {
                shell.args(["-c", &format!("{} && {kvmem}", made.join())]);
                group = Some(made);
            }
            Err(why) => return Ok(Err(why)),
        }
    } else {
        bail!("{limit} is no limit that is checked");
    }
    let output = shell.output().with_context(|| format!("cannot run {run}"))?;
    drop(group);
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("unshare") || errors.contains("mount:") {
        return Ok(Err(errors.trim().to_owned()));
    }
    ensure!(matches!(output.status.code(), Some(0 | 1)), "{run}: {}: {errors}", output.status);
    Ok(Ok(String::from_utf8(output.stdout)? + &errors))
}

/// Returns whether the user of the image can run the command here.
fn works_as_user(command: &Path) -> bool {
    let mut version = Command::new(command);
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    version.uid(USER as u32).gid(USER as u32).status().is_ok_and(|status| status.success())
}

/// Checks that every shown line was printed.
fn compare(shown: &[String], output: &str) -> Result<()> {
    ensure!(!shown.is_empty(), "no line is shown");
    for line in shown {
        ensure!(
            output.lines().any(|printed| is_shown(printed, line)),
            "{line:?} is not printed, but:\n{output}"
        );
    }
    Ok(())
}

/// Returns whether a printed line is the shown one, whose `…` may stand for anything. The widths
/// of columns follow the values of the machine.
fn is_shown(printed: &str, shown: &str) -> bool {
    let plain = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let (printed, shown) = (plain(printed), plain(shown));
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let mut is_open = false;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        is_open = part.is_empty();
    }
    is_open || rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_stand_for_anything() {
        for (printed, shown) in [("a  b", "a b"), ("a b", "a …"), ("a b c", "a … c"), ("ab", "…b")]
        {
            assert!(is_shown(printed, shown), "{printed} is {shown}");
        }
        for (printed, shown) in [("a b", "a"), ("a b", "b"), ("a b c", "a … d"), ("abc", "…b")]
        {
            assert!(!is_shown(printed, shown), "{printed} is not {shown}");
        }
        assert!(compare(&["x".to_owned()], "x\ny").is_ok());
        assert!(compare(&["z".to_owned()], "x\ny").is_err() && compare(&[], "x").is_err());
    }

    #[test]
    fn commands_with_limits_are_found() {
        let run = "docker run --rm --memory=1m kvmem doctor";
        let other = "```bash\nls\n```\n\n```text\nb\n```\n";
        let readme = format!("```bash\n{run}\n```\n\n```text\na\n…\n```\n{other}");
        assert_eq!(blocks(&readme), [(run.to_owned(), vec!["a".to_owned()])]);
    }
}
