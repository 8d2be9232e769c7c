"""The table of ``docs/engines.md``, from what test runs have found out.

A run of the Python tests, one with vLLM on the CPU, and one of the crate for Dynamo leave
*outcomes*: features of engines that passed, each with the version and the kind of modules. ``python
table.py ROOT write`` puts them into the table. A row that no run has tested again stays as it is:
one with PyTorch, for example, after a run without it. Other versions of a feature that was tested
replace its versions.

``python table.py ROOT check`` compares only what a run has tested: a feature that passed must have
a row of the same kind. A version that the page does not know yet is reported and is no fault,
because a release of an engine is no change of this repository.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PAGE = "docs/engines.md"
# Where runs leave their outcomes. Engines stand in the order of the runs: Dynamo comes last.
OUTCOMES = "target/engine-outcomes"
RUNS = ("python", "engine", "dynamo")
MARKS = ("<!-- The table: cargo xtask engines-matrix -->\n", "<!-- The end of the table -->\n")
HEAD = "| engine | version | feature | tested with | command |\n|---|---|---|---|---|\n"
TESTS = "pytest crates/kvmem-python/tests/distributed/"
UNTESTED, NOTHING = "untested", "–"

Feature = tuple[str, str]


class Row(NamedTuple):
    """A row of the table. ``file`` has the tests, or is a whole command."""

    engine: str
    version: str
    feature: str
    tested: str
    file: str

    def __str__(self) -> str:
        prefix = TESTS if self.file.endswith(".py") else ""
        command = self.file if self.file == NOTHING else f"`{prefix}{self.file}`"
        return f"| {' | '.join([*self[:4], command])} |\n"


def read(root: Path) -> tuple[list[Feature], list[Row]]:
    """Reads the outcomes of all runs: the features that they know, and what they have tested."""
    features: dict[Feature, None] = {}
    rows: dict[Row, None] = {}
    for file in (file for run in RUNS for file in sorted((root / OUTCOMES / run).glob("*.json"))):
        outcomes = json.loads(file.read_text(encoding="utf-8"))
        features |= dict.fromkeys((engine, name) for engine, name in outcomes["features"])
        rows |= dict.fromkeys(Row(**row) for row in outcomes["outcomes"])
    return list(features), [row for row in rows if row.tested != UNTESTED]


def split(text: str) -> tuple[str, str, str]:
    """Splits a page into the text before the table, the table and the text behind it."""
    before, first, rest = text.partition(MARKS[0])
    table, second, behind = rest.partition(MARKS[1])
    if not first or not second:
        raise SystemExit(f"{PAGE} lacks the lines {MARKS}")
    return before, table, behind


def rows_of(text: str) -> list[Row]:
    """Returns the rows of a page."""
    rows = [line for line in split(text)[1].splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [Row(*row[:4], row[4].strip("`").removeprefix(TESTS)) for row in cells]


def with_table(text: str, rows: Iterable[Row]) -> str:
    before, _, behind = split(text)
    return f"{before}{MARKS[0]}\n{HEAD}{''.join(map(str, rows))}\n{MARKS[1]}{behind}"


def merge(page: list[Row], features: list[Feature], rows: list[Row]) -> list[Row]:
    """Returns the rows of the page after these outcomes."""
    merged = []
    for engine, feature in features:
        here = [row for row in rows if (row.engine, row.feature) == (engine, feature)]
        newer = {row.tested for row in here} | {UNTESTED}
        old = [row for row in page if (row.engine, row.feature) == (engine, feature)]
        found = {row for row in old if row.tested not in newer} | set(here)
        in_order = sorted(
            sorted(found, key=lambda row: row.tested), key=lambda row: row.version, reverse=True
        )
        merged += in_order or [Row(engine, NOTHING, feature, UNTESTED, NOTHING)]
    # An engine of no run keeps its rows.
    known = {engine for engine, _ in features}
    return merged + [row for row in page if row.engine not in known]


def compare(
    page: list[Row], features: list[Feature], rows: list[Row]
) -> tuple[list[str], list[str]]:
    """Returns the faults of a page after these outcomes, and what is new without being a fault."""
    known = {engine for engine, _ in features}
    listed = {(row.engine, row.feature) for row in page}
    faults = [
        f'{engine}: no test shows "{feature}"'
        for engine, feature in sorted(listed - set(features))
        if engine in known
    ]
    faults += [f'{each[0]}: "{each[1]}" has no row' for each in features if each not in listed]
    news = []
    for row in rows:
        of = (row.engine, row.feature, row.tested)
        same = [there for there in page if (there.engine, there.feature, there.tested) == of]
        was = f'"{row.feature}" was tested'
        if not same:
            faults.append(f"{row.engine}: {was} ({row.tested}), with no such row")
        elif row.version not in {there.version for there in same}:
            news.append(f"({row.engine} {row.version}: {was}, and {PAGE} has other versions)")
    return faults, news


def main() -> None:
    root, action = Path(sys.argv[1]), sys.argv[2]
    path = root / PAGE
    text = path.read_text(encoding="utf-8")
    features, rows = read(root)
    if action == "check":
        faults, news = compare(rows_of(text), features, rows)
        print(*news, sep="\n")
        if faults:
            told = f"{PAGE} is out of date: cargo xtask engines-matrix writes it"
            sys.exit("\n".join([told, *faults]))
    elif not rows:
        sys.exit(f"no run has left outcomes in {OUTCOMES}: cargo xtask test python")
    else:
        written = with_table(text, merge(rows_of(text), features, rows))
        path.write_text(written, encoding="utf-8")
        print(f"{PAGE}: {'nothing new' if written == text else 'written'}")


if __name__ == "__main__":
    main()
