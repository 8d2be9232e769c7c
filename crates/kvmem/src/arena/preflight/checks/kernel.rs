//! *Kernel*: its version, and whether this process may make an io_uring.

use super::super::check::{Check, Value, Verdict};
use super::super::facts::Facts;
use crate::arena::machine::parse;
use crate::arena::machine::{Read, Unread};
use crate::sys::Errno;

/// The first kernel with `MADV_POPULATE_WRITE`.
const POPULATE: (u32, u32) = (5, 14);

pub(super) fn checks(facts: &Facts<'_>, checks: &mut Vec<Check>) {
    let need = Value::Text(format!("{}.{}", POPULATE.0, POPULATE.1));
    checks.push(Check::or_unknown("kernel.populate", Some(need), populate(facts)));
    checks.push(Check::or_unknown(
        "kernel.io_uring",
        Some(Value::Text("allowed".into())),
        io_uring(facts),
    ));
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
    let answer = answer.ok_or_else(|| Unread::new("the kernel was not asked for an io_uring"))?;
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
