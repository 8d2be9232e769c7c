"""*Size*: bytes as the commands read them."""

from __future__ import annotations

import argparse

from ._kvmem import parse_size
from .errors import InvalidArgumentError


def size(text: str) -> int:
    """A number of bytes, as all of kvmem reads it: ``64GiB`` and ``64G`` are powers of 1024, ``64GB`` is one of 1000."""
    try:
        return parse_size(text)
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
