"""*NIXL*: transfers between pools and between plain mappings, measured in one run.

    python -m kvmem.bench.nixl [--rounds 25] [--transfers 40] [--size 1MiB]

Two processes have a pool and a plain ``mmap`` of the same length each, all of it touched. UCX uses
the transports that it finds on loopback. :class:`kvmem.nixl.Agent` transfers between the pools, and
NIXL's own calls, as without kvmem, between the mappings. Each round writes and reads
``--transfers`` times with both, in turns, and the order changes from round to round. The result is
the median of the rounds' ratios, because the two halves of a round run under the same conditions.
The exit status is 0 if transfers between pools are no slower than those between mappings, otherwise
1.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter_ns
from typing import Any

import kvmem
import kvmem.nixl
from kvmem.nixl.engine import library

GOAL = 1.0
SLOTS = 16


class PlainMapping:
    """A plain mapping, registered with an agent of NIXL."""

    def __init__(self, name: str, size: int) -> None:
        api = library()
        self.size = size
        self.memory = mmap.mmap(-1, size * SLOTS)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.memory[:] = bytes([1]) * (size * SLOTS)
        self.agent: Any = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
        self.registered = self.agent.register_memory(
            [(self.at, size * SLOTS, 0, "")], mem_type="DRAM"
        )

    def slot(self, at: int, index: int) -> Any:
        return self.agent.get_xfer_descs([(at + index * self.size, self.size, 0)], mem_type="DRAM")

    def copy(self, operation: str, peer: str, at: int, index: int) -> None:
        handle = self.agent.initialize_xfer(
            operation, self.slot(self.at, index), self.slot(at, index), peer
        )
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            raise RuntimeError(f"the transfer failed: NIXL reports {state}")


def peer_process(size: int, pipe: Connection) -> None:
    """Runs in the other process, which only provides memory."""
    with kvmem.Pool(size * SLOTS) as pool, kvmem.nixl.Agent(pool) as agent:
        blocks = [pool.allocate(size) for _ in range(SLOTS)]
        for block in blocks:
            block.write(bytes([1]) * size)
        plain = PlainMapping(f"{agent.name}-plain", size)
        pipe.send(
            (
                agent.metadata,
                [agent.descriptors(block) for block in blocks],
                plain.agent.get_agent_metadata(),
                plain.at,
            )
        )
        pipe.recv()


def measure(rounds: int, transfers: int, size: int) -> dict[str, dict[str, float]]:
    """Returns microseconds per transfer, median of the rounds, by operation and kind of memory, and
    the median of the rounds' ratios.
    """
    context = multiprocessing.get_context("spawn")
    pipe, peer_end = context.Pipe()
    process = context.Process(target=peer_process, args=(size, peer_end), daemon=True)
    process.start()
    figures: dict[str, dict[str, float]] = {}
    try:
        peer_end.close()  # its death then ends the receiving
        metadata, descriptors, plain_metadata, plain_at = pipe.recv()
        with kvmem.Pool(size * SLOTS) as pool, kvmem.nixl.Agent(pool) as agent:
            blocks = [pool.allocate(size) for _ in range(SLOTS)]
            for block in blocks:
                block.write(bytes([2]) * size)
            peer = agent.connect(metadata)
            plain = PlainMapping(f"{agent.name}-plain", size)
            plain_peer = plain.agent.add_remote_agent(plain_metadata)
            for operation, begin in (("write", agent.write), ("read", agent.read)):
                name = operation.upper()

                def between_pools(slot: int, begin: Any = begin) -> None:
                    begin(blocks[slot], peer, descriptors[slot]).wait()

                def between_mappings(slot: int, name: str = name) -> None:
                    plain.copy(name, plain_peer, plain_at, slot)

                variants: dict[str, Callable[[int], None]] = {
                    "pool": between_pools,
                    "mmap": between_mappings,
                }
                took: dict[str, list[float]] = {variant: [] for variant in variants}
                for turn in range(-2, rounds):  # the first two connect and warm up
                    for variant in sorted(variants, reverse=bool(turn % 2)):
                        started = perf_counter_ns()
                        for index in range(transfers):
                            variants[variant](index % SLOTS)
                        if turn >= 0:
                            took[variant].append((perf_counter_ns() - started) / transfers / 1000)
                figures[operation] = {variant: median(values) for variant, values in took.items()}
                figures[operation]["ratio"] = median(
                    plain_us / us for plain_us, us in zip(took["mmap"], took["pool"], strict=True)
                )
            peer.close()
            plain.agent.remove_remote_agent(plain_peer)
            pipe.send("end")
            process.join(10)
    finally:
        process.kill()
        process.join()
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(
        prog="python -m kvmem.bench.nixl",
        description="Transfers by NIXL between pools and plain mappings",
    )
    options.add_argument(
        "--rounds",
        type=int,
        default=25,
        help="rounds, of which the median counts (default: %(default)s)",
    )
    options.add_argument(
        "--transfers",
        type=int,
        default=40,
        help="transfers of each kind in a round (default: %(default)s)",
    )
    options.add_argument(
        "--size", type=int, default=1 << 20, help="bytes of a transfer (default: %(default)s)"
    )
    chosen = options.parse_args(arguments)
    os.environ.setdefault("UCX_NET_DEVICES", "lo")
    # The other process imports no module of the current folder before it has this one's path.
    os.environ.update(PYTHONSAFEPATH="1")
    try:
        figures = measure(chosen.rounds, chosen.transfers, chosen.size)
    except kvmem.NotAvailableError as error:
        print(f"kvmem: {error}", file=sys.stderr)
        return 2
    print(
        f"NIXL, UCX: transfers of {chosen.size} bytes between two processes, median of "
        f"{chosen.rounds} rounds of {chosen.transfers}"
    )
    print(f"{'':8}{'pool':>10}{'mmap':>10}   (GB/s)")
    worst = float("inf")
    for operation, found in figures.items():
        ratio = found.pop("ratio")
        worst = min(worst, ratio)
        speed = {variant: chosen.size / us / 1000 for variant, us in found.items()}
        print(f"{operation:8}{speed['pool']:10.2f}{speed['mmap']:10.2f}   ratio {ratio:.3f}")
    met = worst >= 0.97 * GOAL
    print(f"ratio {worst:.3f}, goal {GOAL:.2f} (less 3 % of noise): {'met' if met else 'missed'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
