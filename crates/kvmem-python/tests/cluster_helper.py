"""A helper of :class:`kvmem.mooncake.ClusterTier` whose cluster is a folder.

The environment variable ``KVMEM_TEST_CLUSTER`` names it.

It has the arguments of Mooncake's helper, of which it needs the prefix. A file ``hang`` in the
folder makes its calls wait, and a file ``away`` makes it say that the master does not answer.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from kvmem.mooncake import node_tier
from kvmem.mooncake.node_tier import FAILED, Item


def program(folder: Path) -> str:
    """Makes a program that runs this helper in place of Python, for the cluster in a folder."""
    folder.mkdir(exist_ok=True)
    program = folder.with_name(f"{folder.name}-python")
    command = f'KVMEM_TEST_CLUSTER="{folder}" exec "{sys.executable}" "{__file__}" "$@"'
    program.write_text(f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
    return str(program)


class FolderEngine:
    """The memory, and the folder."""

    def __init__(self, memory: memoryview, folder: Path, prefix: str) -> None:
        self.memory, self.folder = memory, folder
        self.prefix = prefix.replace("/", "_")

    def name(self, key: bytes) -> str:
        return self.prefix + key.hex()

    def path(self, item: Item) -> Path:
        while (self.folder / "hang").exists():
            time.sleep(0.01)
        return self.folder / item.name

    def look_up(self, items: list[Item]) -> list[int]:
        paths = [self.path(item) for item in items]
        return [path.stat().st_size if path.exists() else FAILED for path in paths]

    def store(self, items: list[Item]) -> list[int]:
        return [self.put(item, self.path(item).exists()) for item in items]

    def replace(self, items: list[Item]) -> list[int]:
        return [self.put(item, False) for item in items]

    def put(self, item: Item, is_there: bool) -> int:
        if not is_there:
            part = self.folder / f"part-{item.name}"
            part.write_bytes(self.memory[item.offset : item.offset + item.nbytes])
            part.rename(self.path(item))
        return 1

    def fetch(self, items: list[Item]) -> list[int]:
        found = []
        for item in items:
            path = self.path(item)
            value = path.read_bytes() if path.exists() else b""
            if len(value) <= item.nbytes:
                self.memory[item.offset : item.offset + len(value)] = value
            found.append(len(value) or FAILED)
        return found

    def remove(self, items: list[Item]) -> list[int]:
        for item in items:
            self.path(item).unlink(missing_ok=True)
        return [1] * len(items)

    def clear(self, _items: list[Item]) -> list[int]:
        for path in self.folder.glob(f"{self.prefix}*"):
            path.unlink()
        return [1]


def main() -> None:
    given = node_tier.parser().parse_args(sys.argv[sys.argv.index("--master") :])
    connection = socket.socket(fileno=os.dup(0))
    memory = memoryview(node_tier._hello(connection))
    folder = Path(os.environ["KVMEM_TEST_CLUSTER"])
    engine = FolderEngine(memory, folder, given.prefix)
    server = node_tier.Server(connection, engine)  # type: ignore[arg-type]
    server.notify(not (folder / "away").exists())
    server.run()
    os._exit(0)


if __name__ == "__main__":
    main()
