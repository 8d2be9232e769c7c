#!/usr/bin/env python3
"""Redis as a contender of `kvmem-lab bench node`: values over a Unix socket, nothing on a disk.

The head of lab/src/bench/node/mod.rs says how the two talk. The program starts `redis-server` of
the path and is its only client. It does less than any client library: it knows the length of every
answer beforehand, so a call of N values is one system call to send N requests (pipelined), and as
few to receive as the socket allows, straight into the memory of the values."""

import os
import socket
import subprocess
import time

from lines import serve

# What the socket may hold; the system allows as much as it is set to.
SOCKET_BYTES = 8 << 20

# Requests in one system call: with 64 of 1 MiB, stores take as long, and reads twice as long.
PIPELINED = 16


class Contender:
    """A server with values of one length."""

    def __init__(self, dir: str, bytes: int, value_bytes: int, batch: int) -> None:
        self.slots, self.batch = bytes // value_bytes, min(batch, PIPELINED)
        path = os.path.join(dir, "redis.sock")
        options = {
            "port": 0,
            "unixsocket": path,
            "dir": dir,
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "loglevel": "warning",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self.server = subprocess.Popen(
            ["redis-server", *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        self.socket = self.connect(path)
        random = os.urandom(value_bytes)
        self.values = [bytearray(random) for _ in range(self.batch)]
        self.rooms = [bytearray(value_bytes) for _ in range(self.batch)]
        self.value_head = b"$%d\r\n" % value_bytes

    def connect(self, path: str) -> socket.socket:
        deadline = time.monotonic() + 30
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(path)
                break
            except OSError:
                connection.close()
                if self.server.poll() is not None:
                    raise RuntimeError("redis-server ended") from None
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
        return connection

    def key(self, number: int) -> bytes:
        # As long as the others' keys.
        return b"%032d" % (number % self.slots)

    def receive(self, wanted: list[bytes | bytearray | memoryview]) -> None:
        """Receives into the buffers, in turn."""
        left = [memoryview(buffer) for buffer in wanted]
        while left:
            count = self.socket.recvmsg_into(left, 0, socket.MSG_WAITALL)[0]
            if count == 0:
                raise RuntimeError("redis-server closed the connection")
            left = behind(left, count)

    def send(self, parts: list[bytes | bytearray]) -> None:
        left = [memoryview(part) for part in parts]
        while left:
            left = behind(left, self.socket.sendmsg(left))

    def store(self, first: int, count: int) -> dict[str, float]:
        seconds = 0.0
        for start in range(first, first + count, self.batch):
            numbers = range(start, min(start + self.batch, first + count))
            for value, number in zip(self.values, numbers):
                value[:8] = number.to_bytes(8, "little")
            begin = time.perf_counter()
            parts = []
            for value, number in zip(self.values, numbers):
                key = self.key(number)
                head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n%s" % (len(key), key, self.value_head)
                parts += [head, value, b"\r\n"]
            self.send(parts)
            answers = bytearray(len(numbers) * len(b"+OK\r\n"))
            self.receive([answers])
            seconds += time.perf_counter() - begin
            if answers != b"+OK\r\n" * len(numbers):
                raise RuntimeError(f"redis-server answered {bytes(answers[:80])!r}")
        return {"seconds": seconds}

    def read(self, numbers: list[int]) -> dict[str, float]:
        seconds = 0.0
        for at in range(0, len(numbers), self.batch):
            part = numbers[at : at + self.batch]
            begin = time.perf_counter()
            keys = [self.key(number) for number in part]
            requests = [b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key) for key in keys]
            self.send([b"".join(requests)])
            heads = [bytearray(len(self.value_head)) for _ in part]
            tails = [bytearray(2) for _ in part]
            rooms = self.rooms[: len(part)]
            answers = zip(heads, rooms, tails)
            self.receive([buffer for answer in answers for buffer in answer])
            seconds += time.perf_counter() - begin
            for number, head, room in zip(part, heads, rooms):
                found = int.from_bytes(room[:8], "little")
                if head != self.value_head or found != number:
                    raise RuntimeError(f"value {number} is missing, or is {found}")
        return {"seconds": seconds}

    def lookup(self, numbers: list[int], times: int) -> dict[str, float]:
        begin = time.perf_counter()
        answer = b":%d\r\n" % len(numbers)
        for _ in range(times):
            keys = [self.key(number) for number in numbers]
            words = [b"$%d\r\n%s\r\n" % (len(key), key) for key in keys]
            self.send([b"*%d\r\n$6\r\nEXISTS\r\n" % (len(keys) + 1), b"".join(words)])
            found = bytearray(len(answer))
            self.receive([found])
            if found != answer:
                raise RuntimeError(f"redis-server answered {bytes(found)!r}")
        return {"seconds": time.perf_counter() - begin}

    def close(self) -> None:
        self.socket.close()
        self.server.terminate()
        self.server.wait()


def behind(buffers: list[memoryview], count: int) -> list[memoryview]:
    """Returns the parts of the buffers behind the first `count` bytes."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return []


if __name__ == "__main__":
    serve(Contender)
