//! *Principals*: the numbers of users and groups that options name.

use std::fs;

use kvmem_node::{AllowedGroup, NamespaceRule, Principal};

use crate::args::{GroupRule, NamespaceAccess};
use crate::output::Failure;

/// Returns the group that `--allow-group` names.
pub(super) fn allowed_group(rule: &GroupRule) -> Result<AllowedGroup, Failure> {
    let gid = group("--allow-group", &rule.group)?;
    Ok(AllowedGroup { gid, read_only: rule.read_only })
}

/// Returns the rule that `--namespace` says.
pub(super) fn namespace_rule(rule: &NamespaceAccess) -> Result<NamespaceRule, Failure> {
    let who = match rule.who.strip_prefix('@') {
        Some(name) => Principal::Group(group("--namespace", name)?),
        None => Principal::User(user("--namespace", &rule.who)?),
    };
    Ok(NamespaceRule { name: rule.name.clone(), who, read_only: rule.read_only })
}

/// Returns the number of the user that `--operator` names.
pub(super) fn operator(name: &str) -> Result<u32, Failure> {
    user("--operator", name)
}

fn group(option: &str, name: &str) -> Result<u32, Failure> {
    number(option, name, "/etc/group", "group")
}

fn user(option: &str, name: &str) -> Result<u32, Failure> {
    number(option, name, "/etc/passwd", "user")
}

fn number(option: &str, name: &str, file: &str, kind: &str) -> Result<u32, Failure> {
    let text = fs::read_to_string(file).unwrap_or_default();
    find(name, &text).ok_or_else(|| {
        Failure::usage(format_args!(
            "{option} {name}: {file} has no such {kind}; name one of it, or give a number"
        ))
    })
}

/// Finds a name in the lines of `/etc/group` or `/etc/passwd`, or else reads a number.
fn find(name: &str, text: &str) -> Option<u32> {
    let named = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next()?;
        (found == name).then(|| fields.nth(1)?.parse().ok())?
    });
    // The kernel uses the last number for "unchanged": it is no user and no group.
    named.or_else(|| name.parse().ok()).filter(|number| *number != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_users_have_names_and_numbers() {
        let text = "root:x:0:\nengines:x:1500:a,b\n7:x:9:\nbroken\n";
        assert_eq!(find("engines", text), Some(1500));
        assert_eq!(find("root", text), Some(0));
        assert_eq!(find("7", text), Some(9));
        assert_eq!(find("42", text), Some(42));
        for none in ["none", "", "-1", "4294967295", "broken", "4294967296"] {
            assert_eq!(find(none, text), None, "{none}");
        }
        assert_eq!(
            find("kv", "kv:x:990:991::/:/bin/false\n"),
            Some(990),
            "the user, not the group"
        );
    }
}
