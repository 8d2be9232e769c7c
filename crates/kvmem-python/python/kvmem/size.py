"""*Size*: bytes as the commands read them."""

from __future__ import annotations

import argparse
import re
from decimal import Decimal


def size(text: str) -> int:
    """A number of bytes as the command reads it: ``64GiB`` is a power of 1024, ``64GB`` and ``64G`` one of 1000."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgtpe])(i?))?b?\s*", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; examples: 4096, 64GiB, 1.5TiB")
    number, unit, binary = found.groups()
    power = " kmgtpe".index(unit.lower()) if unit else 0
    return int(Decimal(number) * (1024 if binary else 1000) ** power)
