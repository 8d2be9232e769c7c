//! *Pins*: drivers that pin all bytes of one call at once fail if the call is large. The limits and
//! their causes are in the [machine's module](crate::arena::machine::pins).

use super::super::check::{Check, Value, Verdict, human_bytes};
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use crate::arena::machine::Read;
use crate::arena::machine::pins::{self, PIECE_BYTES};

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    let pinned = requirements.is_pinned().then_some(facts.coverage.mapped_bytes);
    let need = pinned.map(Value::Bytes);
    checks.push(Check::or_unknown("pin.driver", need.clone(), driver(facts, pinned)));
    checks.push(Check::or_unknown("pin.kernel", need, kernel(facts, pinned)));
}

fn driver(facts: &Facts<'_>, pinned: Option<u64>) -> Read<Check> {
    let Some(driver) = pins::nvidia_driver(facts.files)? else {
        return Ok(Check::new("pin.driver", Value::Text("none".into()))
            .judge(Verdict::Ok, "no driver for NVIDIA's GPUs is loaded"));
    };
    let check = Check::new("pin.driver", Value::Text(driver.version));
    Ok(match driver.max_bytes {
        None => check.judge(Verdict::Ok, "this driver has no known limit for one call"),
        Some(max) => {
            let cause = "drivers from r580 on pin less than 512 GiB with one call";
            judge(check, max, pinned, cause)
        }
    })
}

fn kernel(facts: &Facts<'_>, pinned: Option<u64>) -> Read<Check> {
    let (major, minor) = facts.kernel()?;
    let check = Check::new("pin.kernel", Value::Text(format!("{major}.{minor}")));
    let Some(max) = pins::kernel_max_bytes((major, minor)) else {
        return Ok(check.judge(Verdict::Ok, "this kernel has no known limit for one call"));
    };
    if pins::nvidia_driver(facts.files).is_ok_and(|driver| driver.is_none()) {
        return Ok(check.judge(
            Verdict::Ok,
            "this kernel limits calls of drivers for GPUs, and none is loaded",
        ));
    }
    Ok(judge(check, max, pinned, "Linux 6.11 to 6.13 pin at most 2 GiB with one call of a driver"))
}

/// Compares the pinned bytes with the largest call. kvmem stays below it; other programs may not.
fn judge(check: Check, max: u64, pinned: Option<u64>, cause: &str) -> Check {
    let piece = human_bytes(PIECE_BYTES);
    match pinned {
        Some(bytes) if bytes > max => {
            let why = format!(
                "{cause}: kvmem's registrar `cuda` pins pieces of {piece}, and programs that pin \
                 the memory themselves may not"
            );
            check.judge(Verdict::Warn, why).fix(format!(
                "register the memory with the device `cuda`; let programs pin it in pieces of at \
                 most {piece}"
            ))
        }
        Some(_) => check.judge(Verdict::Ok, format!("{cause}, which is enough")),
        None => check.judge(Verdict::Ok, "no memory will be pinned"),
    }
}
