"""*Storage*: SGLang's third level of HiCache in kvmem's stores. Importing this module imports
SGLang.

SGLang builds :class:`KvmemStorage` by its backend ``dynamic``, from the extra configuration, whose
``kvmem`` has the options of :class:`kvmem.storage.StorageOptions`. With ``"interface_v1": 1``
pages are copied between the host pool and the store; otherwise SGLang makes tensors of them first.

**Keys.** The key of a page is a digest of SGLang's hash of its tokens, and of everything that the
bytes depend on: docs/distributed/sglang.md lists it. SGLang's page hashes name an adapter by its
name and path, or by a random number if it is loaded later, so the files of the adapters on the
command line are part of the keys."""

import functools
import hashlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    PoolHitPolicy,
    PoolName,
    PoolTransferResult,
)

from ..errors import InvalidArgumentError
from ..storage import StorageOptions, Value, ValueStore, ValueStoreStats, check_version, open_store
from ..storage.data_type import data_type_of
from ..storage.parents import KnownParents
from ..storage.weights import digest_of, fingerprint, weights_of
from . import SUPPORTED

_log = logging.getLogger("kvmem")

KV = str(PoolName.KV.value)
_SHAPE = (
    "layer_num",
    "start_layer",
    "head_num",
    "head_group_num",
    "head_dim",
    "v_head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "kv_cache_dim",
    "size_per_token",
    "element_dim",
)
"""Attributes of host pools that say how the bytes of a page are arranged."""


def identity(config: Any) -> tuple[str, str]:
    """Returns what names the engine in keys: for pools that are split among ranks, and for those
    that are the same on all ranks of the tensor parallelism."""
    extra = config.extra_config or {}
    model = (config.model_name or "").replace("/", "-")
    shard = f"_{config.pp_size}_{config.pp_rank}" if config.pp_size > 1 else ""
    if config.attn_cp_size > 1:
        shard += f"_cp{config.attn_cp_rank}_{config.attn_cp_size}"
    tag = extra.get("extra_backend_tag")
    model = f"{tag}_{model}" if tag else model
    split = f"_{model}_{config.tp_rank}_{config.tp_size}{shard}"
    same = f"_{model}{shard}" if config.is_mla_model else split
    if config.dcp_size > 1:
        dcp = (
            f"_tp{config.tp_size}_dcp{config.dcp_rank}_{config.dcp_size}"
            f"_page{config.logical_page_size}"
        )
        split, same = split + dcp, same + dcp
    return split, same


_TYPES = (
    "quantization",
    "dtype",
    "kv_cache_dtype",
    "json_model_override_args",
    "torchao_config",
    "modelopt_quant",
    "quantize_and_serve",
)
"""Arguments of the server that change the values of pages, other than the weights."""


def server_args() -> Any:
    """Returns the arguments of SGLang's server; None where there are none."""
    try:
        from sglang.srt.runtime_context import get_server_args

        return get_server_args()
    except (ImportError, AttributeError, ValueError):
        return None


def weights_identity(config: Any, options: StorageOptions, args: Any) -> tuple[str, str]:
    """Returns digests of the weights and of all else that changes the values of pages: for the
    pages of the model, and for those of its draft model. ``args``: the server's arguments."""
    model = getattr(args, "model_path", None) or config.model_name or ""
    scales = getattr(args, "quantization_param_path", None)
    target = {
        "weights": _weights(model, getattr(args, "revision", None), options),
        "types": [str(getattr(args, name, None)) for name in _TYPES],
        "scales": fingerprint(scales) if scales else None,
        "adapters": sorted(
            [str(it.lora_name), str(it.lora_path), fingerprint(str(it.lora_path))]
            for it in getattr(args, "lora_paths", None) or ()
        ),
    }
    draft = getattr(args, "speculative_draft_model_path", None)
    both: dict[str, Any] = {"target": target, "draft": None}
    if draft:
        revision = getattr(args, "speculative_draft_model_revision", None)
        quantization = getattr(args, "speculative_draft_model_quantization", None)
        both["draft"] = [draft, _weights(draft, revision, options), str(quantization)]
    return digest_of(target, 16).hex(), digest_of(both, 16).hex()


