//! *Group*: the number of a group of users.

use std::fs;

use crate::output::Failure;

/// Returns the number of the group that `--allow-group` names.
pub(super) fn number(group: &str) -> Result<u32, Failure> {
    let text = fs::read_to_string("/etc/group").unwrap_or_default();
    find(group, &text).ok_or_else(|| {
        Failure::usage(format_args!(
            "--allow-group {group}: /etc/group has no such group; name one of it, or give a number"
        ))
    })
}

/// Finds a group by its name in the lines of `/etc/group`, or else reads a number.
fn find(group: &str, text: &str) -> Option<u32> {
    let named = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (name == group).then(|| fields.nth(1)?.parse().ok())?
    });
    // The last number is no group: it says that none is meant.
    named.or_else(|| group.parse().ok()).filter(|number| *number != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_names_and_numbers() {
        let text = "root:x:0:\nengines:x:1500:a,b\n7:x:9:\nbroken\n";
        assert_eq!(find("engines", text), Some(1500));
        assert_eq!(find("root", text), Some(0));
        assert_eq!(find("7", text), Some(9));
        assert_eq!(find("42", text), Some(42));
        for none in ["none", "", "-1", "4294967295", "broken", "4294967296"] {
            assert_eq!(find(none, text), None, "{none}");
        }
    }
}
