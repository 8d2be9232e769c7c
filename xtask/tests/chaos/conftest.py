"""Fixtures of the attacks. Each attack is a test; ``--quick`` leaves out those marked ``slow``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attack import Chaos


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: it takes longer than some seconds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = [item for item in items if item.get_closest_marker("slow")]
    if config.getoption("--quick"):
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.fixture
def chaos(request: pytest.FixtureRequest, command: Path) -> Iterator[Chaos]:
    config = request.config
    seed = f"{config.getoption('--seed')} {request.node.name}"
    chaos = Chaos(command, seed, config.getoption("--quick"))
    yield chaos
    chaos.clean()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a test whose runs went wrong, after all of them."""
    try:
        return (yield)
    finally:
        chaos = getattr(item, "funcargs", {}).get("chaos")
        if chaos:
            chaos.complaints += chaos.settings.restore()
            wrong = "\n  ".join(chaos.complaints)
            told = f"{len(chaos.complaints)} of {chaos.runs} runs, with --seed"
            assert not wrong, f"{told} {item.config.getoption('--seed')}:\n  {wrong}"
