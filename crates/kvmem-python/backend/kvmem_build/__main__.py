"""``python -m kvmem_build WHEEL STAGE``: completes a wheel with the files of a stage, in place."""

import sys
from pathlib import Path

from .archive import complete

complete(Path(sys.argv[1]), Path(sys.argv[2]))
