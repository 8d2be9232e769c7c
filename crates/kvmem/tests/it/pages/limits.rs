//! *Limits*: each limit with example values, as errors show it, and its remedy.

use kvmem::arena::{Limit, PageSize};
use kvmem::register::{Account, RegisterLimit};

/// The types whose variants are limits.
pub(super) const TYPES: [&str; 2] = ["Limit", "RegisterLimit"];

const MIB: u64 = 1 << 20;

/// Returns every limit: its name, its text and its remedy.
pub(super) fn all() -> Vec<(String, String, String)> {
    let arena = [
        Limit::AddressSpace(64 * MIB),
        Limit::Addresses(64 * MIB),
        Limit::Data(64 * MIB),
        Limit::Locked(8 * MIB),
        Limit::FileSize(64 * MIB),
        Limit::Machine(64 * MIB),
        Limit::Cgroup {
            group: "/sys/fs/cgroup/serving".into(),
            limit: 1024 * MIB,
            remaining: 64 * MIB,
        },
        Limit::Pool { page: PageSize::Huge2M, free: 16 },
        Limit::Commit(64 * MIB),
        Limit::Maps(65_530),
    ];
    let register = [
        RegisterLimit::Memlock {
            account: Account::Locked,
            limit_bytes: 8 * MIB,
            used_bytes: 0,
            need_bytes: 64 * MIB,
        },
        RegisterLimit::KeyBytes { limit_bytes: 1024 * MIB, need_bytes: 4096 * MIB },
        RegisterLimit::Keys { limit: 16, need: 64 },
        RegisterLimit::Descriptors,
    ];
    let name = |kind: &str, debug: String| {
        let variant = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        format!("{kind}::{variant}")
    };
    let of_arena = arena
        .iter()
        .map(|limit| (name("Limit", format!("{limit:?}")), limit.to_string(), limit.remedy()));
    let of_register = register.iter().map(|limit| {
        (name("RegisterLimit", format!("{limit:?}")), limit.to_string(), limit.remedy())
    });
    of_arena.chain(of_register).collect()
}
