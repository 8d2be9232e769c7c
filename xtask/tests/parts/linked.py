"""The crates of others that are linked into what is shipped: their notices, and a list of parts.

A binary distribution carries the notices of all crates that are compiled into it. Linked are the
crates that ``cargo tree`` shows for the packages, with the features that they build with; macro
crates and build scripts run at compile time only. The notices come from cargo's sources, for the
versions in ``Cargo.lock``. The list of parts is CycloneDX 1.6 in JSON: a component is a linked
crate with its version, licence, source and checksum.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

NOTICE = re.compile(r"LICEN[SC]E|COPYING|NOTICE|COPYRIGHT|UNLICENSE", re.IGNORECASE)
# What need not be shown if a crate is under MIT as well.
OTHER = re.compile(r".*APACHE|UNLICENSE|COPYING", re.IGNORECASE)

Package = dict[str, Any]


def cargo(root: Path, *arguments: str) -> str:
    command = [os.environ.get("CARGO", "cargo"), *arguments, "--locked"]
    return subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout


def tree(root: Path, packages: list[str], target: str) -> str:
    """Returns the linked crates, ``name vVERSION`` in each line."""
    normal = ("-e", "normal,no-proc-macro", "--prefix", "none", "--target", target)
    return "".join(cargo(root, "tree", "-p", package, *normal) for package in packages)


def linked(lines: str, metadata: Package) -> list[Package]:
    """Returns the packages of a tree by name and version, those of this workspace too."""
    known = {(package["name"], package["version"]): package for package in metadata["packages"]}
    words = map(str.split, re.findall(r"^\S+ v\S+", lines, re.MULTILINE))
    names = {(name, version[1:]) for name, version in words}
    return [known[name] for name in sorted(names)]


def needed(files: list[str]) -> list[str]:
    """Returns the notices that are needed: of a choice between MIT and others, MIT."""
    notices = sorted(file for file in files if NOTICE.match(file))
    has_mit = any("MIT" in file.upper() for file in notices)
    return [file for file in notices if not (has_mit and OTHER.match(file))]


def notices(head: str, packages: list[Package]) -> str:
    """Returns the head, a table of the crates, and each text once, with its crates."""
    table, texts = "", {}
    for package in (package for package in packages if package["source"]):
        name, folder = package["name"], Path(package["manifest_path"]).parent
        row = [package[field] or "" for field in ("name", "version", "license", "repository")]
        table += f"| {' | '.join(row)} |\n"
        files = needed(os.listdir(folder))
        if not files:
            sys.exit(f"{name} has no licence file: say in linked.py where its licence is")
        for file in files:
            lines = (folder / file).read_text().splitlines()
            text = "\n".join(map(str.rstrip, lines)).strip("\n")
            texts.setdefault(text, []).append(f"{name} ({file})")
    page = f"{head}| crate | version | licence | source |\n|---|---|---|---|\n{table}"
    for text, of in texts.items():
        page += f"\n## {', '.join(of)}\n\n````text\n{text}\n````\n"
    return page


def reference(package: Package) -> str:
    """Returns the name of a crate among all packages of the world."""
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package: Package, checksum: str | None) -> Package:
    # Older manifests separate alternatives by a slash, which is no expression of SPDX.
    licence = (package["license"] or "").replace("/", " OR ")
    of = {name: package[name] for name in ("name", "version")}
    of |= {"bom-ref": reference(package), "purl": reference(package)}
    of |= {"type": "library", "licenses": [{"expression": licence}]}
    if checksum:
        of["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        of["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return of


def edges(nodes: list[Package], references: dict[str, str]) -> dict[str, list[str]]:
    """Returns the dependencies of the linked crates that are linked themselves."""
    return {
        references[node["id"]]: sorted(
            references[dep["pkg"]]
            for dep in node["deps"]
            if dep["pkg"] in references and any(kind["kind"] is None for kind in dep["dep_kinds"])
        )
        for node in nodes
        if node["id"] in references
    }


def parts(
    packages: list[Package], metadata: Package, lock: Package, whole: Package, epoch: int
) -> Package:
    """Returns the list of parts. ``whole`` names the shipped thing, its packages and platform."""
    references = {package["id"]: reference(package) for package in packages}
    checksums = {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}
    own = [reference(package) for package in packages if package["name"] in whole["packages"]]
    graph = edges(metadata["resolve"]["nodes"], references) | {whole["ref"]: own}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": whole["ref"],
                "name": "kvmem",
                "version": whole["version"],
                "licenses": [{"expression": "Apache-2.0"}],
                "properties": [{"name": "kvmem:platform", "value": whole["target"]}],
            },
        },
        "components": [
            component(package, checksums[package["name"], package["version"]])
            for package in packages
        ],
        "dependencies": [
            {"ref": one, "dependsOn": others} for one, others in sorted(graph.items())
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["notices", "parts"])
    parser.add_argument("root", type=Path)
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--target", required=True)
    parser.add_argument("--head", default="", help="what stands before the table of the notices")
    parser.add_argument("--epoch", type=int, default=0, help="the time of the list of parts")
    options = parser.parse_args()
    root, target = options.root, options.target
    platform = ("--format-version", "1", "--filter-platform", target)
    metadata = json.loads(cargo(root, "metadata", *platform))
    packages = linked(tree(root, options.packages, target), metadata)
    if options.what == "notices":
        sys.stdout.write(notices(options.head, packages))
        return
    # Only the list of parts needs the package with the schema of its format.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    version = next(one["version"] for one in packages if one["name"] == options.packages[0])
    whole = {"ref": f"kvmem-{version}-{target}", "version": version, "target": target}
    whole["packages"] = options.packages
    lock = tomllib.loads((root / "Cargo.lock").read_text())
    text = json.dumps(parts(packages, metadata, lock, whole, options.epoch), indent=2)
    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(str(fault))
    print(text)


if __name__ == "__main__":
    main()
