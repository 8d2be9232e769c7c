"""*Tensor*: kvmem's memory as a tensor of PyTorch that holds it.

``torch.frombuffer`` refers to the object, but the object counts no view: ``close`` unmaps the
memory while the tensor reads it. PyTorch holds the object that it got the memory from as long as
the storage. That object is an array of ctypes here, which nothing can close, and the array holds a
view. Importing this module does not import PyTorch."""

import contextlib
import ctypes
import importlib
import math
from collections.abc import Sequence
from typing import Any

from .errors import InvalidArgumentError, InvalidBufferError, NotInstalledError


def tensor(
    memory: Any,
    dtype: Any,
    shape: Sequence[int] | int | None = None,
    *,
    offset: int = 0,
    strides: Sequence[int] | None = None,
    read_only: bool = False,
) -> Any:
    """Returns a tensor of PyTorch over memory, without a copy. The memory has a view until the last
    tensor that shares the storage is gone: it cannot be closed, freed or released before.

    - ``memory``: an object with bytes, such as :class:`Region`, :class:`Block` or
      :class:`PinnedValue`, or any contiguous writable buffer.
    - ``dtype``: type of the elements, of PyTorch or by its name, such as ``"bfloat16"``.
    - ``shape``: lengths of the dimensions. None: one dimension with all elements from ``offset``
      on.
    - ``offset``: first byte of the tensor.
    - ``strides``: elements from one index to the next, for each dimension. None: contiguous.
    - ``read_only``: required for read-only memory, such as pinned values. PyTorch has no read-only
      tensors: the caller must not write to this one.

    Raises :class:`InvalidArgumentError` if the tensor does not fit into the bytes or its elements
    are not aligned, :class:`InvalidBufferError` if the buffer is not contiguous, or read-only, and
    :class:`NotInstalledError` without PyTorch."""
    torch = _torch()
    kind = _dtype(torch, dtype)
    view = _view(memory)
    try:
        return _over(torch, memory, view, kind, shape, offset, strides, read_only)
    except BaseException:
        # The traceback would hold it.
        view.release()
        raise


def _over(
    torch: Any,
    memory: Any,
    view: memoryview,
    kind: Any,
    shape: Any,
    offset: int,
    strides: Any,
    read_only: bool,
) -> Any:
    size = int(kind.itemsize)
    lengths, elements = _shape(shape, strides, view.nbytes, offset, size)
    if view.readonly and not read_only:
        raise InvalidBufferError(
            "the bytes are read-only, and PyTorch has no read-only tensors: pass read_only=True "
            "and do not write to the tensor, or copy the bytes"
        )
    if elements == 0:
        made = torch.empty(lengths, dtype=kind)
        return made if strides is None else made.as_strided(lengths, tuple(strides))
    address = _address(memory, view) + offset
    if address % size:
        raise InvalidArgumentError(
            f"offset is {offset}, address {address:#x}, which is no multiple of the {size} bytes "
            f"of {kind}: give an offset that aligns the elements",
            value=offset,
            limit=size,
        )
    array: Any = (ctypes.c_ubyte * (elements * size)).from_address(address)
    # The view ends with the array, and PyTorch holds the array.
    array.view = view
    flat = torch.frombuffer(array, dtype=torch.uint8).view(kind)
    if strides is not None:
        return torch.as_strided(flat, lengths, tuple(strides))
    return flat.reshape(lengths)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise NotInstalledError(
            f"PyTorch cannot be imported ({error}): pip install torch", remedy="pip install torch"
        ) from error


def _dtype(torch: Any, dtype: Any) -> Any:
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(kind, torch.dtype):
        raise InvalidArgumentError(
            f'dtype is {dtype!r}: give a dtype of PyTorch, or its name, such as "float16"',
            value=dtype,
        )
    return kind


def _view(memory: Any) -> memoryview:
    try:
        view = memoryview(memory)
    except TypeError as error:
        raise InvalidArgumentError(
            f"memory is of {type(memory).__name__}, which has no buffer: pass a region, a block, a "
            "pinned value, or another object with bytes",
            value=type(memory).__name__,
        ) from error
    if not view.c_contiguous:
        view.release()
        raise InvalidBufferError("the bytes are not contiguous: pass a contiguous buffer")
    with view:
        # Another view of the same export, which ends with the last of both.
        return view.cast("B") if view.nbytes else memoryview(b"")


def _shape(
    shape: Any, strides: Any, nbytes: int, offset: int, size: int
) -> tuple[tuple[int, ...], int]:
    """Returns the lengths of the dimensions, and the number of elements that the tensor spans."""
    if not 0 <= offset <= nbytes:
        raise InvalidArgumentError(
            f"offset is {offset}, and the memory has {nbytes} bytes: give 0 to {nbytes}",
            value=offset,
            limit=nbytes,
        )
    left = nbytes - offset
    if shape is None:
        if left % size:
            raise InvalidArgumentError(
                f"{left} bytes are no whole elements of {size} bytes: give a shape",
                value=left,
                limit=size,
            )
        shape = left // size
    lengths = (int(shape),) if isinstance(shape, int) else tuple(int(it) for it in shape)
    steps = None if strides is None else tuple(int(it) for it in strides)
    if min(lengths, default=0) < 0 or (steps is not None and len(steps) != len(lengths)):
        raise InvalidArgumentError(
            f"shape is {lengths} and strides are {steps}: give lengths of 0 or more, and a stride "
            "for each, or none",
            value=lengths,
        )
    if steps is not None and min(steps, default=0) < 0:
        raise InvalidArgumentError(f"strides are {steps}: give 0 or more", value=steps, limit=0)
    elements = math.prod(lengths)
    if elements and steps is not None:
        elements = 1 + sum((n - 1) * step for n, step in zip(lengths, steps, strict=True))
    if elements * size > left:
        raise InvalidArgumentError(
            f"the tensor {lengths} of elements of {size} bytes spans {elements * size} bytes, and "
            f"{left} are left from byte {offset} on: give a smaller shape or more memory",
            value=elements * size,
            limit=left,
        )
    return lengths, elements


def _address(memory: Any, view: memoryview) -> int:
    """Returns the address of the bytes, which have a view."""
    address = getattr(memory, "ptr", None)
    if isinstance(address, int) and type(memory).__module__.partition(".")[0] == "kvmem":
        return address
    with contextlib.suppress(TypeError):
        return ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
    raise InvalidBufferError(
        f"{type(memory).__name__} is read-only: pass the object of kvmem itself, or a copy"
    )
