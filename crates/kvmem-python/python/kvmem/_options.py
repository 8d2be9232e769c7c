"""*Options*: fields of a dataclass, read from the mapping that an engine's configuration has."""

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any, TypeVar

from ._kvmem import parse_size
from .errors import InvalidArgumentError

Reader = Callable[[Any, str], Any]
"""Checks and converts a value. The text names the option in errors."""
_T = TypeVar("_T")


def option(read: Reader, default: Any = None) -> Any:
    """Returns a field that an option sets."""
    return field(default=default, metadata={"read": read})


def parse(kind: type[_T], options: Mapping[str, Any], where: str, prefix: str) -> _T:
    """Returns the dataclass of options. Errors name the mapping ``where``, and an option by its
    name behind ``prefix``. Raises :class:`InvalidArgumentError` with the value and the remedy."""
    declared: Any = kind
    readers: dict[str, Reader] = {it.name: it.metadata["read"] for it in fields(declared)}
    for name in options:
        if name not in readers:
            near = difflib.get_close_matches(str(name), readers, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"its names are {', '.join(readers)}"
            raise InvalidArgumentError(f"{where} has no option {name!r}: {hint}", value=name)
    return kind(**{name: readers[name](value, prefix + name) for name, value in options.items()})


def checked(
    is_right: Callable[[Any], object],
    right: str,
    convert: Callable[[Any], Any] = lambda value: value,
    *,
    optional: bool = False,
) -> Reader:
    """Returns the reader of values that a function accepts; ``right`` says which these are. None
    is accepted as well if the option is ``optional``."""

    def read(value: Any, name: str) -> Any:
        if value is None and optional:
            return None
        if not is_right(value):
            raise InvalidArgumentError(f"{name} is {value!r}: give {right}", value=value)
        return convert(value)

    return read


def is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def is_whole(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_time(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value < math.inf


def _is_users(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(is_whole(it) and it < 2**32 for it in value)


flag = checked(lambda value: isinstance(value, bool), "true or false")
path = checked(is_text, "a path", Path)
seconds = checked(lambda value: _is_time(value) and value, "a number of seconds above 0", float)
wait = checked(_is_time, "a number of seconds of 0 or more", float)
size = checked(
    lambda value: isinstance(value, str) or is_whole(value),
    'a number of bytes, such as "64GiB"',
    lambda value: parse_size(value) if isinstance(value, str) else value,
)
users = checked(_is_users, "a list of numbers of users, such as [1000]", tuple)
