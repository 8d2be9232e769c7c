//! */dev/shm*: shared memory with names. Its size does not limit kvmem's shared regions, which are
//! memfds. Other parts of an inference server (NCCL, worker processes of PyTorch) keep their shared
//! memory there. The check therefore only warns, and only for shared memory.

use super::super::check::{Check, Value, Verdict, setting_ceil};
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use crate::arena::machine::{Read, Unread};

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    let need = requirements.is_shared().then(|| requirements.size_bytes());
    checks.push(Check::or_unknown("shm.free", need.map(Value::Bytes), free(facts, need)));
}

fn free(facts: &Facts<'_>, need: Option<u64>) -> Read<Check> {
    let space = facts
        .system
        .shm
        .ok_or_else(|| Unread::new("the kernel does not report the size of /dev/shm"))?;
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
    let size = space.total_bytes.saturating_sub(space.free_bytes).saturating_add(need);
    let why = "it does not limit kvmem's memfds, but shared memory of that size under /dev/shm \
        would end in SIGBUS";
    let fix = format!(
        "mount -o remount,size={} /dev/shm; docker run --shm-size={}; Kubernetes: an emptyDir with \
         medium: Memory and sizeLimit: {} at /dev/shm",
        setting_ceil(size, "g", "m"),
        setting_ceil(size, "g", "m"),
        setting_ceil(size, "Gi", "Mi")
    );
    Ok(check.judge(Verdict::Warn, why).fix(fix))
}
