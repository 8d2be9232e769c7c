"""The other process of the tests of NIXL: a pool, an agent, and a line of JSON for each line of
JSON.

Its first line says who it is. Until then it has no agent, so it can be started long before it is
wanted.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

import kvmem
import kvmem.nixl
from kvmem.nixl.engine import library

SIZE, COUNT = 1 << 20, 16


def main() -> None:
    library()
    first = sys.stdin.readline()
    if not first:
        return
    who = json.loads(first)
    os.environ.update(who["environment"])
    with (
        kvmem.Pool(2 * SIZE * COUNT, pages="4k") as pool,
        kvmem.nixl.Agent(pool, name=who["name"]) as agent,
    ):
        blocks = pool.allocate_batch(SIZE, COUNT).split()
        for at, block in enumerate(blocks):
            block.write(bytes([at + 1]) * SIZE)
        print(
            json.dumps(
                {"metadata": agent.metadata.hex(), "descriptors": agent.descriptors(blocks).hex()}
            ),
            flush=True,
        )
        for line in sys.stdin:
            request = json.loads(line)
            said: dict[str, object] = {}
            if "sums" in request:
                said["sums"] = [hashlib.sha256(block).hexdigest() for block in blocks]
            if "notifications" in request:
                found = agent.notifications(timeout=60.0)
                said["notifications"] = [[one.peer, one.message.decode()] for one in found]
            if "work" in request:
                # Starts to read and write, and does not wait.
                peer = agent.connect(bytes.fromhex(request["metadata"]))
                begin = getattr(agent, request["work"])
                transfer = begin(
                    blocks,
                    peer,
                    bytes.fromhex(request["descriptors"]),
                    request.get("notify", "").encode(),
                )
                if request.get("wait"):
                    transfer.wait(60.0)
                said["done"] = transfer.done
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
