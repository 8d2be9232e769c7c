"""A client of a cluster, as a process: reads commands, one JSON list a line, and answers each with
a line.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import kvmem
from kvmem.mooncake import Store


def content(seed: str, nbytes: int) -> bytes:
    return random.Random(seed).randbytes(nbytes)


class Commands:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.pool = store.pool

    def put(self, key: str, nbytes: int, replace: bool = False) -> None:
        with self.pool.allocate(nbytes) as block:
            block.write(content(key, nbytes))
            self.store.put(key, block, replace=replace)

    def put_batch(self, keys: list[str], nbytes: int) -> None:
        blocks = self.pool.allocate_batch(nbytes, len(keys)).split()
        for key, block in zip(keys, blocks):
            block.write(content(key, nbytes))
        self.store.put_batch(keys, blocks)
        self.pool.free_batch(blocks)

    def put_parts(self, key: str, lengths: list[int]) -> None:
        data, blocks = content(key, sum(lengths)), []
        for nbytes in lengths:
            blocks.append(self.pool.allocate(nbytes))
            blocks[-1].write(data[:nbytes])
            data = data[nbytes:]
        self.store.put_parts(key, blocks)
        self.pool.free_batch(blocks)

    def same(self, key: str, nbytes: int) -> bool:
        """Compares an object with the bytes that were put."""
        with self.store.get(key) as block:
            return bytes(block) == content(key, nbytes)

    def same_batch(self, keys: list[str], nbytes: int) -> list[bool | None]:
        blocks = self.store.get_batch(keys)
        return [
            None if block is None else bytes(block) == content(key, nbytes)
            for key, block in zip(keys, blocks)
        ]

    def same_parts(self, key: str, lengths: list[int]) -> bool:
        blocks = [self.pool.allocate(nbytes) for nbytes in lengths]
        self.store.get_parts(key, blocks)
        found = b"".join(bytes(block) for block in blocks)
        self.pool.free_batch(blocks)
        return found == content(key, sum(lengths))

    def exists(self, keys: list[str]) -> list[bool]:
        return self.store.exists_batch(keys)

    def remove(self, key: str) -> bool:
        return self.store.remove(key, force=True)

    def spin(self, name: str, nbytes: int) -> int:
        """Puts and gets until an exception is raised, or for 30 s: the master may place everything
        on a server that lives. Reports when it has started.
        """
        end = time.monotonic() + 30
        with self.pool.allocate(nbytes) as block:
            block.write(content(name, nbytes))
            print(json.dumps("spinning"), flush=True)
            turn = 0
            while time.monotonic() < end:
                try:
                    self.store.put(f"{name}{turn % 8}", block, replace=True)
                    self.store.get(f"{name}{turn % 8}").free()
                except (kvmem.mooncake.UnreachableError, kvmem.mooncake.ObjectMissingError):
                    break
                turn += 1
            return turn

    def used(self) -> int:
        return self.pool.metrics().allocated


def main() -> None:
    # A deadline that a busy machine keeps as well.
    with (
        kvmem.Pool("16MiB", pages="4k") as pool,
        Store(pool, master=sys.argv[1], deadline=30) as store,
    ):
        commands = Commands(store)
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            verb, *arguments = json.loads(line)
            answer: Any
            try:
                answer = getattr(commands, verb)(*arguments)
            except kvmem.KvmemError as error:
                answer = type(error).__name__
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
