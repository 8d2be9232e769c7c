#!/usr/bin/env python3
"""foyer's disk cache in experiments with faults: `bench/contenders/foyer/src/bin/faults.rs`, which
`cargo xtask faults foyer` builds, and which says with which options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiment import Peer, main
from files import Files

PROGRAM = Path(__file__).parents[3] / "target/contenders/release/faults"
VERSION = "0.22.6"
"""In the program's Cargo.toml."""


def start(log: Path, wrap: Any = ()) -> Peer:
    return Peer([str(PROGRAM)], log, wrap)


if __name__ == "__main__":
    # A general cache: no key of it follows another.
    experiments = Files(start, fixed=True).experiments(without=("prefix_order",))
    main(f"foyer {VERSION}, HybridCache", experiments)
