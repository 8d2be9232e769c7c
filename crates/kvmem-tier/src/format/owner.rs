//! *Owner*: the process that has the tier open, as the superblock names it.

use std::fmt;

use super::block::{Fields, Reader};

/// Bytes of an owner in the superblock.
pub(super) const OWNER: usize = 128;
/// Bytes of the name of a host.
const NAME: usize = 64;

/// The process that has a tier open, or had when it ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Random, and another one each time that a tier is opened.
    pub token: [u8; 16],
    /// Names the machine, also after it was started again.
    pub machine: [u8; 16],
    /// Names the time since the machine was started.
    pub boot: [u8; 16],
    /// When the tier was opened, in seconds since 1970.
    pub since: u64,
    /// The number of the process.
    pub process: u32,
    /// The name of the host, in UTF-8; zeros behind it.
    pub host: [u8; NAME],
}

impl Owner {
    /// Returns the name of the host.
    #[must_use]
    pub fn host(&self) -> String {
        let len = self.host.iter().position(|&byte| byte == 0).unwrap_or(NAME);
        let printed = |it: char| if it.is_control() { '?' } else { it };
        String::from_utf8_lossy(&self.host[..len]).chars().map(printed).collect()
    }

    /// Returns the field of the name of a host, cut off if it is longer.
    pub(crate) fn host_field(name: &str) -> [u8; NAME] {
        let mut field = [0; NAME];
        let end = (0..=name.len().min(NAME)).rev().find(|&end| name.is_char_boundary(end));
        let name = &name.as_bytes()[..end.unwrap_or(0)];
        field[..name.len()].copy_from_slice(name);
        field
    }

    pub(super) fn write(owner: Option<&Owner>, bytes: &mut [u8]) {
        let Some(Owner { token, machine, boot, since, process, host }) = owner else { return };
        let mut fields = Fields::new(bytes);
        fields.put(token);
        fields.put(machine);
        fields.put(boot);
        fields.put(&since.to_le_bytes());
        fields.put(&process.to_le_bytes());
        fields.put(&[0; 4]);
        fields.put(host);
    }

    /// Reads an owner; `None` if no process has the tier open.
    pub(super) fn read(bytes: &[u8]) -> Option<Owner> {
        let mut fields = Reader(bytes);
        let (token, machine, boot) = (fields.take(), fields.take(), fields.take());
        let (since, process) = (fields.u64(), fields.u32());
        fields.u32();
        let owner = Owner { token, machine, boot, since, process, host: fields.take() };
        (token != [0; 16]).then_some(owner)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of host {}, since {}", self.process, self.host(), Utc(self.since))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}

/// Formats a moment in seconds since 1970.
struct Utc(u64);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Howard Hinnant, "chrono-compatible low-level date algorithms": eras of 400 years that
        // begin on 1 March. A damaged field may have any number.
        let (days, seconds) = (self.0 / 86_400, self.0 % 86_400);
        let days = days.saturating_add(719_468);
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = year + era * 400 + u64::from(month <= 2);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year}-{month:02}-{day:02} {hours:02}:{minutes:02}:{seconds:02} UTC")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_read_as_it_was_written() {
        let long = "a".repeat(62) + "ü" + "b";
        for (name, expected) in
            [("node-1", "node-1"), ("", ""), (&long, &long[..64]), ("a\nb", "a?b")]
        {
            let host = Owner::host_field(name);
            let (token, machine, boot) = ([1; 16], [2; 16], [3; 16]);
            let owner = Owner { token, machine, boot, since: 1_000_000_007, process: 77, host };
            let mut bytes = [0; OWNER];
            Owner::write(Some(&owner), &mut bytes);
            assert_eq!(Owner::read(&bytes), Some(owner));
            assert_eq!(owner.host(), expected);
            let shown = format!("process 77 of host {expected}, since 2001-09-09 01:46:47 UTC");
            assert_eq!(owner.to_string(), shown);
        }
        assert_eq!(Owner::read(&[0; OWNER]), None);
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_798_761_599, "2026-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(Utc(seconds).to_string(), expected);
        }
        let _ = Utc(u64::MAX).to_string();
    }
}
