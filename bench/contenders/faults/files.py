"""Experiments with peers that have their values in files.

Calls of the peer: `open(dir, bytes)`, `set(keys, version)`, `get(keys)`, `exists(keys)` and
`settle()`. Each calls the peer once for each key. `set` is done for the keys of which the peer says
that their values are stored."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from experiment import VALUE, Ended, Experiment, Peer, Skipped, Verdict, tmpfs, value_of

KEYS = list(range(1, 9))
MIB = 1 << 20


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in files(folder))


def find(folder: Path, key: int, at: int) -> tuple[Path, int]:
    """Returns the file with the bytes of a value from `at` on, and where they are."""
    wanted = value_of(key, 1)[at : at + 64].tobytes()
    for path in files(folder):
        where = path.read_bytes().find(wanted)
        if where >= 0:
            return path, where
    raise RuntimeError(f"no file has the bytes of value {key}")


def what_failed(answer: dict[str, Any]) -> str:
    """Says which values of an answer are missing."""
    parts = [f"misses {answer['misses']}"] if answer["misses"] else []
    if answer["errors"]:
        parts.append(f"errors {answer['errors']}: {answer['said']}")
    return ", ".join(parts) or "no value is missing"


@contextlib.contextmanager
def failing(peer: Peer, calls: str, paths: list[Path]) -> Iterator[None]:
    """Lets calls of the system by the peer fail with EIO, those for some files or all."""
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={calls}:error=EIO"]
    strace += [word for path in paths for word in ("-P", str(path))]
    try:
        tracer = subprocess.Popen([*strace, "-p", str(peer.process.pid)])
    except FileNotFoundError:
        raise Skipped("strace is missing") from None
    time.sleep(1.0)
    if tracer.poll() is not None:
        raise Skipped("strace cannot trace the process")
    try:
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait()


class Files:
    """The experiments. `start` starts a peer on a log, and `traced` one that makes no rings, whose
    transfers strace sees. `fixed`: the peer makes all files when it is opened."""

    def __init__(
        self,
        start: Callable[..., Peer],
        traced: Callable[..., Peer] | None = None,
        fixed: bool = False,
    ) -> None:
        self.start, self.traced, self.fixed = start, traced or start, fixed

    def open(
        self, folder: Path, bytes: int = 64 * MIB, data: str = "data", wrap: Iterable[str] = ()
    ) -> Peer:
        """Starts the peer on the directory `data`."""
        return self.opened(self.start, folder, bytes, data, wrap)

    def opened(
        self,
        start: Callable[..., Peer],
        folder: Path,
        bytes: int = 64 * MIB,
        data: str = "data",
        wrap: Iterable[str] = (),
    ) -> Peer:
        number = len(list(folder.glob("*.log")))
        peer = start(folder / f"{number}.log", wrap)
        peer("open", dir=str(folder / data), bytes=bytes)
        return peer

    def stored(self, folder: Path, keys: list[int] = KEYS, bytes: int = 64 * MIB) -> None:
        """Stores values in good order."""
        with self.open(folder, bytes) as peer:
            answer = peer("set", keys=keys, version=1)
            if answer["done"] != keys:
                raise RuntimeError(f"not stored: {answer}")
            peer("settle")
            peer.close()

    def flipped_byte(self, folder: Path) -> Verdict:
        """A byte of a stored value is changed while no process has it open."""
        self.stored(folder)
        path, at = find(folder / "data", 3, VALUE // 2)
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))
        with self.open(folder) as peer:
            answer = peer("get", keys=KEYS)
        if answer["other"]:
            return "no", f"value {answer['other']} is served with the changed byte, as a hit"
        return "yes", f"{what_failed(answer)}; hits {answer['done']}"

    def cut(self, folder: Path) -> None:
        """Cuts the file with value 3 in the middle of that value."""
        path, at = find(folder / "data", 3, VALUE // 2)
        os.truncate(path, at)

    def truncated_file(self, folder: Path) -> Verdict:
        """A file is cut in the middle of a value."""
        self.stored(folder)
        self.cut(folder)
        try:
            with self.open(folder) as peer:
                answer = peer("get", keys=KEYS)
        except Ended:
            raise
        except RuntimeError as error:
            return "yes", f"says so when it is opened: {error}"
        if answer["other"]:
            return "no", f"values {answer['other']} are served with other bytes"
        return "yes", f"{what_failed(answer)}; hits {answer['done']}"

    def damage_ends(self, folder: Path) -> Verdict:
        """A value cannot be loaded: it must not be a hit for ever, and can be stored again."""
        self.stored(folder)
        self.cut(folder)
        with self.open(folder) as peer:
            loads = [peer("get", keys=[3]) for _ in range(3)]
            if any(load["done"] for load in loads):
                return "yes", "the value was not damaged for this peer"
            exists = bool(peer("exists", keys=[3])["done"])
            again = bool(peer("set", keys=[3], version=1)["done"])
            peer("settle")
            after = peer("get", keys=[3])
        why = f"after three loads: exists {exists}, stored again {again}, then "
        why += what_failed(after)
        return ("no" if exists or not after["done"] else "yes"), why

    def killed_in_store(self, folder: Path) -> Verdict:
        """A process is killed while it stores. What the next one finds is whole."""
        chance, other, lost, found = random.Random(1), 0, 0, 0
        for round in range(20):
            with self.open(folder, 4096 * MIB) as peer:
                keys = list(range(round * 100 + 1, round * 100 + 33))
                known = peer("set", keys=keys[:4], version=1)["done"]
                peer("settle")
                peer.begin("set", keys=keys[4:], version=1)
                time.sleep(chance.uniform(0, 0.03))
                peer.kill()
            with self.open(folder, 4096 * MIB) as peer:
                answer = peer("get", keys=keys)
                peer.close()
            other += len(answer["other"])
            found += len(answer["done"])
            lost += len(set(known) - set(answer["done"]))
        why = f"20 kills: {found} values found, {other} with other bytes, {lost} of 80 settled lost"
        return ("no" if other or lost else "yes"), why

    def leftovers_of_kills(self, folder: Path) -> Verdict:
        """The bytes of unfinished stores are given back after a restart."""
        chance = random.Random(2)
        for round in range(20):
            with self.open(folder, 4096 * MIB) as peer:
                peer.begin("set", keys=list(range(round * 100, round * 100 + 64)), version=1)
                time.sleep(chance.uniform(0.02, 0.06))
                peer.kill()
        with self.open(folder, 4096 * MIB) as peer:
            keys = [round * 100 + i for round in range(20) for i in range(64)]
            found = peer("get", keys=keys)["done"]
            peer.close()
        data = folder / "data"
        spare = [path for path in files(data) if path.name.endswith(".tmp")]
        size = sum(path.stat().st_size for path in spare)
        why = f"20 kills: {len(found)} values, and {len(spare)} other files of {size / MIB:.1f} MiB"
        return ("no" if spare else "yes"), why

    def full_file_system(self, folder: Path) -> Verdict:
        """Another file fills the file system, and is removed again."""
        keys = list(range(1, 33))
        mount = tmpfs(folder / "mount", 96 * MIB)
        with mount, self.open(folder, bytes=64 * MIB, data="mount/data") as peer:
            first = peer("set", keys=[1, 2], version=1)
            ballast = folder / "mount/ballast"
            with contextlib.suppress(OSError), open(ballast, "wb", 0) as file:
                room = os.statvfs(folder / "mount").f_bavail * 4096
                # Room for five values and a half.
                file.write(bytes(max(0, room - 11 * MIB // 2)))
            stored = peer("set", keys=keys[2:], version=1)
            peer("settle")
            answer = peer("get", keys=keys)
            ballast.unlink()
            peer("set", keys=[100, 101], version=1)
            peer("settle")
            later = peer("get", keys=[100, 101])
        called = first["done"] + stored["done"]
        silent = sorted(set(called) - set(answer["done"]))
        said = stored["said"] or ("a store returns False" if stored["misses"] else "no error")
        why = (
            f"{len(called)} of 32 are called stored, {len(answer['done'])} are read back, "
            f"{len(answer['other'])} with other bytes; {said}; with space again it "
            f"{'stores' if later['done'] else 'stores nothing'}"
        )
        ok = not answer["other"] and not silent and later["done"] == [100, 101]
        return ("yes" if ok else "no"), why

    def failing_reads(self, folder: Path) -> Verdict:
        """Reads of the files fail with EIO for a while, and then no longer."""
        self.stored(folder)
        with self.opened(self.traced, folder) as peer:
            first = peer("get", keys=[1])
            with failing(peer, "read,readv,pread64,preadv,preadv2", files(folder / "data")):
                during = peer("get", keys=KEYS)
            after = peer("get", keys=KEYS)
            peer("set", keys=[100], version=1)
            peer("settle")
            later = peer("get", keys=[100])
        why = f"meanwhile {what_failed(during)}; afterwards {what_failed(after)}, and a new value "
        why += "is stored" if later["done"] else "is not stored"
        if not during["errors"] and not during["misses"]:
            raise Skipped("no read of the files failed")
        ok = first["done"] and not during["other"] and not after["other"] and later["done"]
        return ("yes" if ok else "no"), why

    def failing_writes(self, folder: Path) -> Verdict:
        """Writes fail with EIO for a while, and then no longer."""
        with self.opened(self.traced, folder) as peer:
            peer("set", keys=[1], version=1)
            peer("settle")
            named = files(folder / "data") if self.fixed else []
            with failing(peer, "write,pwrite64,pwritev,pwritev2", named):
                during = peer("set", keys=[2, 3, 4], version=1)
                peer("settle")
            found = peer("get", keys=[1, 2, 3, 4])
            peer("set", keys=[5, 2], version=1)
            peer("settle")
            later = peer("get", keys=[5, 2])
        why = f"{len(during['done'])} of 3 are called stored, {found['done'][1:]} are read back; "
        why += f"afterwards {later['done']} of [5, 2] are stored"
        silent = set(during["done"]) - set(found["done"])
        ok = not found["other"] and not silent and later["done"] == [5, 2] and 1 in found["done"]
        return ("yes" if ok else "no"), why

    def short_writes(self, folder: Path) -> Verdict:
        """The kernel writes half of a value, as at a limit of the size of files."""
        limit = ["prlimit", f"--fsize={VALUE // 2}", "--"]
        try:
            with self.open(folder, wrap=limit) as peer:
                stored = peer("set", keys=KEYS, version=1)
                peer("settle")
                peer.close()
        except Ended:
            raise
        except RuntimeError as error:
            return "yes", f"says so: {error}"
        with self.open(folder) as peer:
            answer = peer("get", keys=KEYS)
        why = f"{len(stored['done'])} of 8 stored; later {len(answer['done'])} are found, "
        why += f"{len(answer['other'])} with other bytes; {stored['said'] or 'no error'}"
        ok = not answer["other"] and not set(stored["done"]) - set(answer["done"])
        return ("yes" if ok else "no"), why

    def two_processes(self, folder: Path) -> Verdict:
        """Two processes store other values under the same keys in one directory, a third reads."""
        keys, room = list(range(1, 129)), 512 * MIB
        try:
            with (
                self.open(folder, room) as one,
                self.open(folder, room) as two,
                self.open(folder, room) as three,
            ):
                one.begin("set", keys=keys, version=1)
                two.begin("set", keys=keys, version=2)
                reads = [three("get", keys=keys) for _ in range(3)]
                stored = {key for peer in (one, two) for key in peer.answer()["done"]}
                one("settle"), two("settle")
                reads += [peer("get", keys=keys) for peer in (one, two, three)]
                one.close(), two.close()
            with self.open(folder, room) as peer:
                reads.append(peer("get", keys=keys))
        except Ended:
            raise
        except RuntimeError as error:
            return "yes", f"the second process is refused: {error}"
        other = sum(len(read["other"]) for read in reads)
        lost = len(stored - set(reads[-1]["done"]))
        why = f"{len(stored)} of 128 values are called stored; {other} reads return bytes of two "
        why += f"values; after a restart {lost} are lost"
        return ("no" if other or lost else "yes"), why

    def smaller_restart(self, folder: Path) -> Verdict:
        """A directory is opened again with a quarter of its size."""
        keys = list(range(1, 33))
        with self.open(folder, 40 * MIB) as peer:
            peer("set", keys=keys, version=1)
            peer("settle")
            peer.close()
        try:
            with self.open(folder, 10 * MIB) as peer:
                peer("set", keys=[100], version=1)
                peer("settle")
                answer = peer("get", keys=[*keys, 100])
                peer.close()
        except Ended:
            raise
        except RuntimeError as error:
            return "yes", f"says so: {error}"
        size = bytes_in(folder / "data")
        why = f"{len(answer['done'])} values, {size / MIB:.1f} MiB on the disk for 10 MiB"
        ok = not answer["other"] and size <= 11 * MIB and 100 in answer["done"]
        return ("yes" if ok else "no"), why

    def prefix_order(self, folder: Path) -> Verdict:
        """A prefix is read from its start and then pressed out: what is left is its start."""
        chain = list(range(1, 25))
        with self.open(folder, 32 * MIB) as peer:
            peer("set", keys=chain, version=1)
            peer("settle")
            peer("get", keys=chain)
            peer("set", keys=list(range(100, 112)), version=1)
            peer("settle")
            left = peer("exists", keys=chain)["done"]
        whole = next((i for i, key in enumerate(chain) if key not in left), len(chain))
        dead = len(left) - whole
        if len(left) == len(chain):
            return "n/a", "nothing is evicted: there is no limit of bytes"
        why = f"{len(left)} of 24 are left, {dead} of them behind a hole"
        return ("no" if dead else "yes"), why

    def idle(self, folder: Path) -> Verdict:
        """A process that does nothing uses no processor."""
        with self.open(folder) as peer:
            peer("set", keys=KEYS, version=1)
            peer("settle")
            time.sleep(1)
            before = peer.cpu_seconds()
            time.sleep(5)
            share = (peer.cpu_seconds() - before) / 5
        return ("no" if share > 0.003 else "yes"), f"{share:.2%} of a core in 5 s"

    def experiments(self, *further: Experiment, without: tuple[str, ...] = ()) -> dict[str, Any]:
        mine = (
            self.flipped_byte,
            self.truncated_file,
            self.damage_ends,
            self.killed_in_store,
            self.leftovers_of_kills,
            self.full_file_system,
            self.short_writes,
            self.failing_reads,
            self.failing_writes,
            self.two_processes,
            self.smaller_restart,
            self.prefix_order,
            self.idle,
        )
        named = {one.__name__: one for one in (*mine, *further)}
        return {name: one for name, one in named.items() if name not in without}
