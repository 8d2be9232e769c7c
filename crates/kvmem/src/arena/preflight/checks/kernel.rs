//! *Kernel*: its version, whether this process may make an io_uring, and the faults of io_uring
//! that kvmem works around.

use super::super::check::{Check, Value, Verdict};
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use crate::arena::machine::parse;
use crate::arena::machine::{Read, Unread};
use crate::sys::Errno;

/// The first kernel with `MADV_POPULATE_WRITE`.
const POPULATE: (u32, u32) = (5, 14);
/// The first kernel that clones single fixed buffers.
const CLONE: (u32, u32) = (6, 13);
/// The last kernel whose first releases drop buffers when one is cloned.
const CLONE_DROPS: (u32, u32) = (6, 18);
/// Bytes of hugepages from which on a ring without clones takes several seconds.
const SLOW_BYTES: u64 = 128 << 30;
/// What 16 GiB of hugepages take in one ring without clones; see `register/backends/io_uring`.
const MILLIS_16_GIB: u64 = 195;

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    let need = Value::Text(format!("{}.{}", POPULATE.0, POPULATE.1));
    checks.push(Check::or_unknown("kernel.populate", Some(need), populate(facts)));
    checks.push(Check::or_unknown(
        "kernel.io_uring",
        Some(Value::Text("allowed".into())),
        io_uring(facts),
    ));
    checks.push(Check::or_unknown("kernel.ring_clone", None, ring_clone(facts, requirements)));
}

fn populate(facts: &Facts<'_>) -> Read<Check> {
    let (major, minor) = facts.kernel()?;
    let check = Check::new("kernel.populate", Value::Text(format!("{major}.{minor}")));
    if (major, minor) >= POPULATE {
        return Ok(check.judge(Verdict::Ok, "it has MADV_POPULATE_WRITE"));
    }
    let why = "it has no MADV_POPULATE_WRITE: pages are made resident by touching them one by one";
    Ok(check.judge(Verdict::Warn, why).fix("run a kernel of 5.14 or later"))
}

/// The kernel's answer decides; the setting only explains it.
fn io_uring(facts: &Facts<'_>) -> Read<Check> {
    let answer = facts.system.io_uring;
    let answer = answer.ok_or_else(|| Unread::new("the kernel was not queried for io_uring"))?;
    let check = |word: &str| Check::new("kernel.io_uring", Value::Text(word.into()));
    let Err(errno) = answer else {
        return Ok(check("allowed").judge(Verdict::Ok, "this process may make an io_uring"));
    };
    let setting = facts.files.value_if_exists("/proc/sys/kernel/io_uring_disabled", parse::number);
    let (why, fix) = match setting {
        Ok(Some(1)) => (
            "kernel.io_uring_disabled=1 forbids it to users outside of one group".to_owned(),
            "sysctl kernel.io_uring_disabled=0; sysctl kernel.io_uring_group=$(id -g)",
        ),
        Ok(Some(2)) => (
            "kernel.io_uring_disabled=2 forbids it to all processes".to_owned(),
            "sysctl kernel.io_uring_disabled=0",
        ),
        _ if errno == Errno::ENOSYS => (
            "the kernel has no io_uring, or a seccomp profile hides it".to_owned(),
            "run a kernel of 5.1 or later; docker run --security-opt seccomp=PROFILE with \
             io_uring_setup, io_uring_enter and io_uring_register allowed",
        ),
        _ => (
            format!("the call fails, probably because of a seccomp profile: {errno}"),
            "docker run --security-opt seccomp=PROFILE with io_uring_setup, io_uring_enter and \
             io_uring_register allowed",
        ),
    };
    let why = format!("{why}; registering with io_uring is not possible, other registrars are");
    Ok(check("not allowed").judge(Verdict::Warn, why).fix(fix))
}

/// The time to fill the table of a ring grows with the square of the hugepages. Kernels that clone
/// single buffers let kvmem avoid it.
fn ring_clone(facts: &Facts<'_>, requirements: &Requirements) -> Read<Check> {
    let (major, minor) = facts.kernel()?;
    let check = Check::new("kernel.ring_clone", Value::Text(format!("{major}.{minor}")));
    if (major, minor) > CLONE_DROPS {
        return Ok(check.judge(Verdict::Ok, "buffers of rings are cloned; no fault is known"));
    }
    if (major, minor) >= CLONE {
        return Ok(check.judge(
            Verdict::Ok,
            "cloning a buffer of a ring may drop those behind it: kvmem clones only behind the \
             last one",
        ));
    }
    let huge = facts.coverage.hugetlb_bytes.saturating_add(facts.coverage.thp_bytes());
    if huge < SLOW_BYTES || !requirements.is_pinned() {
        return Ok(check.judge(Verdict::Ok, "rings register each buffer in their own table"));
    }
    let unit = huge >> 34;
    let seconds = unit.saturating_mul(unit).saturating_mul(MILLIS_16_GIB) / 1000;
    let why = format!(
        "the time to register hugepages with a ring grows with their square before 6.13: about \
         {seconds} s for each ring"
    );
    Ok(check.judge(Verdict::Warn, why).fix("run a kernel of 6.13 or later; register fewer bytes"))
}
