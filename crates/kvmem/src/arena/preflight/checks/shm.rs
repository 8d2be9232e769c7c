//! */dev/shm*: shared memory with names. Its size does not limit kvmem's shared regions, which are
//! memfds. Other parts of an inference server (NCCL, worker processes of PyTorch) keep their shared
//! memory there. The check therefore only warns, and only for shared memory.

use super::super::check::{Check, Value, Verdict, setting_ceil};
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use crate::arena::machine::{FileSystemSpace, Read, Unread};

/// The size of `/dev/shm` that container runtimes give by default.
const RUNTIME_BYTES: u64 = 64 << 20;
/// The size that NCCL's manual advises.
const USUAL_BYTES: u64 = 1 << 30;

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    let need = requirements.is_shared().then(|| requirements.size_bytes());
    checks.push(Check::or_unknown("shm.free", need.map(Value::Bytes), free(facts, need)));
    checks.push(Check::or_unknown("shm.size", None, size(facts, need)));
}

fn space(facts: &Facts<'_>) -> Read<FileSystemSpace> {
    facts.system.shm.ok_or_else(|| Unread::new("the kernel does not report the size of /dev/shm"))
}

/// Returns a size at which `need` bytes would be free.
fn enough(space: FileSystemSpace, need: u64) -> u64 {
    space.total_bytes.saturating_sub(space.free_bytes).saturating_add(need)
}

fn fix(bytes: u64) -> String {
    format!(
        "mount -o remount,size={} /dev/shm; docker run --shm-size={}; Kubernetes: an emptyDir with \
         medium: Memory and sizeLimit: {} at /dev/shm",
        setting_ceil(bytes, "g", "m"),
        setting_ceil(bytes, "g", "m"),
        setting_ceil(bytes, "Gi", "Mi")
    )
}

/// Warns about the size that container runtimes use by default.
fn size(facts: &Facts<'_>, need: Option<u64>) -> Read<Check> {
    let space = space(facts)?;
    let total = space.total_bytes;
    let check = Check::new("shm.size", Value::Bytes(total));
    Ok(match total {
        0 => Check::new("shm.size", Value::Unlimited)
            .judge(Verdict::Ok, "/dev/shm has no size of its own"),
        1..=RUNTIME_BYTES => {
            let why = "container runtimes give this size by default: NCCL and the workers of \
                engines fail or end in SIGBUS when it is full";
            check
                .judge(Verdict::Warn, why)
                .fix(fix(enough(space, need.unwrap_or(0)).max(USUAL_BYTES)))
        }
        _ => check.judge(Verdict::Ok, "more than the default of container runtimes"),
    })
}

fn free(facts: &Facts<'_>, need: Option<u64>) -> Read<Check> {
    let space = space(facts)?;
    if space.total_bytes == 0 {
        return Ok(Check::new("shm.free", Value::Unlimited)
            .judge(Verdict::Ok, "/dev/shm has no size of its own"));
    }
    let check = Check::new("shm.free", Value::Bytes(space.free_bytes));
    let Some(need) = need else {
        return Ok(check.judge(Verdict::Ok, "no shared memory is required"));
    };
    if space.free_bytes >= need {
        return Ok(check.judge(Verdict::Ok, "the same size could be shared by name"));
    }
    let why = "it does not limit kvmem's memfds, but shared memory of that size under /dev/shm \
        would end in SIGBUS";
    Ok(check.judge(Verdict::Warn, why).fix(fix(enough(space, need).max(USUAL_BYTES))))
}
