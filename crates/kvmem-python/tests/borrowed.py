"""*Borrowed*: what ``torch.frombuffer`` does with a buffer, for stand-ins of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np


class Storage:
    """Bytes at an address, and the object that they came from."""

    def __init__(self, owner: Any, address: int, nbytes: int) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def frombuffer(buffer: Any, dtype: Any, count: int = -1, offset: int = 0) -> Any:
    """Returns an array over the bytes of a buffer. It keeps the object, and exports no buffer when
    this returns: the object may close its memory.
    """
    view = memoryview(buffer)
    address, nbytes = np.frombuffer(view, np.uint8).ctypes.data, view.nbytes
    view.release()
    size = np.dtype(dtype).itemsize
    length = nbytes - offset if count < 0 else count * size
    if length <= 0 or length % size or not 0 <= offset <= nbytes - length:
        raise ValueError(f"{length} bytes from {offset} on do not fit into {nbytes}")
    return np.asarray(Storage(buffer, address + offset, length)).view(dtype)
