"""*Fork server*: processes of tests that begin with an engine's modules already imported.

A test starts an engine as several processes, and each would import NumPy, kvmem and thousands of
lines of the engine: a third of a second of processor time, and more on a busy machine. A fork
server is a process that has imported them once. It forks a child for each program and replaces the
child's environment, arguments, and standard input, output and errors. The child then runs the
program as its main module and ends as any interpreter does, with its threads joined and its exit
handlers called.

What a fork shares is what imports leave: modules, and the seed by which Python hashes strings. A
fault that shows only where two processes hash differently would be hidden, so :func:`start` takes
turns between two servers, whose seeds differ. A test whose subject is the import itself, or a
variable that is read by one, runs in an interpreter of its own instead.

A child leads a process group. The servers end with the process that made them, at the latest when
its socket closes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import IO, Any

MESSAGE = 1 << 17
"""Bytes of the longest message."""


class ForkServerError(Exception):
    """The server cannot import the modules, or has ended."""


class ForkedProcess:
    """A child of a server, with the members of ``subprocess.Popen`` that tests use."""

    def __init__(self, server: ForkServer, pid: int, stdin: int, stdout: int, stderr: int) -> None:
        self._server = server
        self.pid = pid
        self.stdin: IO[str] = os.fdopen(stdin, "w")
        self.stdout: IO[str] = os.fdopen(stdout)
        self.stderr: IO[str] = os.fdopen(stderr)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Returns the exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.ask(wait=self.pid)["status"]
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
            time.sleep(0.002)
        return status

    def kill(self) -> None:
        # The number belongs to this process until its status is fetched.
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Closes its input, and returns the rest of what it writes."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        outputs = ["", ""]

        def read(at: int, pipe: IO[str]) -> None:
            with pipe:
                outputs[at] = pipe.read()

        pipes = enumerate((self.stdout, self.stderr))
        readers = [threading.Thread(target=read, args=one, daemon=True) for one in pipes]
        for reader in readers:
            reader.start()
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        for reader in readers:
            reader.join(None if timeout is None else max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
        self.wait(None if timeout is None else max(0.0, end - time.monotonic()))
        return outputs[0], outputs[1]


class ForkServer:
    """A process that has run a prelude, and forks itself for programs."""

    def __init__(self, prelude: str) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # NumPy's own threads would not survive a fork.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        environment.pop("PYTHONHASHSEED", None)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", __file__, str(theirs.fileno()), prelude],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        atexit.register(self.close)
        self._answer()

    def start(
        self, program: str, arguments: list[str], environment: dict[str, str]
    ) -> ForkedProcess:
        """Starts a program as the main module of a child."""
        (stdin, to_child), (from_child, stdout), (errors, stderr) = (os.pipe() for _ in range(3))
        theirs = [stdin, stdout, stderr]
        try:
            answer = self.ask(theirs, program=program, arguments=arguments, environment=environment)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return ForkedProcess(self, answer["pid"], to_child, from_child, errors)

    def ask(self, descriptors: list[int] | None = None, **request: Any) -> dict[str, Any]:
        message = json.dumps(request).encode()
        assert len(message) <= MESSAGE, f"a request of {len(message)} bytes: at most {MESSAGE}"
        with self._lock:
            socket.send_fds(self._socket, [message], descriptors or [])
            return self._answer()

    def _answer(self) -> dict[str, Any]:
        message = self._socket.recv(MESSAGE)
        if not message:
            _, errors = self._process.communicate()
            raise ForkServerError(errors)
        answer: dict[str, Any] = json.loads(message)
        return answer

    def close(self) -> None:
        """Ends the server. Its children end by themselves."""
        self._socket.close()
        self._process.communicate()


@functools.cache
def _servers(prelude: str, count: int) -> Iterator[ForkServer]:
    return itertools.cycle([ForkServer(prelude) for _ in range(count)])


def start(
    prelude: str, program: str, arguments: list[str], environment: dict[str, str], servers: int = 2
) -> ForkedProcess:
    """Starts a program in a process that has run a prelude. Each prelude has two servers."""
    return next(_servers(prelude, servers)).start(program, arguments, environment)


def run(
    prelude: str, program: str, arguments: list[str], environment: dict[str, str], limit: float
) -> str:
    """Runs a program, which must succeed within a limit in seconds, and returns what it has
    written. Its process works alone, so one server is enough.
    """
    process = start(prelude, program, arguments, environment, servers=1)
    try:
        out, errors = process.communicate(limit)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, f"{process.returncode}\n{out}\n{errors}"
    return out + errors


def _serve(control: socket.socket) -> str | None:
    """Forks a child for each request. Returns the program in a child, and None at the end."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE, 3)
        if not message:
            return None
        request = json.loads(message)
        if "wait" in request:
            pid, status = os.waitpid(request["wait"], os.WNOHANG)
            ended = os.waitstatus_to_exitcode(status) if pid else None
            control.send(json.dumps({"status": ended}).encode())
            continue
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            control.close()
            for target, descriptor in enumerate(descriptors):
                os.dup2(descriptor, target)
                os.close(descriptor)
            os.environ.clear()
            os.environ.update(request["environment"])
            sys.argv = ["-c", *request["arguments"]]
            program: str = request["program"]
            return program
        # Whichever is first: the group is there before the answer, and before the program.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps({"pid": pid}).encode())


def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    exec(compile(sys.argv[2], "<prelude>", "exec"), {"__name__": "prelude"})
    # The objects of the imports live on. The collector of a child does not look at them, so it does
    # not copy their pages.
    gc.collect()
    gc.freeze()
    control.send(b"{}")
    program = _serve(control)
    if program is not None:
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(program, "<program>", "exec"), vars(main))


if __name__ == "__main__":
    _main()
