"""Fixtures of the tests with a real engine: a model, a process that forks engines, and nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import model
import pytest
from engine_node import MIB, Node
from engine_process import Engines
from leftovers import in_shm, remove_unused


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.write(tmp_path_factory.mktemp("models") / "small", dtype="float32")


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    before = in_shm()
    engines = Engines(tmp_path_factory.mktemp("engines"))
    yield engines
    engines.stop()
    # Tests kill engines with all of their processes.
    print("removed from /dev/shm:", sorted(remove_unused(before)))
    print(engines.log.read_text(encoding="utf-8", errors="replace")[-20_000:])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(size: int = 512 * MIB, *options: str) -> Node:
        made.append(Node(tmp_path / f"node{len(made)}", size, *options))
        return made[-1]

    yield make
    for node in made:
        node.stop()
