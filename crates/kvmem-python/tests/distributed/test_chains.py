"""What is left of prompts in a node that is too small for them, whose engines name parents: their
starts, and nothing that is dead.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from typing import Any

import kvmem
import pytest
from conftest import MIB
from kvmem.storage import NodeStore, Value
from kvmem.storage.parents import KnownParents
from node_server import Server
from vllm_process import (
    release,  # noqa: F401 (release)
    vllm,
    with_oldest,
)

PAGE = 64 << 10
"""Bytes of a value."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(32 * MIB) as server:
        yield server


def sessions(count: int) -> Iterator[list[bytes]]:
    """Yields prompts: conversations that grow, some of them behind a common start."""
    draw = random.Random(5)
    grown: list[list[bytes]] = [
        [b"system %d" % (number % 3), b"tools %d" % (number % 3)] for number in range(60)
    ]
    for turn in range(count):
        # Some conversations go on more than others.
        prompt = grown[min(draw.randrange(60), draw.randrange(60))]
        prompt += [b"turn %d block %d" % (turn, at) for at in range(draw.randrange(1, 9))]
        if len(prompt) > 60:
            del prompt[2:]
        yield list(prompt)


class Dead:
    """The values without their parents, by what the node lists, and by what it counts."""

    def __init__(self, node: kvmem.NodeCache) -> None:
        self.node = node
        self.parents: dict[bytes, bytes] = {}
        self.turns = 0

    def check(self, prompt: list[bytes]) -> None:
        """Checks that no value is dead: nothing is removed, so nothing need be."""
        self.parents.update(zip(prompt[1:], prompt, strict=False))
        stats = self.node.stats()
        assert stats.dead_bytes == 0, f"{stats.dead_bytes} of {stats.used} bytes are dead"
        self.turns += 1
        if self.turns % 3 == 0:
            there = {it.key for it in self.node.as_operator().list()}
            parents: Any = self.parents
            dead = [it for it in there if parents.get(it, it) not in there]
            assert not dead, f"{len(dead)} of {len(there)} values are dead"


def test_stores_of_engines_keep_starts(server: Server) -> None:
    """SGLang and LMCache: a look-up of all pages of a prompt, and batches that are stored later."""
    parents: KnownParents[bytes] = KnownParents()
    page = ctypes.create_string_buffer(PAGE)
    memory = ((ctypes.addressof(page), PAGE),)
    store = NodeStore(server.path, deadline=60.0)
    with kvmem.connect(server.path) as node:
        dead = Dead(node)
        for prompt in sessions(400):
            parents.note(prompt)
            locked = store.lock(prompt)
            missing = [key for key, hit in zip(prompt, locked, strict=True) if not hit]
            known = dict(zip(missing, parents.of(missing), strict=True))
            for start in range(0, len(missing), 16):
                batch = missing[start : start + 16]
                store.put([Value(key, memory, known[key]) for key in batch])
            store.unlock([key for key, hit in zip(prompt, locked, strict=True) if hit])
            dead.check(prompt)
        assert node.stats().evicted_total > 100
    store.close()


def test_parents_are_known_for_the_latest_keys() -> None:
    parents: KnownParents[str] = KnownParents(3)
    parents.note(["a", "b", "c"])
    parents.note(["d", "d"], before="c")
    assert parents.of(["a", "b", "c", "d", "e"]) == [None, "a", "b", "c", None]
    parents.note(["f"], before="b")
    assert parents.of(["b", "c", "d", "f"]) == [None, "b", "c", "b"]


@with_oldest
def test_vllms_chunks_name_the_chunk_before(server: Server) -> None:
    """In whatever order the chunks of several groups of layers are stored."""
    vllm(
        f"""
        import random, vllm_engine
        from vllm.v1.kv_offload import base
        path = {str(server.path)!r}
        spec, manager, node, worker = vllm_engine.node_manager(path, "chains", priority=3)
        step = base.ScheduleEndContext((), ())
        draw = random.Random(3)
        grown = [[] for _ in range(40)]
        before = {{}}
        for turn in range(300):
            blocks = grown[min(draw.randrange(40), draw.randrange(40))]
            blocks += [b"%d %d" % (turn, at) for at in range(draw.randrange(1, 9))]
            context = base.ReqContext("r%d" % turn)
            for group in range(2):
                names = [base.make_offload_key(it, group) for it in blocks]
                before.update(zip(names[1:], names))
            # Positions come in parts, as those of tokens that are generated.
            for part in range(0, len(blocks), 5):
                for group in range(2):
                    for at, name in list(enumerate(blocks))[part : part + 5]:
                        key = base.make_offload_key(name, group)
                        context.set_offload_key_position(key, 32 * (at + 1))
                chunk = blocks[part : part + 5]
                keys = {{base.make_offload_key(it, group) for it in chunk for group in range(2)}}
                for key in keys:
                    manager.lookup(key, context)
                stored = manager.prepare_store(keys, context)
                if stored is not None:
                    manager.complete_store(stored.keys_to_store, context)
                    vllm_engine.settle_stores(manager)
                manager.on_schedule_end(step)
            manager.on_schedule_end(step)
            manager.on_schedule_end(step)
            stats = node.stats()
            assert stats.dead_bytes == 0, (turn, stats)
            there = {{it.key for it in node.as_operator().list()}}
            dead = [it for it in there if before.get(it, it) not in there]
            assert not dead, (turn, len(dead), len(there))
        assert stats.evicted_total > 100, stats
        manager.shutdown()
        """
    )
