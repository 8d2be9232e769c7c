"""*Tracker*: what vLLM's scheduler says of a chunk. Importing this module imports vLLM.

A manager of vLLM sees keys alone. The scheduler of the connector has the tokens, and passes them to
its tracker of events, which it makes by a name of its module. :func:`use_tracker` replaces that
name by a function, which makes this tracker for a spec with :class:`NodeEventsConfig`, and vLLM's
for every other one."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading import events as _theirs
from vllm.distributed.kv_transfer.kv_connector.v1.offloading import scheduler as _scheduler
from vllm.v1.core.kv_cache_utils import to_event_extra_keys
from vllm.v1.kv_offload.base import OffloadingKVEventsConfig

from ._describing import Descriptions
from ._description import Description


@dataclasses.dataclass(frozen=True)
class NodeEventsConfig(OffloadingKVEventsConfig):  # type: ignore[misc]
    """vLLM's configuration of events, with those of a node."""

    events: Descriptions | None = None


class NodeEventsTracker(_theirs.OffloadingEventsTracker):  # type: ignore[misc]
    """vLLM's tracker, which says what a chunk is. The node's events need no translation."""

    def record_store(self, req: Any, group_config: Any, chunk_idx: int, offload_key: Any) -> None:
        """Describes a chunk that is stored now."""
        super().record_store(req, group_config, chunk_idx, offload_key)
        self._note(offload_key)

    def record_partial_store(
        self, req: Any, group_config: Any, boundary_tokens: int, offload_key: Any
    ) -> None:
        """Describes the end of a prompt that is stored now."""
        super().record_partial_store(req, group_config, boundary_tokens, offload_key)
        self._note(offload_key)

    def record_lookup(self, *arguments: Any) -> None:
        """Does nothing: the engine that has stored a chunk has described it."""

    def record_partial_lookup(self, *arguments: Any) -> None:
        """Does nothing, as :meth:`record_lookup`."""

    def take_events(self, events: Iterable[Any]) -> Iterable[Any]:
        """Returns the events of the node."""
        return events

    def _note(self, key: Any) -> None:
        metadata = self._pending_event_metadata.pop(key, None)
        if metadata is not None:
            self.config.events.note(key, lambda: _description_of(metadata))


def _make_tracker(config: Any, *others: Any) -> Any:
    """Makes the tracker of a scheduler: of the kind that its configuration asks for."""
    is_ours = isinstance(config, NodeEventsConfig)
    kind = NodeEventsTracker if is_ours else _theirs.OffloadingEventsTracker
    return kind(config, *others)


def use_tracker(spec: Any, events: Descriptions, *, describes: bool) -> None:
    """Lets the scheduler that uses a spec have the tracker for the events of a node."""
    spec.kv_events_config = NodeEventsConfig(True, describes, events)
    _scheduler.OffloadingEventsTracker = _make_tracker


def _description_of(metadata: Any) -> Description:
    """Returns the description of a chunk from what vLLM's tracker says of it."""
    spec = metadata.kv_cache_spec
    return Description(
        block_hashes=tuple(bytes(it) for it in metadata.block_hashes),
        parent=None if metadata.parent_block_hash is None else bytes(metadata.parent_block_hash),
        token_ids=tuple(metadata.token_ids),
        block_size=metadata.block_size,
        lora_id=metadata.lora_id,
        lora_name=metadata.lora_name,
        extra_keys=to_event_extra_keys(metadata.extra_keys),
        group=metadata.group_idx,
        kind=spec.kv_cache_spec_kind,
        sliding_window=spec.kv_cache_spec_sliding_window,
    )
