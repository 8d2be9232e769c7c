//! *Engines' matrix*: the table of `docs/engines.md`, from what test runs have found out.
//!
//! A run of the Python tests, one with vLLM on the CPU, and one of the crate for Dynamo leave
//! *outcomes*: features of engines that passed, each with the version and the kind of modules.
//! `cargo xtask engines-matrix` puts them into the table. A row that no run has tested again stays
//! as it is: one with PyTorch, for example, after a run without it. Other versions of a feature
//! that was tested replace its versions.
//!
//! The test of the page compares only what a run has tested: a feature that passed must have a row
//! of the same kind. A version that the page does not know yet is reported and is no fault, because
//! a release of an engine is no change of this repository.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::say;

/// The page.
const PAGE: &str = "docs/engines.md";
/// Where runs leave their outcomes.
const OUTCOMES: &str = "target/engine-outcomes";
/// The lines round the table.
const MARKS: [&str; 2] =
    ["<!-- The table: cargo xtask engines-matrix -->\n", "<!-- The end of the table -->\n"];
/// The head of the table.
const HEAD: &str =
    "| engine | version | feature | tested with | command |\n|---|---|---|---|---|\n";
/// A feature without tests.
const UNTESTED: &str = "untested";
/// No version, or no file.
const NOTHING: &str = "–";
/// The folder of the Python tests.
const TESTS: &str = "crates/kvmem-python/tests/distributed";

/// Whether the page is written or compared.
#[derive(Args)]
pub(crate) struct EnginesMatrixOptions {
    /// Compare the page with the outcomes of the last runs instead of writing it
    #[arg(long)]
    check: bool,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) engine: String,
    pub(crate) version: String,
    pub(crate) feature: String,
    pub(crate) tested: String,
    /// The file with the tests, or a whole command.
    pub(crate) file: String,
}

/// What a run has found out.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outcomes {
    /// All features that the run knows, tested or not, in the order of the table.
    features: Vec<(String, String)>,
    /// Those that passed, and those without tests.
    outcomes: Vec<Row>,
}

/// Writes or compares the page.
pub(crate) fn run(root: &Path, options: &EnginesMatrixOptions) -> Result<ExitCode> {
    if options.check {
        check(root)?;
        println!("{PAGE} has what the last runs have tested");
        return Ok(ExitCode::SUCCESS);
    }
    let outcomes = read(root)?;
    ensure!(
        outcomes.outcomes.iter().any(|row| row.tested != UNTESTED),
        "no run has left outcomes in {OUTCOMES}: cargo xtask test python, cargo xtask test dynamo"
    );
    let path = root.join(PAGE);
    let text = fs::read_to_string(&path)?;
    let written = with_table(&text, &outcomes)?;
    fs::write(&path, &written).with_context(|| format!("cannot write {PAGE}"))?;
    println!("{PAGE}: {}", if written == text { "nothing new" } else { "written" });
    Ok(ExitCode::SUCCESS)
}

/// Returns the folder for the outcomes of a kind of run.
pub(crate) fn folder(root: &Path, run: &str) -> PathBuf {
    root.join(OUTCOMES).join(run)
}

/// Removes the outcomes of a kind of run, before the next one.
pub(crate) fn forget(root: &Path, run: &str) {
    let _ = fs::remove_dir_all(folder(root, run));
}

/// Notes the outcomes of a run whose tests are in Rust: features of one engine, all of which
/// passed.
pub(crate) fn note(
    root: &Path,
    run: &str,
    engine: &str,
    version: &str,
    command: &str,
    features: &[(&str, &str)],
) -> Result<()> {
    let row = |(feature, tested): &(&str, &str)| Row {
        engine: engine.to_owned(),
        version: if *tested == UNTESTED { NOTHING } else { version }.to_owned(),
        feature: (*feature).to_owned(),
        tested: (*tested).to_owned(),
        file: if *tested == UNTESTED { NOTHING } else { command }.to_owned(),
    };
    let outcomes = Outcomes {
        features: features
            .iter()
            .map(|(feature, _)| (engine.to_owned(), (*feature).to_owned()))
            .collect(),
        outcomes: features.iter().map(row).collect(),
    };
    let folder = folder(root, run);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("outcomes.json"), outcomes.to_json().to_string())?;
    Ok(())
}

