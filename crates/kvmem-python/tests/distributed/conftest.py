"""What the tests of engines share: whether the engines are there, and clusters of them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster

# Module to import, and what gets it.
ENGINES = {
    "mooncake": ("mooncake.store", "pip install 'mooncake-transfer-engine-non-cuda>=0.3.13' && apt-get install libibverbs1 libnuma1 libcurl4"),
}


def require(engine: str) -> None:
    """Skips what needs an engine that is not there; fails where it must be there."""
    module, remedy = ENGINES[engine]
    try:
        importlib.import_module(module)
    except ImportError as error:
        message = f"{engine} cannot be imported ({error}): {remedy}"
        if os.environ.get("KVMEM_REQUIRE_ENGINES") == "1":
            pytest.fail(message)
        pytest.skip(message)


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with nothing in it but a master. It leaves nothing in /dev/shm."""
    require("mooncake")
    before = shared_memory()
    folder: Path = tmp_path_factory.mktemp("cluster")
    with Cluster(folder) as cluster:
        yield cluster
    assert shared_memory() <= before
