"""What every store of an engine keeps, whatever the engine: values outlive the engine and its node,
and what is damaged or away is a miss.

The tests of an engine call these functions with its :class:`Adapter`. Each function runs programs,
which use the adapter's class ``Stored``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvmem
import pytest
from conftest import until
from node_server import Server


@dataclass(frozen=True)
class Adapter:
    """How the tests of an engine use its store."""

    run: Callable[[str], str]
    """Runs a program with the engine's modules, and returns what it has written."""
    stored: str
    """The class ``Stored(**options)`` with ``store(count)``, which returns the number of values
    that were new, or None if it failed; ``load(count)``, which returns the numbers of the values
    that it has found and compared; ``fill(turn)``, which stores other values; ``page(number)``, the
    bytes of a value; ``status()``; and ``close()``.
    """
    versions: tuple[str, str, str]
    """The distribution, a release that is too old, and the remedy."""

    def __call__(self, program: str) -> str:
        return self.run(self.stored + program)


def node(server: Server, **more: object) -> dict[str, object]:
    """Returns the options of a store in a node."""
    return {"node": str(server.path), "deadline": 60.0, **more}


def disk(folder: Path, **more: object) -> dict[str, object]:
    """Returns the options of a store on a disk."""
    path = str(folder / "tier-{rank}")
    return {"disk": path, "disk_bytes": "64MiB", "deadline": 60.0, **more}


def killed(adapter: Adapter, program: str) -> None:
    with pytest.raises(AssertionError, match="-9"):
        adapter(program)


def share_a_node(adapter: Adapter, server: Server) -> None:
    """Engines share one node, and one that starts again after a kill finds it warm."""
    killed(
        adapter,
        f"""
stored = Stored(**{node(server)})
assert stored.store(10) == 10
os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    for _ in range(2):
        adapter(
            f"""
one, two = Stored(**{node(server)}), Stored(**{node(server)})
assert one.load(10) == two.load(10) == list(range(10))
assert two.store(10) == 0
one.close(); two.close()
"""
        )
    # The pins of the killed process are gone with it.
    with kvmem.connect(server.path) as cache:
        until(lambda: cache.stats().pinned == 0)


def killed_while_it_stores(adapter: Adapter, folder: Path) -> None:
    killed(
        adapter,
        f"""
import threading
stored = Stored(**{disk(folder)})
assert stored.store(5) == 5
threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
# More would evict the first values, if the timer is late.
for turn in range(1, 20):
    stored.fill(turn)
signal.pause()
""",
    )
    adapter(
        f"""
stored = Stored(**{disk(folder)})
assert stored.load(5) == list(range(5))
stored.close()
"""
    )


def outlives_its_node(adapter: Adapter, server: Server) -> None:
    adapter(
        f"""
import time
stored = Stored(**{node(server, deadline=20.0, retry=0.05)})
assert stored.store(5) == 5
os.kill({server.pid}, signal.SIGKILL)
end = time.monotonic() + 60
while stored.load(5) != list(range(5)):
    assert time.monotonic() < end
    time.sleep(0.02)
stored.close()
"""
    )
    # The keeper's line about the next server is still to be read.
    server._next()


def misses_without_a_node(adapter: Adapter, folder: Path) -> str:
    """Returns what the store says."""
    return adapter(
        f"""
stored = Stored(node={str(folder / "none.sock")!r}, deadline=0.2, retry=30)
assert stored.load(2) == [] and stored.store(2) is None
print(stored.status())
stored.close()
"""
    )


def damage_is_a_miss(adapter: Adapter, folder: Path, left: list[int]) -> None:
    """Of ten values, of which number 1 is damaged, these are left."""
    out = adapter(
        f"""
stored = Stored(**{disk(folder)})
assert stored.store(10) == 10
print("page", stored.page(1)[:64].hex())
stored.close()
"""
    )
    [path] = folder.glob("tier-*")
    content = bytearray(path.read_bytes())
    content[content.index(bytes.fromhex(out.split("page ")[1].split()[0])) + 5] ^= 8
    path.write_bytes(content)
    adapter(
        f"""
stored = Stored(**{disk(folder)})
assert stored.load(10) == {left} == stored.load(10)
# It is stored anew.
assert stored.store(10) == 1 and stored.load(10) == list(range(10))
stored.close()
"""
    )


def errors_name_the_remedy(adapter: Adapter, folder: Path) -> None:
    """Of versions and permissions."""
    closed = folder / "closed"
    closed.mkdir(0o700)
    os.chmod(folder, 0o755)
    name, old, remedy = adapter.versions
    own: dict[str, Any] = {**disk(folder), "disk": str(closed / "tier"), "disk_bytes": "16MiB"}
    out = adapter(
        f"""
import importlib.metadata, kvmem.storage
real = importlib.metadata.version
importlib.metadata.version = lambda name: {old!r} if name == {name!r} else real(name)
try:
    Stored(**{disk(folder)})
except kvmem.storage.UnsupportedVersionError as error:
    print(error, error.remedy)
importlib.metadata.version = real
# After the remedy it starts: the error has left nothing.
stored = Stored(**{disk(folder)})
assert stored.store(2) == 2
stored.close()
# The other user may have no access to the interpreter's modules, which are imported by now.
version = real({name!r})
importlib.metadata.version = lambda name: version
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for options in ({own}, {{"node": {str(closed / "kvmem.sock")!r}}}):
    try:
        Stored(**options)
    except (kvmem.DiskTierError, kvmem.NodeError) as error:
        print(type(error).__name__, error.errno, error)
    else:
        print("no error")
"""
    )
    assert f"{name} {old} is installed" in out and f"pip install '{remedy}'" in out
    assert "no error" not in out and "DiskTierError 13" in out, out
    assert "NodePermissionError 13" in out, out
    # The owner of the folder starts there without cleaning up.
    adapter(
        f"""
stored = Stored(**{own})
assert stored.store(2) == 2
stored.close()
"""
    )
