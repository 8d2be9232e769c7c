//! *Resource limits*: the limits of `ulimit`, minus what the process uses already.

use super::super::check::{Check, Value, Verdict, human_bytes};
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use crate::arena::machine::{
    Read, Rlimit, Unread, is_exempt_from_memlock, locked_bytes, parse, pinned_bytes,
};

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    let mapped = facts.coverage.mapped_bytes;
    let pinned = requirements.is_pinned().then_some(mapped);
    checks.push(Check::or_unknown(
        "rlimit.memlock",
        pinned.map(Value::Bytes),
        memlock(facts, pinned),
    ));
    checks.push(Check::or_unknown(
        "rlimit.as",
        Some(Value::Bytes(mapped)),
        address_space(facts, mapped),
    ));
    // Shared mappings do not count as data.
    let data = if requirements.is_shared() { 0 } else { mapped };
    checks.push(Check::or_unknown("rlimit.data", Some(Value::Bytes(data)), data_size(facts, data)));
}

/// Returns a limit with its soft value and the used bytes; `None` means no limit.
fn with_usage(
    limit: Option<Rlimit>,
    name: &str,
    used: impl FnOnce() -> Read<u64>,
) -> Read<Option<(Rlimit, u64, u64)>> {
    let limit = limit.ok_or_else(|| Unread::new(format!("the kernel does not report {name}")))?;
    let Some(soft) = limit.soft else { return Ok(None) };
    let used = used()?;
    Ok(Some((limit, soft, used)))
}

/// Returns a command that raises a limit counted in KiB, and whether it needs root.
fn ulimit(option: char, limit: Rlimit, bytes: u64) -> String {
    match limit.hard {
        Some(hard) if hard < bytes => format!("ulimit -{option} unlimited, as root"),
        _ => format!("ulimit -{option} {}", bytes.div_ceil(1024)),
    }
}

fn memlock(facts: &Facts<'_>, need: Option<u64>) -> Read<Check> {
    let name = "rlimit.memlock";
    // Locked and pinned pages are counted separately, each against the whole limit.
    let used = || Ok(locked_bytes(facts.files)?.max(pinned_bytes(facts.files)?));
    let Some((limit, soft, used)) = with_usage(facts.system.memlock, "RLIMIT_MEMLOCK", used)?
    else {
        return Ok(Check::new(name, Value::Unlimited).judge(Verdict::Ok, "there is no limit"));
    };
    let remaining = soft.saturating_sub(used);
    let check = Check::new(name, Value::Bytes(remaining));
    let Some(need) = need else {
        return Ok(check.judge(Verdict::Ok, "no memory will be pinned"));
    };
    if remaining >= need {
        return Ok(check.judge(Verdict::Ok, "enough may be pinned"));
    }
    if is_exempt_from_memlock(facts.files)? {
        return Ok(check.judge(Verdict::Ok, "the limit is too low, but CAP_IPC_LOCK removes it"));
    }
    let why = format!(
        "RLIMIT_MEMLOCK is {}, {} are locked: memory can be mapped, but not registered",
        human_bytes(soft),
        human_bytes(used)
    );
    let fix = format!(
        "{}; docker run --ulimit memlock=-1; systemd: LimitMEMLOCK=infinity; \
         /etc/security/limits.conf: * - memlock unlimited; Kubernetes: \
         securityContext.capabilities.add: [IPC_LOCK], or LimitMEMLOCK=infinity for the container \
         runtime",
        ulimit('l', limit, used.saturating_add(need))
    );
    Ok(check.judge(Verdict::Fail, why).fix(fix))
}

fn address_space(facts: &Facts<'_>, need: u64) -> Read<Check> {
    let used = || facts.status("VmSize", parse::field_bytes);
    let limit = with_usage(facts.system.address_space, "RLIMIT_AS", used)?;
    Ok(sized("rlimit.as", limit, need, "RLIMIT_AS", 'v', "LimitAS"))
}

fn data_size(facts: &Facts<'_>, need: u64) -> Read<Check> {
    let used = || facts.status("VmData", parse::field_bytes);
    let limit = with_usage(facts.system.data, "RLIMIT_DATA", used)?;
    Ok(sized("rlimit.data", limit, need, "RLIMIT_DATA", 'd', "LimitDATA"))
}

fn sized(
    name: &'static str,
    limit: Option<(Rlimit, u64, u64)>,
    need: u64,
    title: &str,
    option: char,
    unit: &str,
) -> Check {
    let Some((limit, soft, used)) = limit else {
        return Check::new(name, Value::Unlimited).judge(Verdict::Ok, "there is no limit");
    };
    let remaining = soft.saturating_sub(used);
    let check = Check::new(name, Value::Bytes(remaining));
    if remaining >= need {
        return check.judge(Verdict::Ok, format!("enough remains below {title}"));
    }
    let why = format!(
        "{title} is {}, {} are in use: mapping will fail",
        human_bytes(soft),
        human_bytes(used)
    );
    let fix = ulimit(option, limit, used.saturating_add(need));
    check.judge(Verdict::Fail, why).fix(format!("{fix}; systemd: {unit}=infinity"))
}
