//! *Transparent hugepages*: ordinary memory that the kernel keeps in hugepages if its settings
//! allow it.

use crate::arena::PageSize;

use super::super::check::{Check, Value, Verdict};
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use crate::arena::machine::thp::{self, FOLDER};
use crate::arena::machine::{Read, Unread};

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    // Transparent hugepages are on the ladder, and their rung is reached.
    let requested = facts.coverage.thp_bytes() > 0;
    let if_short = if requirements.is_last(PageSize::Thp) { Verdict::Fail } else { Verdict::Warn };
    let need = |text: &str, requested: bool| requested.then(|| Value::Text(text.to_owned()));
    let private = need("madvise", requested && !requirements.is_shared());
    checks.push(Check::or_unknown(
        "thp.enabled",
        private.clone(),
        enabled(facts, private.is_some(), if_short),
    ));
    checks.push(Check::or_unknown(
        "thp.defrag",
        need("madvise", requested),
        defrag(facts, requested),
    ));
    let shared = need("advise", requested && requirements.is_shared());
    checks.push(Check::or_unknown(
        "thp.shmem",
        shared.clone(),
        shmem(facts, shared.is_some(), if_short),
    ));
    let collapse = collapse(facts, shared.is_some(), if_short);
    checks.push(Check::or_unknown("thp.collapse", None, collapse));
}

fn enabled(facts: &Facts<'_>, requested: bool, if_short: Verdict) -> Read<Check> {
    let (word, path) = thp::effective(facts.files, thp::PRIVATE)?;
    let process_may = !facts.status.as_deref().is_ok_and(thp::disabled_for_process);
    let check = Check::new("thp.enabled", Value::Text(word.clone()));
    Ok(match word.as_str() {
        "always" | "madvise" if !process_may && requested => check
            .judge(
                if_short,
                "this process or its parent has disabled transparent hugepages: the memory will be \
                 in base pages",
            )
            .fix("start it without prctl(PR_SET_THP_DISABLE)"),
        "always" | "madvise" => {
            check.judge(Verdict::Ok, "memory that requests transparent hugepages gets them")
        }
        "never" if requested => {
            let why = "transparent hugepages are off: the memory will be in base pages";
            check.judge(if_short, why).fix(format!("echo madvise > {path}"))
        }
        "never" => check.judge(Verdict::Ok, "off, and not requested"),
        _ => check.judge(
            Verdict::Unknown,
            format!("{path} has a word that this version of kvmem does not know"),
        ),
    })
}

fn defrag(facts: &Facts<'_>, requested: bool) -> Read<Check> {
    let word = thp::common(facts.files, "defrag")?;
    let check = Check::new("thp.defrag", Value::Text(word.clone()));
    Ok(match word.as_str() {
        "always" | "madvise" | "defer+madvise" => check
            .judge(Verdict::Ok, "the kernel makes room for hugepages where memory requests them"),
        "defer" | "never" if requested => {
            let why = "the kernel does not make room for hugepages when memory is touched: \
                fragmented memory will be in base pages";
            check.judge(Verdict::Warn, why).fix(format!("echo defer+madvise > {FOLDER}/defrag"))
        }
        "defer" | "never" => check.judge(Verdict::Ok, "off, and not requested"),
        _ => check.judge(
            Verdict::Unknown,
            format!("{FOLDER}/defrag has a word that this version of kvmem does not know"),
        ),
    })
}

fn shmem(facts: &Facts<'_>, requested: bool, if_short: Verdict) -> Read<Check> {
    let (word, path) = thp::effective(facts.files, thp::SHARED)?;
    // Since Linux 6.1 shared memory can be collapsed under every setting except `deny`.
    let collapses = facts.kernel().is_ok_and(|version| version >= (6, 1));
    let check = Check::new("thp.shmem", Value::Text(word.clone()));
    Ok(match word.as_str() {
        "always" | "within_size" | "advise" | "force" => {
            check.judge(Verdict::Ok, "shared memory that requests transparent hugepages gets them")
        }
        "never" if requested && collapses => check.judge(
            Verdict::Ok,
            "off, so populating collects shared memory into transparent hugepages (MADV_COLLAPSE)",
        ),
        "never" | "deny" if requested => {
            let why = "shared memory gets no transparent hugepages: it will be in base pages";
            check.judge(if_short, why).fix(format!("echo advise > {path}"))
        }
        "never" | "deny" => check.judge(Verdict::Ok, "off, and no shared memory is requested"),
        _ => check.judge(
            Verdict::Unknown,
            format!("{path} has a word that this version of kvmem does not know"),
        ),
    })
}

/// The kernel's answer to an attempt. It counts only where the setting makes no hugepages by
/// itself.
fn collapse(facts: &Facts<'_>, requested: bool, if_short: Verdict) -> Read<Check> {
    let answer = facts.system.collapse;
    let answer = answer.ok_or_else(|| Unread::new("no shared memory was collapsed as a trial"))?;
    let check = |word: &str| Check::new("thp.collapse", Value::Text(word.into()));
    let Err(errno) = answer else {
        return Ok(check("works")
            .judge(Verdict::Ok, "MADV_COLLAPSE has made a transparent hugepage of shared memory"));
    };
    let check = check("fails");
    if !requested {
        return Ok(check.judge(Verdict::Ok, "it fails, and no shared memory is requested"));
    }
    let (word, path) = thp::effective(facts.files, thp::SHARED)?;
    if !matches!(&*word, "never" | "deny") {
        return Ok(check.judge(
            Verdict::Ok,
            format!("it fails, and {path} gives shared memory hugepages without it"),
        ));
    }
    let why = format!("MADV_COLLAPSE fails ({errno}): shared memory will be in base pages");
    Ok(check.judge(if_short, why).fix(format!(
        "echo advise > {path}; run a kernel of 6.1 or later; free memory, if it is short"
    )))
}