def _weights(model: str, revision: str | None, options: StorageOptions) -> Any:
    remedy = 'set "weights" of "kvmem" to a text that changes with them'
    return weights_of(model, options.weights_of(model), remedy, revision)


_storages: weakref.WeakSet["KvmemStorage"] = weakref.WeakSet()


def weights_replaced() -> None:
    """Makes the storages of this process leave their pages: the engine has other weights now. From
    now on their keys have a random part, so nothing of before is found, and other engines with the
    old weights find nothing of this one. Ranks that read pages of another rank find nothing at all.
    """
    storages = list(_storages)
    for storage in storages:
        storage._leave_pages()
    if storages:
        _log.warning(
            "SGLang has replaced the weights of the engine, so it shares no pages with others "
            "until it restarts"
        )


UPDATER = (
    "sglang.srt.managers.scheduler_components.weight_updater",
    "SchedulerWeightUpdaterManager",
)
"""Module and class of SGLang that replace the weights of a running engine."""
UPDATED = "flush_cache_after_weight_update"
"""The method that all of its updates call once the weights are replaced, to flush the cache."""


def _watch_updates() -> None:
    """Makes the updates of weights in this process call :func:`weights_replaced`. A process that
    has not imported the updater replaces no weights."""
    updater = getattr(sys.modules.get(UPDATER[0]), UPDATER[1], None)
    original = getattr(updater, UPDATED, None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def updated(*arguments: Any, **named: Any) -> Any:
        try:
            return original(*arguments, **named)
        finally:
            # After the flush, which ends the threads that store pages of before.
            weights_replaced()

    setattr(updater, UPDATED, updated)


def arrangement(pool: Any) -> str:
    """Returns how a host pool arranges the bytes of a page."""
    known = [f"{name}={getattr(pool, name)}" for name in _SHAPE if hasattr(pool, name)]
    names = ("layout", "page_size", "dtype")
    known += [f"{name}={getattr(pool, name, '')}" for name in names]
    return f"{type(pool).__name__}({', '.join(known)})"


def rank_of(config: Any) -> str:
    """Returns the name of an engine process, for paths of files."""
    return f"dp{config.dp_rank}-pp{config.pp_rank}-cp{config.attn_cp_rank}-tp{config.tp_rank}"


def checked(options: StorageOptions, config: Any) -> StorageOptions:
    """Raises :class:`~kvmem.InvalidArgumentError` if several processes had one file."""
    ranks = config.tp_size * config.pp_size * config.attn_cp_size
    several = ranks > 1 or config.dp_rank > 0
    if options.disk and several and not all("{rank}" in str(path) for path in options.disk):
        paths = ", ".join(map(str, options.disk))
        raise InvalidArgumentError(
            f"{ranks} processes cannot use one file ({paths}): write {{rank}} into the path, "
            'or give "node" instead of "disk"',
            value=ranks,
            limit=1,
        )
    if options.disk and not options.mooncake and config.is_mla_model and config.tp_size > 1:
        raise InvalidArgumentError(
            f"only one of {config.tp_size} ranks stores the pages of an MLA model, and others "
            'cannot read its file: give "node" instead of "disk"',
            value=config.tp_size,
            limit=1,
        )
    return options


def memory_of(tensor: Any) -> tuple[int, int]:
    """Returns the address and the length in bytes of a contiguous tensor."""
    return int(tensor.data_ptr()), int(tensor.numel()) * int(tensor.element_size())


class HostPool:
    """A host pool of SGLang, as a store sees it."""

    def __init__(self, pool: Any, name: str, owner: str) -> None:
        self.pool = pool
        self.name = name
        self.page_size = int(getattr(pool, "page_size", 1) or 1)
        # A pool of 8-bit floats has bytes; the pool of the device knows their type.
        source = getattr(pool, "device_pool", pool)
        self.data_type = data_type_of(getattr(source, "dtype", getattr(pool, "dtype", None)))
        # Pages of pools that give no addresses pass through flat tensors.
        self.is_flat = not callable(getattr(pool, "get_page_buffer_meta", None))
        self._owner = owner
        self._suffix = f"|{name}|{arrangement(pool)}|"
        # Set when the engine replaces its weights.
        self.epoch = ""

    def keys(self, keys: Sequence[str], flat: bool | None = None) -> list[bytes]:
        """Returns the store's keys of pages. Flat pages have other bytes, so other keys."""
        kind = "flat" if (self.is_flat if flat is None else flat) else "pages"
        suffix = f"|{self._owner}{self.epoch}{self._suffix}{kind}|".encode()
        start = hashlib.blake2b(suffix, digest_size=32)
        found = []
        for key in keys:
            digest = start.copy()
            digest.update(key.encode())
            found.append(digest.digest())
        return found

    def parts(self, indices: Any, count: int) -> list[tuple[tuple[int, int], ...]]:
        """Returns the parts of each of ``count`` pages."""
        addresses, lengths = self.pool.get_page_buffer_meta(indices)
        each, rest = divmod(len(addresses), count)
        if rest or len(addresses) != len(lengths):
            raise InvalidArgumentError(
                f"the pool {self.name!r} gives {len(addresses)} addresses and {len(lengths)} "
                f"lengths for {count} pages: kvmem is written against SGLang {SUPPORTED[0]}",
                value=len(addresses),
            )
        parts = list(zip(map(int, addresses), map(int, lengths), strict=True))
        return [tuple(parts[at : at + each]) for at in range(0, len(parts), each)]

    def matches(self, keys: Sequence[str], indices: Any) -> bool:
        """Returns whether there is a slot of the pool for each token of the pages."""
        if indices is not None and len(indices) == len(keys) * self.page_size:
            return True
        have = 0 if indices is None else len(indices)
        _log.error(
            "SGLang: the pool %s has %d slots for %d pages of %d: give one for each token",
            self.name,
            have,
            len(keys),
            self.page_size,
        )
        return False


class KvmemStorage(HiCacheStorage):  # type: ignore[misc]
    """SGLang's storage backend over a :class:`~kvmem.storage.ValueStore`. Raises
    :class:`~kvmem.InvalidArgumentError` and :class:`~kvmem.storage.UnsupportedVersionError` when
    SGLang starts. A node that does not answer yet is not an error: its pages are misses until it
    does."""

    def __init__(self, storage_config: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        check_version("sglang", *SUPPORTED)
        extra = storage_config.extra_config or {}
        options = extra.get("kvmem")
        if not isinstance(options, dict):
            raise InvalidArgumentError(
                "--hicache-storage-backend-extra-config has no object "
                f'"kvmem" but {options!r}: give {{"kvmem": {{"node": "/run/kvmem.sock"}}, …}}',
                value=options,
            )
        parsed = checked(StorageOptions.parse(options, '"kvmem"'), storage_config)
        self._split, self._same = identity(storage_config)
        self._weights = weights_identity(storage_config, parsed, server_args())
        self._epoch = ""
        self._flat = not extra.get("interface_v1")
        self._pools: dict[str, HostPool] = {}
        # Of the names that SGLang gives to pages: each is a hash of all tokens up to its end.
        self._parents: KnownParents[str] = KnownParents()
        self._closing = threading.Lock()
        self.store: ValueStore = open_store(parsed, rank_of(storage_config))
        _storages.add(self)
        _watch_updates()

    # Pools.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._add(HostPool(mem_pool_host, KV, self._owner(KV)))

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(host_pool_name)
        self._add(HostPool(host_pool, name, self._owner(name)))

    def _owner(self, name: str) -> str:
        """Returns what names the engine in the keys of a pool."""
        # The state of Mamba layers is split among ranks even if the cache is not.
        owner = self._split if name == str(PoolName.MAMBA.value) else self._same
        target, both = self._weights
        return f"{owner}|{both if name.startswith(str(PoolName.DRAFT.value)) else target}"

    def _add(self, pool: HostPool) -> None:
        pool.epoch = self._epoch
        self._pools[pool.name] = pool

    def _leave_pages(self) -> None:
        self._epoch = f"|{os.urandom(8).hex()}"
        for pool in self._pools.values():
            pool.epoch = self._epoch

    def _pool(self, name: str = KV) -> HostPool:
        try:
            return self._pools[name]
        except KeyError:
            known = ", ".join(self._pools) or "none"
            raise InvalidArgumentError(
                f"the host pool {name!r} is not registered, but {known}: SGLang calls "
                "register_mem_pool_host first",
                value=name,
            ) from None

    def _note(self, keys: Sequence[str], extra_info: Any = None) -> None:
        """Notes the order of the pages of a prompt. SGLang says what is before them if its option
        ``hicache_storage_pass_prefix_keys`` is true."""
        before = getattr(extra_info, "prefix_keys", None)
        self._parents.note(keys, before[-1] if before else None)

    def _parent_keys(self, pool: HostPool, keys: Sequence[str], flat: bool) -> list[bytes | None]:
        """Returns the store's keys of the parents of pages: of the page before each, in its pool.
        Another pool than the model's may store the last pages alone: the first one of a call goes
        with the model's page of the same tokens."""
        names = self._parents.of(keys)
        parents: list[bytes | None] = [
            None if name is None else pool.keys([name], flat=flat)[0] for name in names
        ]
        kv = self._pool() if KV in self._pools else pool
        if keys and pool is not kv and getattr(kv.pool, "kv_buffer", self) is not None:
            parents[0] = kv.keys(keys[:1], flat=flat and kv.is_flat)[0]
        return parents

    # Pages as addresses in a host pool.

    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        self._note(keys, extra_info)
        return self._move(self.store.get, [(self._pool(), keys, host_indices)])[0]

    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        self._note(keys, extra_info)
        return self._move(self.store.put, [(self._pool(), keys, host_indices)])[0]

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return self._move_v2(transfers, extra_info, is_put=False)

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return self._move_v2(transfers, extra_info, is_put=True)

    def _move_v2(
        self, transfers: list[Any], extra_info: Any, *, is_put: bool
    ) -> dict[str, list[bool]]:
        """Moves the pages of all pools with addresses in one call of the store."""
        results: dict[str, list[bool]] = {}
        names, moves = [], []
        for transfer in transfers:
            pool, keys = self._pool(str(transfer.name)), transfer.keys or []
            if pool.name == KV:
                self._note(keys, extra_info)
            if pool.is_flat:
                move = self._put_flat if is_put else self._get_flat
                results[transfer.name] = move(pool, keys, transfer.host_indices)
            else:
                names.append(transfer.name)
                moves.append((pool, keys, transfer.host_indices))
        moved = self._move(self.store.put if is_put else self.store.get, moves)
        results.update(zip(names, moved, strict=True))
        return results

    def _move(
        self, move: Any, moves: Sequence[tuple[HostPool, Sequence[str], Any]]
    ) -> list[list[bool]]:
        values: list[Value] = []
        counts = []
        for pool, keys, indices in moves:
            counts.append(len(keys) if keys and pool.matches(keys, indices) else 0)
            if counts[-1]:
                parts = pool.parts(indices, len(keys))
                parents = self._parent_keys(pool, keys, flat=False)
                names = pool.keys(keys, flat=False)
                values += map(Value, names, parts, parents, repeat(pool.data_type))
        moved = move(values) if values else []
        results, at = [], 0
        for (_, keys, _), count in zip(moves, counts, strict=True):
            results.append(moved[at : at + count] if count else [False] * len(keys))
            at += count
        return results

    # Pages as flat tensors.

    def _put_pages(self, pool: HostPool, keys: Sequence[str], pages: Sequence[Any]) -> list[bool]:
        names = pool.keys(keys, flat=True), self._parent_keys(pool, keys, flat=True)
        pairs = zip(*names, pages, strict=True)
        return self.store.put(
            [Value(key, (memory_of(page),), it, pool.data_type) for key, it, page in pairs]
        )

    def _get_pages(self, pool: HostPool, keys: Sequence[str], pages: Sequence[Any]) -> list[bool]:
        pairs = zip(pool.keys(keys, flat=True), pages, strict=True)
        return self.store.get([Value(key, (memory_of(page),)) for key, page in pairs])

    def _put_flat(self, pool: HostPool, keys: Sequence[str], indices: Any) -> list[bool]:
        if not pool.matches(keys, indices):
            return [False] * len(keys)
        pages = [
            pool.pool.get_data_page(int(indices[at * pool.page_size]), flat=True).contiguous()
            for at in range(len(keys))
        ]
        return self._put_pages(pool, keys, pages)

    def _get_flat(self, pool: HostPool, keys: Sequence[str], indices: Any) -> list[bool]:
        if not pool.matches(keys, indices):
            return [False] * len(keys)
        pages = [pool.pool.get_dummy_flat_data_page() for _ in keys]
        found = self._get_pages(pool, keys, pages)
        for at, (page, hit) in enumerate(zip(pages, found, strict=True)):
            if hit:
                pool.pool.set_from_flat_data_page(int(indices[at * pool.page_size]), page)
        return found

    # Pages as tensors.

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        if target_locations is None or any(target is None for target in target_locations):
            raise InvalidArgumentError(
                f"{len(keys)} pages are to be read into no tensors: give one for each",
                value=target_locations,
            )
        found = self._get_pages(self._pool(), keys, target_locations)
        return [
            target if hit else None for target, hit in zip(target_locations, found, strict=True)
        ]

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        self._note(keys)
        return all(self._put_pages(self._pool(), keys, [value.contiguous() for value in values]))

    # Which pages there are.

    def _kv_keys(self, keys: Sequence[str]) -> list[bytes]:
        return self._pool().keys(keys, flat=self._flat)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        self._note(keys, extra_info)
        return self.store.prefix(self._kv_keys(keys))

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: list[Any] | None = None, extra_info: Any = None
    ) -> Any:
        transfers = pool_transfers or []
        self._note(keys, extra_info)
        requested = self._kv_keys(keys)
        for transfer in transfers:
            requested += self._pool(str(transfer.name)).keys(keys)
        found = [nbytes is not None for nbytes in self.store.lengths(requested)]
        pages = len(keys)
        kv = leading(found[:pages])
        if getattr(self._pool().pool, "kv_buffer", self) is None:
            # The pool has no memory of its own: other pools decide.
            kv = pages
        hits: dict[Any, int] = {PoolName.KV: kv} if kv else {}
        restorable = list(range(1, kv + 1))
        for number, transfer in enumerate(transfers, 1):
            if not restorable:
                break
            here = found[number * pages : (number + 1) * pages]
            allowed = restorable_prefixes(here, kv, transfer)
            if boundary := max(allowed, default=0):
                hits[transfer.name] = boundary
            restorable = [length for length in restorable if length in allowed]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    # The rest.

    def clear(self) -> bool:
        return self.store.clear()

    def stats(self) -> ValueStoreStats:
        """Returns the figures of the store."""
        return self.store.stats()

    def close(self) -> None:
        """Ends the store. A second call does nothing."""
        with self._closing:
            self.store.close()


def leading(found: Sequence[bool]) -> int:
    """Returns the number of leading hits."""
    return next((at for at, hit in enumerate(found) if not hit), len(found))


def restorable_prefixes(found: Sequence[bool], kv: int, transfer: Any) -> set[int]:
    """Returns the lengths of prefixes, up to ``kv`` pages, that a pool can serve."""
    if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
        return set(range(1, leading(found[:kv]) + 1))
    if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
        window = max(1, len(transfer.keys) if transfer.keys else 1)
        return {
            length for length in range(1, kv + 1) if all(found[max(0, length - window) : length])
        }
    raise InvalidArgumentError(
        f"the pool {transfer.name} has the hit policy {transfer.hit_policy}: kvmem is written "
        f"against SGLang {SUPPORTED[0]}, whose own backends know all_pages and trailing_pages",
        value=str(transfer.hit_policy),
    )