/// Fails if the page lacks what the last runs have tested.
pub(crate) fn check(root: &Path) -> Result<()> {
    let outcomes = read(root)?;
    let (faults, news) = compare(&rows(&fs::read_to_string(root.join(PAGE))?)?, &outcomes);
    news.iter().for_each(|line| say!("({line})"));
    ensure!(
        faults.is_empty(),
        "{PAGE} is out of date: cargo xtask engines-matrix writes it:\n{}",
        faults.join("\n")
    );
    Ok(())
}

/// Reads the outcomes of all runs. Engines in the order of the runs' names: Dynamo comes last.
fn read(root: &Path) -> Result<Outcomes> {
    let mut all = Outcomes::default();
    for run in ["python", "engine", "dynamo"] {
        let files = fs::read_dir(folder(root, run)).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = files.map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let text = fs::read_to_string(&path)?;
            let one = Outcomes::of_json(&text);
            all.join(one.with_context(|| format!("{} has no outcomes", path.display()))?);
        }
    }
    Ok(all)
}

impl Outcomes {
    fn of_json(text: &str) -> Option<Outcomes> {
        let value: Value = serde_json::from_str(text).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let feature = |pair: &Value| Some((text(&pair[0])?, text(&pair[1])?));
        let row = |row: &Value| {
            Some(Row {
                engine: text(&row["engine"])?,
                version: text(&row["version"])?,
                feature: text(&row["feature"])?,
                tested: text(&row["tested"])?,
                file: text(&row["file"])?,
            })
        };
        Some(Outcomes {
            features: value["features"].as_array()?.iter().map(feature).collect::<Option<_>>()?,
            outcomes: value["outcomes"].as_array()?.iter().map(row).collect::<Option<_>>()?,
        })
    }

    fn to_json(&self) -> Value {
        let row = |row: &Row| {
            let Row { engine, version, feature, tested, file } = row;
            json!({"engine": engine, "version": version, "feature": feature, "tested": tested,
                "file": file})
        };
        json!({
            "features": self.features,
            "outcomes": self.outcomes.iter().map(row).collect::<Vec<_>>(),
        })
    }

    fn join(&mut self, other: Outcomes) {
        for feature in other.features {
            if !self.features.contains(&feature) {
                self.features.push(feature);
            }
        }
        for row in other.outcomes {
            if !self.outcomes.contains(&row) {
                self.outcomes.push(row);
            }
        }
    }

    /// Returns the engines whose features the runs know.
    fn engines(&self) -> BTreeSet<&str> {
        self.features.iter().map(|(engine, _)| engine.as_str()).collect()
    }
}

/// Splits a page into the text before the table, the table and the text behind it.
fn split(text: &str) -> Result<(&str, &str, &str)> {
    let parts = text.split_once(MARKS[0]).and_then(|(before, rest)| {
        rest.split_once(MARKS[1]).map(|(table, behind)| (before, table, behind))
    });
    parts.with_context(|| format!("{PAGE} lacks the lines {MARKS:?}"))
}

/// Returns the rows of a page.
fn rows(text: &str) -> Result<Vec<Row>> {
    let (_, table, _) = split(text)?;
    let lines = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    lines
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [engine, version, feature, tested, command] = cells[..] else {
                bail!("{PAGE}: a row without five cells: {line}");
            };
            let text = |cell: &str| cell.to_owned();
            let command = command.trim_matches('`');
            let file = command.strip_prefix(&format!("pytest {TESTS}/")).unwrap_or(command);
            Ok(Row {
                engine: text(engine),
                version: text(version),
                feature: text(feature),
                tested: text(tested),
                file: text(file),
            })
        })
        .collect()
}

