"""*Node*: ``kvmem serve`` for the tests with a real engine, and their prompts."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kvmem
import model

MIB = 1 << 20
BLOCK = 128
"""Tokens of a block of the KV cache, vLLM's default on the CPU."""
TOKEN = 6 * 2 * model.HEADS * model.HEAD * 4
"""Bytes of the KV cache of a token."""


def prompt(seed: int, tokens: int) -> list[int]:
    """Returns a prompt, equal for equal seeds. Token 1 ends an output."""
    draw = random.Random(seed)
    return [draw.randrange(2, model.VOCABULARY) for _ in range(tokens)]


def within(limit: float, true: Callable[[], object]) -> None:
    """Waits until a condition is true."""
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, f"not within {limit} s"
        time.sleep(0.02)


class Node:
    """``kvmem serve`` with its memory holder, which has the memory while no server runs."""

    def __init__(self, folder: Path, size: int, *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "k.sock"
        program = os.environ.get("KVMEM_COMMAND") or str(Path(sys.executable).with_name("kvmem"))
        self._command = [program, "serve", "--size", str(size), "--socket", str(self.path)]
        self._command += ["--pages", "4k", "--json", "-", *options]
        self._errors = folder / "serve.log"
        try:
            self.start()
        except BaseException:
            # A memory holder may run already.
            self.stop()
            raise

    def start(self) -> dict[str, Any]:
        """Starts a server, and returns its report once it serves."""
        with open(self._errors, "a") as errors:
            self._server = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._server.stdout is not None
        text = ""
        for line in self._server.stdout:
            text += line
            with contextlib.suppress(ValueError):
                report: dict[str, Any] = json.loads(text)
                return report
        raise AssertionError(self._errors.read_text())

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._server.pid

    def signal(self, number: int) -> None:
        """Sends a signal to the server."""
        self._server.send_signal(number)

    def kill(self) -> None:
        """Ends the server as the kernel does when memory is short."""
        self._server.kill()
        self._server.wait()

    def stop(self) -> None:
        """Ends the server and its memory holder, and with them the memory."""
        self.kill()
        holder = [*self._command[:1], "holder", "--stop", "--socket", f"{self.path}.holder"]
        subprocess.run(holder, capture_output=True)

    def stats(self) -> Any:
        """Returns the server's figures."""
        with kvmem.connect(self.path) as client:
            return client.stats()

    def reservations(self) -> int:
        """Returns the number of reservations that clients have."""
        with kvmem.connect(self.path) as client:
            return sum(it.reservations for it in client.as_operator().sessions())

    def damage(self, each: int = 1) -> None:
        """Flips a bit of an exponent in every page of the memory, or in one of each N."""
        with kvmem.connect(self.path) as client:
            memory = (ctypes.c_uint8 * client.memory_len).from_address(client.memory_address)
            for at in range(67, client.memory_len, each * 4096):
                memory[at] ^= 0x40


def shared(node: Node, **options: Any) -> dict[str, Any]:
    """Returns the options of an engine with the memory of a node."""
    return {"spec_name": "KvmemSharedSpec", "kvmem": {"socket": str(node.path), **options}}
