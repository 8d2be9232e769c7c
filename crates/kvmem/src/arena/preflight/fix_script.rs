//! *Fix script*: the remedies of a report as one shell script, for a person to read and run.
//!
//! Nothing here runs anything. A remedy becomes a command only if it has one of a few known forms
//! with plain words, such as `sysctl vm.max_map_count=65530`. Everything else becomes a comment,
//! and so does every alternative after the first command. Names of files and groups come from the
//! machine, so a name with characters that a shell treats specially never leaves a comment.
//!
//! The commands set absolute values, so a second run changes nothing more.

use std::fmt::Write as _;

use super::check::{Check, Verdict};
use super::report::Report;

/// Comments wrap at this column.
const WIDTH: usize = 96;

/// The functions that the commands call.
const FUNCTIONS: &str = r#"
# Root runs nothing that the current folder has.
case ":$PATH:" in *:[!/]*) PATH=/usr/sbin:/usr/bin:/sbin:/bin ;; esac
failed=0

# Writes a value to a setting that does not have it.
set_file() {
    [ "$(cat "$2" 2>/dev/null)" = "$1" ] && return
    echo "$2: $1"
    echo "$1" > "$2" || failed=1
}

# The same, with pages from some NUMA nodes only.
set_file_on_nodes() {
    [ "$(cat "$3" 2>/dev/null)" = "$2" ] && return
    echo "$3: $2, on nodes $1"
    numactl -m "$1" sh -c 'echo "$1" > "$2"' sh "$2" "$3" || failed=1
}

# Runs a command that may be repeated.
run() {
    echo "$*"
    "$@" || failed=1
}

# Removes a file that no process has mapped or open.
remove_unused() {
    [ -e "$1" ] || return
    if grep -qsF -e "$1" /proc/[0-9]*/maps ||
        ls -l /proc/[0-9]*/fd 2>/dev/null | grep -qF -e "-> $1"; then
        echo "$1 is in use: it stays"
        return
    fi
    run rm -f -- "$1"
}
"#;

impl Report {
    /// Returns a shell script with the remedies of all checks that fail or warn: commands where a
    /// script can help, and comments for the rest. Runs nothing.
    ///
    /// Every command sets an absolute value or does nothing, so the script may be run again. It
    /// needs root for most of them, and ends with status 1 if one fails.
    #[must_use]
    pub fn fix_script(&self) -> String {
        let mut script = "#!/bin/sh\n".to_owned();
        let head = format!(
            "Remedies of `kvmem doctor` for {}. Nothing has been changed: read this script, delete \
             what you do not want, and run it as root. A second run changes nothing more. Most \
             settings last until the machine starts again.",
            self.requirements
        );
        comment(&mut script, "", &head);
        script.push_str(FUNCTIONS);
        let failed = self.with(Verdict::Fail).chain(self.with(Verdict::Warn));
        let mut commands_so_far = Vec::new();
        let mut is_empty = true;
        for check in failed {
            section(&mut script, check, &mut commands_so_far);
            is_empty = false;
        }
        if is_empty {
            script.push('\n');
            comment(&mut script, "", "No check fails or warns: there is nothing to do.");
        }
        script.push_str("\nexit \"$failed\"\n");
        script
    }
}

/// Adds a check: its cause and source, and its remedies. `commands_so_far` has those of earlier
/// checks.
fn section(script: &mut String, check: &Check, commands_so_far: &mut Vec<String>) {
    let Check { name, value, need, verdict, why, fix, source } = check;
    script.push('\n');
    let need = need.as_ref().map_or_else(String::new, |need| format!(", and {need} is required"));
    comment(script, "", &format!("{verdict}: {name} is {value}{need}"));
    comment(script, "", why);
    if let Some(source) = source {
        comment(script, "see: ", source);
    }
    let mut has_command = false;
    for (at, way) in fix.iter().flat_map(|fix| fix.split("; ")).enumerate() {
        match command(way) {
            Some(commands) if !has_command => {
                has_command = true;
                if commands_so_far.contains(&commands) {
                    comment(script, "", "The command above does it.");
                } else {
                    script.push_str(&commands);
                    commands_so_far.push(commands);
                }
            }
            _ => comment(script, if at == 0 { "do: " } else { "or: " }, way),
        }
    }
}

