"""The features in docs/engines.md: each names tests that exist, and a run's outcomes are what it
has shown. ``cargo xtask engines-matrix`` writes the page, and compares it with the outcomes.
"""

from __future__ import annotations

from pathlib import Path

import engine_features
import pytest
from engine_features import (
    ENGINE,
    FEATURES,
    REAL,
    STEPS,
    STORES,
    UNTESTED,
    VLLM,
    WITH_TORCH,
    Feature,
    outcomes,
)
from engines import HERE

ONE = Feature("sglang", "storage", STORES, "test_a.py", ("test_one", "test_two"))
BOTH = {"distributed/test_a.py::test_one[x]": "passed", "distributed/test_a.py::test_two": "passed"}


def test_features_name_tests_that_exist() -> None:
    assert len({(feature.engine, feature.name) for feature in FEATURES}) == len(FEATURES)
    for feature in FEATURES:
        assert bool(feature.tests) == bool(feature.file) == (feature.tested != UNTESTED)
        folder = HERE.parent / "engine" if feature.tested in (ENGINE, STEPS) else HERE
        text = (folder / feature.file).read_text(encoding="utf-8") if feature.file else ""
        for name in feature.tests:
            assert f"def {name}(" in text, name


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang 1.2.3, and 1.1.0 as the oldest."""
    for variable, version in (("SGLANG_DIR", "1.2.3"), ("SGLANG_OLDEST_DIR", "1.1.0")):
        metadata = tmp_path / version / f"sglang-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Name: sglang\nVersion: {version}\n")
        monkeypatch.setenv(variable, str(tmp_path / version))


def test_a_feature_is_tested_if_all_of_its_tests_passed(installed: None) -> None:
    [row] = outcomes(BOTH, False, [ONE])
    assert row == {
        "engine": "sglang",
        "feature": "storage",
        "version": "1.2.3",
        "file": "test_a.py",
        "tested": STORES,
    }
    assert outcomes(BOTH, True, [ONE])[0]["tested"] == WITH_TORCH[STORES]
    for change in ("failed", "skipped"):
        assert outcomes({**BOTH, "distributed/test_a.py::test_one[y]": change}, False, [ONE]) == []
    first = dict(list(BOTH.items())[:1])
    assert outcomes(first, False, [ONE]) == [], "only one of its tests ran"
    other = {nodeid.replace("test_a", "test_b"): result for nodeid, result in BOTH.items()}
    assert outcomes(other, False, [ONE]) == []


def test_a_run_with_pytorch_says_what_still_stands_in() -> None:
    driver = Feature("vllm", "pins", VLLM + "; a stand-in for the driver")
    assert driver.tested_with(False) == driver.tested
    assert driver.tested_with(True) == WITH_TORCH[VLLM] + "; a stand-in for the driver"
    assert Feature("nixl", "blocks", REAL).tested_with(True) == REAL


def test_each_end_of_the_versions_has_a_row(installed: None) -> None:
    both = {
        f"distributed/test_a.py::{name}[{release}-x]": "passed"
        for name in ONE.tests
        for release in ("newest", "oldest")
    }
    assert [row["version"] for row in outcomes(both, False, [ONE])] == ["1.2.3", "1.1.0"]
    both["distributed/test_a.py::test_one[oldest-x]"] = "skipped"
    assert [row["version"] for row in outcomes(both, False, [ONE])] == ["1.2.3"]


def test_untested_features_are_rows_without_a_version() -> None:
    [row] = outcomes({}, False, [Feature("nixl", "RDMA", UNTESTED)])
    assert (row["tested"], row["version"]) == (UNTESTED, "–")


def test_an_outcome_that_fails_at_its_end_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: dict[str, str] = {}
    monkeypatch.setattr(engine_features, "_results", noted)

    def report(when: str, outcome: str) -> None:
        location = ("a", 0, "a")
        found = pytest.TestReport("a", location, {}, outcome, None, when)  # type: ignore[arg-type]
        engine_features.pytest_runtest_logreport(found)

    report("setup", "passed")
    assert noted == {}
    report("call", "passed")
    assert noted == {"a": "passed"}
    report("teardown", "failed")
    assert noted == {"a": "failed"}
    report("call", "passed")
    assert noted == {"a": "failed"}
