//! *Resource limits*: what `ulimit` shows, less what the process uses already.

use super::super::check::{Check, Value, Verdict, human_bytes};
use super::super::facts::Facts;
use super::super::machine::{Read, Unread};
use super::super::parse;
use super::super::system::Limit;
use super::super::wish::Requirements;
use super::known;

/// `CAP_IPC_LOCK`, which lifts `RLIMIT_MEMLOCK`.
const CAP_IPC_LOCK: u32 = 14;

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    let mapped = facts.cover.mapped_bytes;
    let pinned = requirements.is_pinned().then_some(mapped);
    checks.push(known("rlimit.memlock", pinned.map(Value::Bytes), memlock(facts, pinned)));
    checks.push(known("rlimit.as", Some(Value::Bytes(mapped)), address_space(facts, mapped)));
    // Shared mappings are no data.
    let data = if requirements.is_shared() { 0 } else { mapped };
    checks.push(known("rlimit.data", Some(Value::Bytes(data)), data_size(facts, data)));
}

/// What a limit leaves of `used` bytes; `None` is no limit.
fn left(
    limit: Option<Limit>,
    name: &str,
    used: impl FnOnce() -> Read<u64>,
) -> Read<Option<(Limit, u64, u64)>> {
    let limit =
        limit.ok_or_else(|| Unread::new(format!("the system does not say what {name} is")))?;
    let Some(soft) = limit.soft else { return Ok(None) };
    let used = used()?;
    Ok(Some((limit, soft, used)))
}

/// A command that raises a limit counted in KiB, and whether it needs a privilege.
fn ulimit(option: char, limit: Limit, bytes: u64) -> String {
    match limit.hard {
        Some(hard) if hard < bytes => format!("ulimit -{option} unlimited, as root"),
        _ => format!("ulimit -{option} {}", bytes.div_ceil(1024)),
    }
}

fn memlock(facts: &Facts<'_>, need: Option<u64>) -> Read<Check> {
    let name = "rlimit.memlock";
    // Locked and pinned pages are counted apart, each against the whole limit.
    let used = || {
        let locked = facts.status("VmLck", parse::field_bytes)?;
        Ok(locked.max(facts.status("VmPin", parse::field_bytes)?))
    };
    let Some((limit, soft, used)) = left(facts.system().memlock, "RLIMIT_MEMLOCK", used)? else {
        return Ok(Check::new(name, Value::Unlimited).judge(Verdict::Ok, "there is no limit"));
    };
    let left = soft.saturating_sub(used);
    let check = Check::new(name, Value::Bytes(left));
    let Some(need) = need else {
        return Ok(check.judge(Verdict::Ok, "nothing is to be pinned"));
    };
    if left >= need {
        return Ok(check.judge(Verdict::Ok, "enough may be pinned"));
    }
    if facts.has_capability(CAP_IPC_LOCK)? {
        return Ok(check.judge(Verdict::Ok, "the limit is too low, but CAP_IPC_LOCK lifts it"));
    }
    let why = format!(
        "RLIMIT_MEMLOCK is {}, {} are locked: memory can be mapped, but not registered",
        human_bytes(soft),
        human_bytes(used)
    );
    let fix = format!(
        "{}; docker run --ulimit memlock=-1; systemd: LimitMEMLOCK=infinity; /etc/security/limits.conf: * - memlock unlimited; \
         Kubernetes: securityContext.capabilities.add: [IPC_LOCK], or LimitMEMLOCK=infinity for the container runtime",
        ulimit('l', limit, used.saturating_add(need))
    );
    Ok(check.judge(Verdict::Fail, why).fix(fix))
}

fn address_space(facts: &Facts<'_>, need: u64) -> Read<Check> {
    let used = || facts.status("VmSize", parse::field_bytes);
    let limit = left(facts.system().address_space, "RLIMIT_AS", used)?;
    Ok(sized("rlimit.as", limit, need, "RLIMIT_AS", 'v', "LimitAS"))
}

fn data_size(facts: &Facts<'_>, need: u64) -> Read<Check> {
    let used = || facts.status("VmData", parse::field_bytes);
    let limit = left(facts.system().data, "RLIMIT_DATA", used)?;
    Ok(sized("rlimit.data", limit, need, "RLIMIT_DATA", 'd', "LimitDATA"))
}

fn sized(
    name: &'static str,
    limit: Option<(Limit, u64, u64)>,
    need: u64,
    title: &str,
    option: char,
    unit: &str,
) -> Check {
    let Some((limit, soft, used)) = limit else {
        return Check::new(name, Value::Unlimited).judge(Verdict::Ok, "there is no limit");
    };
    let left = soft.saturating_sub(used);
    let check = Check::new(name, Value::Bytes(left));
    if left >= need {
        return check.judge(Verdict::Ok, format!("enough is left below {title}"));
    }
    let why = format!(
        "{title} is {}, {} are in use: mapping will fail",
        human_bytes(soft),
        human_bytes(used)
    );
    let fix = ulimit(option, limit, used.saturating_add(need));
    check.judge(Verdict::Fail, why).fix(format!("{fix}; systemd: {unit}=infinity"))
}
