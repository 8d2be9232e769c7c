"""Options and fixtures of the chores' tests, which ``cargo xtask`` runs with pytest."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--command", type=Path, help="the built kvmem; kvmem-lab lies beside it")
    parser.addoption("--xtask", type=Path, help="the program of the chores")
    parser.addoption("--mooncake-packages", default="", help="Debian packages that Mooncake needs")
    parser.addoption("--seed", type=int, default=0, help="the seed of random choices")
    parser.addoption("--quick", action="store_true", help="only attacks of less than a minute")


@pytest.fixture
def command(request: pytest.FixtureRequest) -> Path:
    return request.config.getoption("--command")
