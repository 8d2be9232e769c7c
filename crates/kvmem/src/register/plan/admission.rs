//! *Admission*: whether registrars can take a region at all, by their limits.

use crate::register::{Account, Limits, RegisterError, RegisterLimit};

/// The limit of chunks per registrar; a plan that needs more comes from a mistaken request.
const MAX_CHUNKS: u64 = 1 << 20;

/// Checks the limits that do not depend on the pages, for `len` bytes in keys of at most `part`
/// bytes.
pub(crate) fn admit(limits: &[Limits], len: u64, part: u64) -> Result<(), RegisterError> {
    check_names(limits)?;
    check_memlock(limits, len)?;
    limits.iter().try_for_each(|limits| check_keys(limits, len.div_ceil(part.max(1))))
}

/// Checks that there are registrars, and that no two have the same name.
pub(super) fn check_names(limits: &[Limits]) -> Result<(), RegisterError> {
    if limits.is_empty() {
        return Err(RegisterError::NoRegistrars);
    }
    let mut names: Vec<&str> = limits.iter().map(|limits| &*limits.device).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(RegisterError::SameName { device: pair[0].to_owned() }),
        None => Ok(()),
    }
}

/// Checks that the registrar can issue `need` keys.
pub(in crate::register) fn check_keys(limits: &Limits, need: u64) -> Result<(), RegisterError> {
    let limit = limits.max_keys.min(MAX_CHUNKS);
    let exceeded = RegisterLimit::Keys { limit, need };
    if need > limit {
        Err(RegisterError::Limited { device: limits.device.clone(), exceeded })
    } else {
        Ok(())
    }
}

/// Checks that registrars whose transfers name memory by its address take `chunk` bytes with one
/// key. Shorter keys would have edges that the caller does not expect.
pub(super) fn check_edges(limits: &[Limits], chunk: u64) -> Result<(), RegisterError> {
    let short = |limits: &&Limits| limits.copies_by_address && limits.max_bytes < chunk;
    match limits.iter().find(short) {
        Some(Limits { device, max_bytes, .. }) => {
            let exceeded = RegisterLimit::KeyBytes { limit_bytes: *max_bytes, need_bytes: chunk };
            Err(RegisterError::Limited { device: device.clone(), exceeded })
        }
        None => Ok(()),
    }
}

/// Compares the bytes that all registrars pin together with the limit that they share.
pub(in crate::register) fn check_memlock(limits: &[Limits], len: u64) -> Result<(), RegisterError> {
    for account in [Account::Rings, Account::Pinned, Account::Locked] {
        let counted =
            |limits: &&Limits| limits.memlock.is_some_and(|memlock| memlock.account == account);
        let counted: Vec<&Limits> = limits.iter().filter(counted).collect();
        let tightest = counted.iter().filter_map(|limits| limits.memlock);
        let Some(memlock) = tightest.min_by_key(|memlock| memlock.remaining_bytes()) else {
            continue;
        };
        let need_bytes = len.saturating_mul(counted.len() as u64);
        if need_bytes > memlock.remaining_bytes() {
            let names: Vec<&str> = counted.iter().map(|limits| &*limits.device).collect();
            let exceeded = memlock.exceeded(need_bytes);
            return Err(RegisterError::Limited { device: names.join(", "), exceeded });
        }
    }
    Ok(())
}
