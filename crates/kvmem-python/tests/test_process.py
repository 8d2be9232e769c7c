"""Processes: forks, exits, signals, subinterpreters, threads without the GIL; and the command."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path

import kvmem
import pytest
from conftest import LIMIT
from leftovers import in_shm, remove_unused

Script = Callable[..., str]


def test_a_forked_child_cannot_use_objects_of_its_parent(script: Script) -> None:
    out = script("""
        import os, gc, kvmem
        pool = kvmem.Pool("4MiB", pages="4k")
        block, cache = pool.allocate(100), kvmem.KvCache(pool)
        region = kvmem.Region("1MiB", pages="4k")
        cache.insert(1, b"value")
        pinned, room, batch = cache.get(1), cache.reserve(2, 10), pool.allocate_batch(10, 10)
        space = kvmem.OffsetAllocator(1000)
        kept = space.allocate(10)
        block.write(b"parent")
        child = os.fork()
        if child == 0:
            failing = 0
            for use in (lambda: pool.allocate(1), lambda: block.ptr, lambda: memoryview(block),
                block.free, lambda: block.write(b"x"),
                        lambda: region.residency(), lambda: cache.get(1), lambda: bytes(pinned),
                        room.commit, batch.free, pool.report,
                        lambda: kvmem.KvCache(pool)):
                try:
                    use()
                except kvmem.ForkedError as error:
                    assert isinstance(error, RuntimeError) and "forked" in str(error)
                    failing += 1
            print("failing", failing)
            # Offsets have no memory: the child has a copy.
            kept.free()
            assert space.metrics().live == 0
            # New objects belong to the child.
            with kvmem.Pool("1MiB", pages="4k") as mine:
                b = mine.allocate(10)
                b.write(b"child")
                assert bytes(b)[:5] == b"child"
            for used in (pool, region, cache):
                with used if False else __import__("contextlib").nullcontext():
                    used.close()
            del pool, block, region, cache, pinned, room, batch
            gc.collect()
            raise SystemExit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert bytes(block)[:6] == b"parent" and bytes(pinned) == b"value"
        assert space.metrics().live == 1
        room.commit()
        batch.free()
        pool.check()
    """)
    assert "failing 12" in out


def test_every_call_fails_in_a_child_forked_while_threads_use_a_cache(script: Script) -> None:
    out = script("""
        import os, signal, threading, kvmem
        pool = kvmem.Pool("1MiB", pages="4k")
        cache = kvmem.KvCache(pool, max_blocks=100)
        done, rounds = threading.Event(), [0]
        def work(seed):
            while not done.is_set():
                for key in range(seed, 400, 3):
                    cache.insert(key, b"x" * 100)
                    cache.get((key * 7) % 400)
                    cache.remove((key * 11) % 400)
                    key in cache
                rounds[0] += 1
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        while rounds[0] < 3:
            pass
        for turn in range(40):
            room, other = cache.reserve(1000, 10), cache.reserve(1000, 10)
            child = os.fork()
            if child == 0:
                signal.alarm(20)  # ends a child that waits for ever
                calls = [lambda: 1 in cache, lambda: cache.get(1),
                         lambda: cache.insert(1, b"value"), lambda: cache.reserve(1, 10),
                         lambda: cache.remove(1), cache.clear,
                         lambda: cache.evict_to(0), cache.stats, lambda: cache.prefetch([1]),
                         lambda: len(cache), lambda: cache.nbytes, room.commit,
                         other.discard]
                failing = 0
                for call in calls:
                    try:
                        call()
                    except kvmem.ForkedError:
                        failing += 1
                repr(cache), cache.pool, cache.close()
                os._exit(0 if failing == len(calls) else 1)
            assert os.waitpid(child, 0)[1] == 0, turn
            room.discard(), other.discard()
        done.set()
        for thread in threads:
            thread.join()
        print("well")
    """)
    assert "well" in out


def test_multiprocessing_by_fork(script: Script) -> None:
    out = script("""
        import multiprocessing, kvmem
        pool = kvmem.Pool("4MiB", pages="4k", shared=True, in_background=True)
        block = pool.allocate(8) if pool.wait_ready() else None
        block.write(b"12345678")
        def work(fd, reference):
            with kvmem.AttachedPool(fd) as attached:
                return bytes(attached.block(reference))
        with multiprocessing.get_context("fork").Pool(2) as workers:
            print(workers.starmap(work, [(pool.fileno(), block.reference())] * 4))
    """)
    assert out.count("12345678") == 4


EXITS = {
    "live blocks": "pool = kvmem.Pool('4MiB', pages='4k'); blocks = [pool.allocate(100) for _ in "
    "range(1000)]",
    "live views": "import numpy\nkeep = numpy.from_dlpack(kvmem.Pool('4MiB', "
    "pages='4k').allocate(100)); keep[:] = 1",
    "a capsule": "keep = kvmem.Pool('4MiB', pages='4k').allocate(100).__dlpack__(max_version=(1, "
    "0))",
    "a thread that allocates": """
        import threading
        pool = kvmem.Pool('4MiB', pages='4k')
        def work():
            while True:
                pool.allocate(100).free()
        threading.Thread(target=work, daemon=True).start()
    """,
    "a pool on its way": """
        calls = []
        pool = kvmem.Pool('256MiB', pages='4k', boundary='1MiB', in_background=True,
            progress=lambda *at: calls.append(at))
        pool.wait_ready('1MiB')
    """,
    "a thread that builds": """
        import threading
        built = threading.Semaphore(0)
        def work():
            while True:
                kvmem.Pool('16MiB', pages='4k', progress=lambda done, total: None)
                built.release()
        threading.Thread(target=work, daemon=True).start()
        built.acquire()
        built.acquire()
    """,
    "a cycle": """
        class Node: pass
        node = Node()
        node.me = node
        node.pool = kvmem.Pool('1MiB', pages='4k')
        node.block = node.pool.allocate(10)
        del node
    """,
    "an exception": "pool = kvmem.Pool('1MiB', pages='4k')\nblock = pool.allocate(5)\nraise "
    "SystemExit(0)",
}


@pytest.mark.parametrize("what", EXITS)
def test_the_interpreter_exits_cleanly_with(what: str, script: Script) -> None:
    import textwrap

    for _ in range(2):
        assert script("import kvmem\n" + textwrap.dedent(EXITS[what])) == ""


def test_the_last_user_of_a_pool_does_not_wait_with_the_gil(script: Script) -> None:
    out = script("""
        import threading, time, kvmem
        told = threading.Event()
        def callback(done, total):
            told.set()
            time.sleep(0.02)
        pool = kvmem.Pool("16MiB", pages="4k", boundary="1MiB", in_background=True,
            progress=callback)
        cache = kvmem.KvCache(pool)
        told.wait()
        pool.wait_ready("1MiB")
        room = cache.reserve(1, 10)
        waiting = threading.Thread(target=pool.wait_ready, kwargs=dict(timeout=0.1))
        waiting.start()
        time.sleep(0.02)
        pool.close()
        cache.close()
        waiting.join()
        # Now only the reservation has the pool, whose thread waits for the GIL.
        room.commit()
        print("done")
    """)
    assert "done" in out


def test_ctrl_c_ends_long_work(script: Script) -> None:
    out = script("""
        import os, signal, threading, time, kvmem
        # It may be ignored here, as in the background of a shell.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sent, senders = threading.Event(), []
        def send():
            os.kill(os.getpid(), signal.SIGINT)
            sent.set()
        def progress(done, total):
            if not senders:
                senders.append(threading.Thread(target=send))
                senders[0].start()
            # The work does not end before the signal.
            if done == total:
                sent.wait()
            time.sleep(0.001)
        try:
            kvmem.Region("512MiB", pages="4k", populate=1, progress=progress)
        except KeyboardInterrupt:
            print("interrupted")
    """)
    assert "interrupted" in out


def test_the_gil_is_released_while_memory_is_populated() -> None:
    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    # With the GIL, a call would see one tick at most. On a busy machine a call may see few as well.
    end = time.monotonic() + LIMIT
    during = 0
    while during <= 5 and time.monotonic() < end:
        before = ticks
        kvmem.Region("256MiB", pages="4k", populate=1)
        during = ticks - before
    stop.set()
    thread.join()
    assert during > 5


def test_subinterpreters_get_an_error_with_the_reason(script: Script) -> None:
    name = next(
        (
            name
            for name in ("_xxsubinterpreters", "_interpreters")
            if importlib.util.find_spec(name)
        ),
        None,
    )
    if name is None:
        pytest.skip("this interpreter has no subinterpreters")
    out = script(f"""
        import {name} as interpreters, kvmem
        block = kvmem.Pool("1MiB", pages="4k").allocate(5)
        code = '''
        try:
            import kvmem
        except ImportError as error:
            print("failing:", error, flush=True)
        '''
        import textwrap
        one = interpreters.create()
        interpreters.run_string(one, textwrap.dedent(code))
        interpreters.destroy(one)
        block.write(b"still")
        assert bytes(block) == b"still"
    """)
    assert "failing:" in out and "interpreter" in out


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvmem", *arguments], capture_output=True, text=True, timeout=LIMIT
    )


def test_the_module_is_the_command() -> None:
    """``python -m kvmem`` and the installed script are the compiled program."""
    assert command("--version").stdout == f"kvmem {kvmem.__version__}\n"
    done = command(
        *("doctor", "--size", "1.5GiB", "--pages", "1G,thp", "--nodes", "1,0"),
        *("--shared", "--no-pin", "--json"),
    )
    report = json.loads(done.stdout)
    requirements = report["requirements"]
    assert (requirements["size_bytes"], requirements["pages"], requirements["nodes"]) == (
        3 << 29,
        ["1G", "thp"],
        [0, 1],
    )
    assert done.returncode == int(report["verdict"] == "fail")
    done = command("doctor", "--size", "0")
    assert done.returncode == 2 and done.stderr
    assert "--master HOST:PORT" in command("serve-mooncake", "--help").stdout
    for name in ("doctor", "serve-mooncake", "mount", "trace"):
        assert re.search(rf"^ +{name}\s+\w", command("--help").stdout, re.M), name


def test_the_function_reports_what_the_command_prints() -> None:
    done = command("doctor", "--size", "64MiB", "--pages", "4k", "--json")
    theirs, ours = json.loads(done.stdout), kvmem.doctor("64MiB", pages="4k")
    for part, name in (("checks", "name"), ("registrars", "backend")):
        assert [each[name] for each in theirs[part]] == [each[name] for each in ours[part]]
    assert done.returncode == int(not ours.passes)


def test_the_command_starts_the_program_of_its_environment(tmp_path: Path) -> None:
    """``serve-mooncake`` is a script of the package: beside the command, before any in PATH."""
    script = Path(sys.executable).parent / "kvmem"
    if not script.exists():
        pytest.skip("the package is not installed with its scripts")
    other = tmp_path / "kvmem-serve-mooncake"
    other.write_text("#!/bin/sh\necho another\n", encoding="utf-8")
    other.chmod(0o755)
    done = subprocess.run(
        [script, "serve-mooncake", "--help"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    assert done.returncode == 0 and "--master HOST:PORT" in done.stdout, done.stderr


def test_without_a_command_the_module_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvmem import __main__ as module

    monkeypatch.setattr(module, "program", lambda: None)
    assert module.main(["--version"]) == 2
    assert "pip install ./crates/kvmem-python" in capsys.readouterr().err


def test_doctor_as_a_function() -> None:
    found = kvmem.doctor("4KiB", pages="4k", pinned=False)
    assert found.passes == (found["verdict"] != "fail") and found.requirements.startswith(
        "4 KiB of 4k pages"
    )
    found = kvmem.doctor(1 << 60, pages=["4k"])
    assert not found.passes and "memory" in " ".join(found.failed)
    assert found.fix_script.startswith("#!/bin/sh\n# Remedies of `kvmem doctor` for ")
    assert all(check["source"] for check in found["checks"])
    assert str(found) == found.text and found["requirements"]["size_bytes"] == 1 << 60
    with pytest.raises(kvmem.InvalidArgumentError):
        kvmem.doctor(0)


def test_shared_memory_of_killed_processes_is_removed(script: Script) -> None:
    """As the tests of engines do, which kill processes together with their resource trackers."""
    code = """
        import os, signal
        from multiprocessing import resource_tracker, shared_memory
        memory = shared_memory.SharedMemory(create=True, size=4096)
        print(memory.name, flush=True)
        os.kill(resource_tracker._resource_tracker._pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    before = in_shm()
    mapped = shared_memory.SharedMemory(create=True, size=4096)
    try:
        with pytest.raises(AssertionError) as killed:
            script(code)
        name = next(word for word in str(killed.value).split() if word.startswith("psm_"))
        assert name in in_shm()
        removed = remove_unused(before)
        assert name in removed and name not in in_shm() and mapped.name in in_shm() - removed
    finally:
        mapped.close()
        mapped.unlink()