/// Returns the page with a new table.
fn with_table(text: &str, outcomes: &Outcomes) -> Result<String> {
    let (before, _, behind) = split(text)?;
    let mut table = String::new();
    for row in merge(&rows(text)?, outcomes) {
        let Row { engine, version, feature, tested, file } = &row;
        let command = match file.as_str() {
            NOTHING => NOTHING.to_owned(),
            file if file.ends_with(".py") => format!("`pytest {TESTS}/{file}`"),
            command => format!("`{command}`"),
        };
        table += &format!("| {engine} | {version} | {feature} | {tested} | {command} |\n");
    }
    Ok(format!("{before}{}\n{HEAD}{table}\n{}{behind}", MARKS[0], MARKS[1]))
}

/// Returns the rows of the page after these outcomes.
fn merge(page: &[Row], outcomes: &Outcomes) -> Vec<Row> {
    let mut all = Vec::new();
    for (engine, feature) in &outcomes.features {
        let here = |row: &&Row| row.engine == *engine && row.feature == *feature;
        let new = || outcomes.outcomes.iter().filter(here).filter(|row| row.tested != UNTESTED);
        let stays =
            |row: &&Row| row.tested != UNTESTED && !new().any(|newer| newer.tested == row.tested);
        let mut found: Vec<Row> = page.iter().filter(here).filter(stays).cloned().collect();
        found.extend(new().cloned());
        found.sort_by(|a, b| b.version.cmp(&a.version).then_with(|| a.tested.cmp(&b.tested)));
        found.dedup();
        if found.is_empty() {
            let row = |tested: &str| Row {
                engine: engine.clone(),
                version: NOTHING.to_owned(),
                feature: feature.clone(),
                tested: tested.to_owned(),
                file: NOTHING.to_owned(),
            };
            found.push(row(UNTESTED));
        }
        all.extend(found);
    }
    let known = outcomes.engines();
    // An engine of no run keeps its rows.
    all.extend(page.iter().filter(|row| !known.contains(row.engine.as_str())).cloned());
    all
}

