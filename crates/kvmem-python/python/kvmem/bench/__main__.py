"""``python -m kvmem.bench NAME …``: runs one of the benchmarks of this folder."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path


def names() -> list[str]:
    """Returns the names of the benchmarks: modules of this folder with a ``main(arguments)`` that
    returns an exit status.
    """
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name for module in found if not module.name.startswith("_"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a benchmark and returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in names():
        print(f"usage: python -m kvmem.bench {{{','.join(names())}}} …", file=sys.stderr)
        return 0 if given[:1] in (["-h"], ["--help"]) else 2
    status = importlib.import_module(f"kvmem.bench.{given[0]}").main(given[1:])
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