/// Adds a comment. Control characters, line feeds above all, become question marks.
fn comment(script: &mut String, begin: &str, text: &str) {
    let plain: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let mut line = format!("# {begin}");
    let mut is_empty = true;
    for word in plain.split(' ') {
        let width = line.chars().count() + 1 + word.chars().count();
        if !is_empty && width > WIDTH {
            script.push_str(line.trim_end());
            script.push('\n');
            line = format!("#{:1$}", "", begin.len() + 1);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    script.push_str(line.trim_end());
    script.push('\n');
}

/// Returns the lines for a remedy of a known form with plain words; `None` for any other text.
fn command(way: &str) -> Option<String> {
    if let Some((value, path)) = assignment(way) {
        return Some(format!("set_file {value} {path}\n"));
    }
    let words: Vec<&str> = way.split(' ').collect();
    match words.as_slice() {
        ["sysctl", setting] => {
            let (key, value) = setting.split_once('=')?;
            (is_key(key) && is_number(value)).then(|| format!("run sysctl -q -w {setting}\n"))
        }
        ["mount", "-o", options, "/dev/shm"] => {
            let size = options.strip_prefix("remount,size=")?.trim_end_matches(['g', 'm']);
            is_number(size).then(|| format!("run mount -o {options} /dev/shm\n"))
        }
        ["swapoff", "-a"] => Some("run swapoff -a\n".to_owned()),
        ["rm", "-f", paths @ ..] if !paths.is_empty() && paths.iter().all(|path| is_path(path)) => {
            Some(paths.iter().fold(String::new(), |mut lines, path| {
                let _ = writeln!(lines, "remove_unused {path}");
                lines
            }))
        }
        ["numactl", "-m", nodes, "sh", "-c", ..] => {
            let quoted = way.split_once("sh -c '")?.1.strip_suffix('\'')?;
            let (value, path) = assignment(quoted)?;
            let is_list = nodes.chars().all(|c| c.is_ascii_digit() || "-,".contains(c));
            is_list.then(|| format!("set_file_on_nodes {nodes} {value} {path}\n"))
        }
        _ => None,
    }
}

/// Parses `echo VALUE > PATH` with a plain value and an absolute, plain path.
fn assignment(text: &str) -> Option<(&str, &str)> {
    let (value, path) = text.strip_prefix("echo ")?.split_once(" > ")?;
    let plain = value.chars().all(|c| c.is_ascii_alphanumeric() || c == '+');
    (plain && !value.is_empty() && is_path(path)).then_some((value, path))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit())
}

fn is_key(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._".contains(c))
}

/// Returns whether a text is an absolute path of characters that no shell treats specially.
fn is_path(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@+".contains(c);
    text.starts_with('/') && text.chars().all(plain) && !text.split('/').any(|part| part == "..")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::arena::PageSize;
    use crate::arena::preflight::{Requirements, Value};

    #[test]
    fn only_plain_words_of_known_forms_become_commands() {
        for (way, lines) in [
            ("sysctl vm.max_map_count=65530", "run sysctl -q -w vm.max_map_count=65530\n"),
            ("echo defer+madvise > /sys/kernel/x", "set_file defer+madvise /sys/kernel/x\n"),
            ("mount -o remount,size=2g /dev/shm", "run mount -o remount,size=2g /dev/shm\n"),
            ("swapoff -a", "run swapoff -a\n"),
            ("rm -f /dev/shm/a /dev/shm/b", "remove_unused /dev/shm/a\nremove_unused /dev/shm/b\n"),
            ("numactl -m 1-2 sh -c 'echo 9 > /sys/x'", "set_file_on_nodes 1-2 9 /sys/x\n"),
        ] {
            assert_eq!(command(way).as_deref(), Some(lines), "{way}");
        }
        for way in [
            "sysctl kernel.io_uring_group=$(id -g)",
            "sysctl vm.nr_hugepages=1 2",
            "echo 1 > /sys/fs/cgroup/a b/memory.max",
            "echo 1 > /sys/fs/cgroup/$(reboot)/memory.max",
            "echo 1 > /sys/fs/cgroup/../x",
            "echo $(reboot) > /sys/x",
            "echo 1 > relative",
            "rm -f /dev/shm/a /dev/shm/'b",
            "rm -f",
            "rm -rf /",
            "numactl -m $(reboot) sh -c 'echo 9 > /sys/x'",
            "ulimit -l unlimited, as root",
            "docker run --memory=2g",
            "free 10 GiB by ending processes",
        ] {
            assert_eq!(command(way), None, "{way}");
        }
    }

    #[test]
    fn a_reason_cannot_leave_its_comment() {
        let requirements = Requirements::new(1 << 20, PageSize::Base).unwrap();
        let check = Check::new("x\ny", Value::Text("a\rb".into()))
            .judge(Verdict::Fail, "why\nreboot")
            .fix("do this\nreboot; echo 1 > /sys/x; sysctl a.b=1");
        let script = Report::new(requirements, vec![check]).fix_script();
        assert!(script.lines().all(|line| !line.starts_with("reboot")), "{script}");
        // One command for each check: the others are alternatives.
        assert!(script.contains("\nset_file 1 /sys/x\n# or: sysctl a.b=1\n"), "{script}");
        assert!(script.lines().all(|line| line.chars().count() <= 100), "{script}");
    }
}
