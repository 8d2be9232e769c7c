"""The examples of docs/distributed.md run as one program each, against a real cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from cluster import ENVIRONMENT, Cluster, cluster
from conftest import LIMIT

__all__ = ["cluster"]

PAGE = Path(__file__).parents[4] / "docs" / "distributed.md"


def examples(section: str) -> list[str]:
    """Returns the examples under a heading, up to the next heading of its level."""
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")
    assert found, f"{PAGE} has no section {section}"
    return re.findall(r"^```python\n(.*?)^```$", rest.partition("\n## ")[0], re.M | re.S)


def test_the_example_of_mooncake_runs(cluster: Cluster, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text("\n".join(examples("Mooncake Store")), encoding="utf-8")
    environment = {**ENVIRONMENT, "MASTER": cluster.address}
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "cannot look for 'never put': the object does not exist" in done.stdout
        and "ClusterTierStats(" in done.stdout
    )
