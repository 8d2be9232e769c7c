//! *Transparent hugepages*: base pages that the kernel joins, if its settings let it.

use crate::arena::pages::PageSize;

use super::super::check::{Check, Value, Verdict};
use super::super::facts::Facts;
use super::super::machine::Read;
use super::super::parse;
use super::super::wish::Requirements;
use super::known;

const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    // Asked for, and reached by the ladder.
    let requested = facts.cover.thp_bytes() > 0;
    let below = if requirements.is_last(PageSize::Thp) { Verdict::Fail } else { Verdict::Warn };
    let need = |text: &str, requested: bool| requested.then(|| Value::Text(text.to_owned()));
    let private = need("madvise", requested && !requirements.is_shared());
    checks.push(known("thp.enabled", private.clone(), enabled(facts, private.is_some(), below)));
    checks.push(known("thp.defrag", need("madvise", requested), defrag(facts, requested)));
    let shared = need("advise", requested && requirements.is_shared());
    checks.push(known("thp.shmem", shared.clone(), shmem(facts, shared.is_some(), below)));
}

fn enabled(facts: &Facts<'_>, requested: bool, below: Verdict) -> Read<Check> {
    let (word, path) = facts.thp_2m("enabled")?;
    // Kernels before 5.0 do not say whether the process has switched it off for itself.
    let number = |text: &str, key: &str| parse::number(parse::field(text, key)?);
    let process_may = facts.status("THP_enabled", number) != Ok(0);
    let check = Check::new("thp.enabled", Value::Text(word.clone()));
    Ok(match word.as_str() {
        "always" | "madvise" if !process_may && requested => check
            .judge(
                below,
                "this process or its parent has switched transparent hugepages off: they will be base pages",
            )
            .fix("start it without prctl(PR_SET_THP_DISABLE)"),
        "always" | "madvise" => {
            check.judge(Verdict::Ok, "memory that asks for it gets transparent hugepages")
        }
        "never" if requested => {
            let why = "transparent hugepages are off: they will be base pages";
            check.judge(below, why).fix(format!("echo madvise > {path}"))
        }
        "never" => check.judge(Verdict::Ok, "off, but not asked for"),
        _ => check.judge(Verdict::Unknown, format!("{path} has a word that this version does not know")),
    })
}

fn defrag(facts: &Facts<'_>, requested: bool) -> Read<Check> {
    let word = facts.thp("defrag")?;
    let check = Check::new("thp.defrag", Value::Text(word.clone()));
    Ok(match word.as_str() {
        "always" | "madvise" | "defer+madvise" => check
            .judge(Verdict::Ok, "the kernel makes room for hugepages where memory asks for them"),
        "defer" | "never" if requested => {
            let why = "the kernel does not make room for hugepages when memory is touched: in broken-up memory they will be base pages";
            check.judge(Verdict::Warn, why).fix(format!("echo defer+madvise > {FOLDER}/defrag"))
        }
        "defer" | "never" => check.judge(Verdict::Ok, "off, but not asked for"),
        _ => check.judge(
            Verdict::Unknown,
            format!("{FOLDER}/defrag has a word that this version does not know"),
        ),
    })
}

fn shmem(facts: &Facts<'_>, requested: bool, below: Verdict) -> Read<Check> {
    let (word, path) = facts.thp_2m("shmem_enabled")?;
    // Those of shared memory can be collapsed since Linux 6.1, whatever the setting says but
    // `deny`.
    let collapses = facts.kernel().is_ok_and(|version| version >= (6, 1));
    let check = Check::new("thp.shmem", Value::Text(word.clone()));
    Ok(match word.as_str() {
        "always" | "within_size" | "advise" | "force" => {
            check.judge(Verdict::Ok, "shared memory that asks for it gets transparent hugepages")
        }
        "never" if requested && collapses => check.judge(
            Verdict::Ok,
            "off, so shared memory is collected into transparent hugepages when it is populated (MADV_COLLAPSE)",
        ),
        "never" | "deny" if requested => {
            let why = "shared memory gets no transparent hugepages: they will be base pages";
            check.judge(below, why).fix(format!("echo advise > {path}"))
        }
        "never" | "deny" => check.judge(Verdict::Ok, "off, but no shared memory is asked for"),
        _ => check.judge(Verdict::Unknown, format!("{path} has a word that this version does not know")),
    })
}
