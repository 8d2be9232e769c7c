"""*Data type*: the types of the elements of KV caches, by the names of engines."""

from collections.abc import Iterable

NAMES = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
"""Types that a hint can name: PyTorch's names."""
_OTHERS = {
    "half": "float16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "float8_e4m3fnuz": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "float8_e5m2fnuz": "float8_e5m2",
}
"""Names of engines for types with these bits of exponent and mantissa."""


def data_type_of(dtype: object) -> str:
    """Returns the hint for a type, of PyTorch or by an engine's name; "unknown" for others."""
    name = str(dtype).removeprefix("torch.")
    name = _OTHERS.get(name, name)
    return name if name in NAMES else "unknown"


def common(types: Iterable[str]) -> str:
    """Returns the hint for values together: that of each, or "unknown" if they differ."""
    found = set(types)
    return found.pop() if len(found) == 1 else "unknown"