/// Returns the faults of a page after these outcomes, and what is new without being a fault.
fn compare(page: &[Row], outcomes: &Outcomes) -> (Vec<String>, Vec<String>) {
    let (mut faults, mut news) = (Vec::new(), Vec::new());
    let known = outcomes.engines();
    for row in page.iter().filter(|row| known.contains(row.engine.as_str())) {
        let feature = (row.engine.clone(), row.feature.clone());
        if !outcomes.features.contains(&feature) {
            faults.push(format!("{}: no test shows \"{}\"", row.engine, row.feature));
        }
    }
    for (engine, feature) in &outcomes.features {
        if !page.iter().any(|row| row.engine == *engine && row.feature == *feature) {
            faults.push(format!("{engine}: \"{feature}\" has no row"));
        }
    }
    for row in outcomes.outcomes.iter().filter(|row| row.tested != UNTESTED) {
        let Row { engine, version, feature, tested, .. } = row;
        let same = || {
            page.iter().filter(|there| {
                there.engine == *engine && there.feature == *feature && there.tested == *tested
            })
        };
        if same().next().is_none() {
            faults.push(format!("{engine}: \"{feature}\" was tested ({tested}), with no such row"));
        } else if !same().any(|there| there.version == *version) {
            news.push(format!(
                "{engine} {version}: \"{feature}\" was tested, and {PAGE} has other versions: \
                 cargo xtask engines-matrix"
            ));
        }
    }
    (faults, news)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(version: &str, feature: &str, tested: &str) -> Row {
        let file = if tested == UNTESTED { NOTHING } else { "test_a.py" };
        Row {
            engine: "sglang".into(),
            version: version.into(),
            feature: feature.into(),
            tested: tested.into(),
            file: file.into(),
        }
    }

    fn outcomes(features: &[&str], rows: Vec<Row>) -> Outcomes {
        let feature = |name: &&str| ("sglang".to_owned(), (*name).to_owned());
        Outcomes { features: features.iter().map(feature).collect(), outcomes: rows }
    }

    fn page(rows: Vec<Row>) -> String {
        let empty = format!("before\n{}{}behind\n", MARKS[0], MARKS[1]);
        let names: Vec<&str> = rows.iter().map(|row| row.feature.as_str()).collect();
        with_table(&empty, &outcomes(&names, rows.clone())).unwrap()
    }

    #[test]
    fn a_table_is_written_and_read_back() {
        let all = vec![row("1.0", "a", "real"), row(NOTHING, "b", UNTESTED)];
        let text = page(all.clone());
        assert!(text.starts_with("before\n<!-- The table") && text.ends_with("behind\n"), "{text}");
        assert!(text.contains("| sglang | 1.0 | a | real | `pytest crates/"), "{text}");
        assert!(text.contains("| sglang | – | b | untested | – |"), "{text}");
        assert_eq!(rows(&text).unwrap(), all);
        assert!(rows("no marks").unwrap_err().to_string().contains("lacks the lines"));
    }

    #[test]
    fn outcomes_are_written_and_read_back() {
        let all = outcomes(&["a"], vec![row("1.0", "a", "real")]);
        assert_eq!(Outcomes::of_json(&all.to_json().to_string()), Some(all));
        for damaged in ["", "{}", r#"{"features": [["a"]], "outcomes": []}"#] {
            assert_eq!(Outcomes::of_json(damaged), None);
        }
    }

    #[test]
    fn what_a_run_has_not_tested_stays() {
        let old = rows(&page(vec![row("1.0", "a", "real"), row("1.0", "b", "torch")])).unwrap();
        let new = outcomes(&["a", "b"], vec![row("1.1", "a", "real")]);
        assert_eq!(merge(&old, &new), [row("1.1", "a", "real"), row("1.0", "b", "torch")]);
        // A kind more, and both ends of the versions.
        let new = outcomes(
            &["a", "b"],
            vec![row("1.1", "a", "torch"), row("1.1", "b", "torch"), row("0.9", "b", "torch")],
        );
        let merged = merge(&old, &new);
        let wanted = [
            row("1.1", "a", "torch"),
            row("1.0", "a", "real"),
            row("1.1", "b", "torch"),
            row("0.9", "b", "torch"),
        ];
        assert_eq!(merged, wanted);
    }

    #[test]
    fn a_feature_that_no_run_has_passed_is_untested() {
        let merged = merge(&[], &outcomes(&["a"], Vec::new()));
        assert_eq!(merged, [row(NOTHING, "a", UNTESTED)]);
        let tested = merge(&merged, &outcomes(&["a"], vec![row("1.0", "a", "real")]));
        assert_eq!(tested, [row("1.0", "a", "real")]);
        // A row of a feature that is gone goes too; an engine of no run stays.
        let mut other = row("2.0", "x", "real");
        other.engine = "dynamo".into();
        let old = [row("1.0", "gone", "real"), other.clone()];
        assert_eq!(
            merge(&old, &outcomes(&["a"], vec![row("1.0", "a", "real")])),
            [row("1.0", "a", "real"), other]
        );
    }

    #[test]
    fn only_what_was_tested_is_compared() {
        let old = [row("1.0", "a", "real"), row("1.0", "b", "real")];
        let same = outcomes(&["a", "b"], vec![row("1.0", "a", "real")]);
        assert_eq!(compare(&old, &same), (vec![], vec![]));
        let newer = outcomes(&["a", "b"], vec![row("1.1", "a", "real")]);
        let (faults, news) = compare(&old, &newer);
        assert!(faults.is_empty() && news[0].contains("sglang 1.1"), "{news:?}");
        let (faults, _) = compare(&old, &outcomes(&["a", "b"], vec![row("1.0", "a", "torch")]));
        assert_eq!(faults, ["sglang: \"a\" was tested (torch), with no such row"]);
        let (faults, _) = compare(&old, &outcomes(&["a", "c"], Vec::new()));
        assert_eq!(faults, ["sglang: no test shows \"b\"", "sglang: \"c\" has no row"],);
    }

    #[test]
    fn the_page_of_the_repository_has_a_table() {
        let root = crate::workspace::root().unwrap();
        let text = fs::read_to_string(root.join(PAGE)).unwrap();
        let found = rows(&text).unwrap();
        assert!(found.iter().any(|row| row.engine == "vllm" && row.tested != UNTESTED));
        let (_, table, _) = split(&text).unwrap();
        assert!(table.starts_with(&format!("\n{HEAD}")), "{table}");
    }
}
