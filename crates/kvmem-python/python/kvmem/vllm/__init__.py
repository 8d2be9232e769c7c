"""*vLLM*: the host memory and the tiers of vLLM's KV offloading, written against 0.32 and 0.33.

Options of vLLM's ``OffloadingConnector`` name these classes:

- :class:`KvmemOffloadingSpec` and :class:`KvmemTieringOffloadingSpec`: vLLM's CPU tier in a
  :class:`kvmem.Region`, which the processes of an engine share by its descriptor.
- :class:`KvmemPolicy`: an eviction policy that one long scan does not empty.
- :class:`KvmemTier`: a disk or a Mooncake cluster as a tier after the CPU tier.
- :class:`KvmemSharedSpec`: the CPU tier in the memory of ``kvmem serve``, which several engines
  share.

vLLM finds :func:`register` through the entry point group ``vllm.general_plugins``, in every process
that it starts. Importing this module imports neither vLLM nor PyTorch. The first access to a class
imports both, and raises :class:`UnsupportedVersionError` for another release of vLLM."""

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any

from ..storage.versions import UnsupportedVersionError
from ._version import check_version
from .errors import (
    HandoverError,
    LayoutMismatchError,
    NodeLayoutError,
    PinLostError,
    PlacementError,
    SpecUnusedError,
)

if TYPE_CHECKING:
    from .policy import KvmemPolicy
    from .region import NodeRegion, OffloadRegion
    from .shared import KvmemSharedSpec
    from .spec import KvmemOffloadingSpec, KvmemTieringOffloadingSpec
    from .tier import KvmemTier

__all__ = [
    "HandoverError",
    "KvmemOffloadingSpec",
    "KvmemPolicy",
    "KvmemSharedSpec",
    "KvmemTier",
    "KvmemTieringOffloadingSpec",
    "LayoutMismatchError",
    "NodeLayoutError",
    "NodeRegion",
    "OffloadRegion",
    "PinLostError",
    "PlacementError",
    "SpecUnusedError",
    "UnsupportedVersionError",
    "check_registered",
    "check_version",
    "register",
]

# Child of vLLM's logger: vLLM configures no others.
_log = logging.getLogger("vllm.kvmem")

_MODULES = {
    "KvmemOffloadingSpec": "spec",
    "KvmemTieringOffloadingSpec": "spec",
    "KvmemSharedSpec": "shared",
    "KvmemPolicy": "policy",
    "KvmemTier": "tier",
    "OffloadRegion": "region",
    "NodeRegion": "region",
}

_SPECS = ("KvmemOffloadingSpec", "KvmemTieringOffloadingSpec", "KvmemSharedSpec")

_REPLACED = {
    "CPUOffloadingSpec": "KvmemOffloadingSpec",
    "TieringOffloadingSpec": "KvmemTieringOffloadingSpec",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_version()
    found = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = found
    return found


def register() -> None:
    """Makes the classes known to vLLM by their names. vLLM calls this in every process; it may be
    called several times. A release of vLLM that is not supported is a warning if ``KVMEM_VLLM`` is
    1, and otherwise nothing: an installed plugin must not keep an engine from starting."""
    wanted = os.environ.get("KVMEM_VLLM") == "1"
    try:
        check_version()
        _register(replace=wanted)
    except (UnsupportedVersionError, ImportError, AttributeError) as error:
        _log.log(
            logging.WARNING if wanted else logging.DEBUG,
            "vLLM's host memory is not kvmem's: %s",
            error,
        )


def _register(*, replace: bool) -> None:
    from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    for name in _SPECS:
        if name not in OffloadingSpecFactory._registry:
            OffloadingSpecFactory.register_spec(name, __name__, name)
    if "KvmemPolicy" not in CachePolicyFactory._registry:
        CachePolicyFactory.register_cache_policy("KvmemPolicy", __name__, "KvmemPolicy")
    if "KvmemTier" not in SecondaryTierFactory._registry:
        SecondaryTierFactory.register_tier("KvmemTier", __name__, "KvmemTier")
    if replace:
        for theirs, ours in _REPLACED.items():
            OffloadingSpecFactory._registry[theirs] = lambda ours=ours: __getattr__(ours)
        _log.info("KVMEM_VLLM=1: vLLM's CPU tiers are kvmem's")


def check_registered() -> None:
    """Raises :class:`SpecUnusedError`, with the reason, unless vLLM's plugins have made kvmem known
    in this process. Imports vLLM. Raises :class:`UnsupportedVersionError` for another release of
    vLLM."""
    check_version()
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    if "KvmemOffloadingSpec" not in OffloadingSpecFactory._registry:
        plugins = os.environ.get("VLLM_PLUGINS")
        raise SpecUnusedError(
            "vLLM does not know kvmem: its plugins have not been loaded in this process, or "
            f"VLLM_PLUGINS={plugins!r} leaves kvmem out",
            remedy="call vllm.plugins.load_general_plugins(), and let VLLM_PLUGINS be unset or "
            "name kvmem",
        )
