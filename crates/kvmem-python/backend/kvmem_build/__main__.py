"""``python -m kvmem_build WHEEL STAGE [LEVEL]``: completes a wheel with the files of a stage, in
place, compressed by a level of 0 to 9."""

import sys
from pathlib import Path

from .archive import complete

complete(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
