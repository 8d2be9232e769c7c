"""*Size*: numbers of bytes in the options of commands."""

from __future__ import annotations

import argparse

from ._kvmem import parse_size
from .errors import InvalidArgumentError


def size(text: str) -> int:
    """Parses a number of bytes: ``64GiB`` and ``64G`` are powers of 1024, ``64GB`` is a power of
    1000.
    """
    try:
        return parse_size(text)
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
