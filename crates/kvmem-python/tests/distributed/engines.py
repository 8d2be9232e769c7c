"""Whether the engines that some tests meet are there. Without one its tests are skipped by name, or fail where KVMEM_REQUIRE_ENGINES=1."""

from __future__ import annotations

import importlib
import os

import pytest

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
