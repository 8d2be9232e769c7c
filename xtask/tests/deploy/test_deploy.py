"""The Dockerfile, the systemd units and the workflows, and the linters of all files.

There is no container runtime, no running systemd and no cluster here. The files are therefore
checked in three ways: by the linters and schemas of their formats, against each other and the rest
of the project, and by running the commands in them with the built command.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from manifests import DEPLOY, MANIFESTS, USER, tool, understood

from machine import ROOT, Cgroup, Unavailable

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
# The program of the units.
PROGRAM = "/opt/kvmem/bin/kvmem"
# The units of services, their settings, and how many commands they run.
SERVICES = {
    "kvmem-serve-mooncake.service": ("serve-mooncake.env", 2),
    "kvmem-serve.service": ("serve.env", 1),
    "kvmem@.service": ("tenant.env", 1),
}
SOCKETS = {"kvmem-serve.service": "kvmem-serve.socket", "kvmem@.service": "kvmem@.socket"}
TOOLCHAIN = ("rustup toolchain install ", "rustup component add ", "rustup target add ")


def are_chores(request: pytest.FixtureRequest, commands: list[str]) -> None:
    parsed = [request.config.getoption("--xtask"), "parse", *commands]
    ran = subprocess.run(parsed, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_linters_find_nothing() -> None:
    tool("hadolint", "--config", "hadolint.yaml", "Dockerfile")
    tool("kubernetes-validate", "--strict", *MANIFESTS)
    tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)
    settings = ROOT / ".github/zizmor.yml"
    tool("zizmor", "--offline", "--min-severity", "medium", "--config", settings, *WORKFLOWS)


def test_doctor_prints_what_its_schema_says(command: Path, tmp_path: Path) -> None:
    for option, name in (("--schema", "schema.json"), ("--json", "doctor.json")):
        ran = subprocess.run([command, "doctor", option], capture_output=True)
        (tmp_path / name).write_bytes(ran.stdout)
    tool("check-jsonschema", "--check-metaschema", tmp_path / "schema.json")
    tool("check-jsonschema", "--schemafile", tmp_path / "schema.json", tmp_path / "doctor.json")


# The Dockerfile.


def instructions() -> list[tuple[str, str, str]]:
    """Returns the instructions: the stage, the word and the rest."""
    text = re.sub(r"(?m)^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text())
    found, stage = [], ""
    for line in filter(str.strip, text.replace("\\\n", " ").splitlines()):
        word, _, rest = " ".join(line.split()).partition(" ")
        stage = rest.rpartition(" AS ")[2] if word == "FROM" else stage
        found.append((stage, word, rest))
    return found


def of(stage: str, word: str) -> list[str]:
    return [
        rest
        for its_stage, its_word, rest in instructions()
        if (its_stage, its_word) == (stage, word)
    ]


def test_the_first_stage_builds_what_exists(request: pytest.FixtureRequest) -> None:
    profiles = tomllib.loads((ROOT / "Cargo.toml").read_text())["profile"]
    runs = [run.strip() for rest in of("build", "RUN") for run in rest.split("&&")]
    built = [run for run in runs if not run.startswith(("apt-get ", "rm "))]
    assert len(built) == 4
    for words in map(str.split, built):
        match words:
            case ["cargo", "xtask", *_]:
                are_chores(request, [" ".join(words)])
            case ["cargo", "build", *_]:
                assert words[words.index("--profile") + 1] in profiles
                package = words[words.index("--package") + 1]
                assert (ROOT / "crates" / package / "Cargo.toml").is_file()
            case ["python3", "-m", "pip", "wheel", *_, folder]:
                assert (ROOT / folder / "pyproject.toml").is_file()
            case ["install", *_, source, _]:
                assert source.startswith("target/dist/")
            case _:
                pytest.fail(f"{words} is no command that is checked")


def test_later_stages_copy_what_the_first_one_makes() -> None:
    makes = " ".join(of("build", "RUN"))
    copies = [rest for stage, word, rest in instructions() if word == "COPY" and stage != "build"]
    sources = [re.match(r"--from=build (\S+)", rest)[1] for rest in copies]
    sources += re.findall(r"source=([^,\s]+)", " ".join(of("mooncake", "RUN")))
    assert sources and all(source in makes for source in sources), sources


def test_images_run_as_their_user(command: Path, request: pytest.FixtureRequest) -> None:
    for stage in ("command", "mooncake"):
        assert of(stage, "USER")[-1] == f"{USER}:{USER}"
        assert json.loads(of(stage, "ENTRYPOINT")[-1]) == ["kvmem"]
        understood(command, json.loads(of(stage, "CMD")[-1]))
    installed = " ".join(of("mooncake", "RUN")).split()
    for package in request.config.getoption("--mooncake-packages").split():
        assert package in installed, f"the engine needs {package}, and no RUN installs it"


# The units of systemd.


def lines(name: str) -> list[str]:
    text = (DEPLOY / "systemd" / name).read_text()
    return [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]


def pairs(name: str) -> list[list[str]]:
    return [line.split("=", 1) for line in lines(name) if "=" in line]


def expand(line: str, settings: dict[str, str]) -> list[str]:
    """Returns the words of a command as systemd expands them: ``${NAME}`` is one word or a part of
    one, ``$NAME`` is as many words as the value has."""
    words = []
    for word in line.split():
        whole = re.sub(r"\$\{(\w+)\}", lambda name: settings[name[1]], word)
        is_many = re.fullmatch(r"\$(\w+)", word)
        words += settings[is_many[1]].split() if is_many else [whole]
    return words


def test_variables_are_expanded_as_systemd_does() -> None:
    settings = {"A": "one", "B": "two three"}
    assert expand("x ${A} y=${B}!", settings) == ["x", "one", "y=two three!"]
    assert expand("x $B", settings) == ["x", "two", "three"]
    with pytest.raises(KeyError):
        expand("x ${C}", settings)


@pytest.mark.parametrize("unit", SERVICES)
def test_the_command_understands_the_units(unit: str, command: Path) -> None:
    env, expected = SERVICES[unit]
    settings = dict(pairs(env))
    commands = [
        expand(value, settings) for key, value in pairs(unit) if key.startswith("ExecStart")
    ]
    assert len(commands) == expected
    for program, *arguments in commands:
        assert program == PROGRAM
        understood(command, arguments)


@pytest.mark.parametrize("unit", SOCKETS)
def test_a_service_and_its_socket_belong_together(unit: str) -> None:
    service, socket = dict(pairs(unit)), dict(pairs(SOCKETS[unit]))
    path, group = socket["ListenSequentialPacket"], socket["SocketGroup"]
    run = service["ExecStart"]
    assert f"--socket {path} " in run and "--retain systemd" in run
    # Fewer descriptors are too few to set memory aside.
    assert int(service["FileDescriptorStoreMax"]) >= 4
    if group.endswith("%i"):
        # The operator makes the group of a tenant, and the command names it.
        assert f"--allow-group {group} " in run and "/%i/" in path
    else:
        assert any(line.startswith(f"g {group} ") for line in lines("sysusers.conf"))


def test_the_kernel_has_the_settings() -> None:
    for key, value in pairs("sysctl.conf"):
        assert (Path("/proc/sys") / key.strip().replace(".", "/")).is_file(), key
        assert value.strip().isdigit(), value
    for kind, path, *_, value in map(str.split, lines("tmpfiles.conf")):
        # A kernel without transparent hugepages has no such file.
        if kind == "w" and Path(path).is_file():
            assert value in re.split(r"[\s\[\]]+", Path(path).read_text()), path


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="apt-get install systemd")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    # A template is checked as that of one tenant.
    names = {unit: unit.replace("@.", "@tenant.") for unit in [*SERVICES, *SOCKETS.values()]}
    for unit, name in names.items():
        text = (DEPLOY / "systemd" / unit).read_text()
        (tmp_path / name).write_text(text.replace(PROGRAM, "/bin/true"))
    verify = ["systemd-analyze", "verify", *(tmp_path / name for name in names.values())]
    ran = subprocess.run(verify, capture_output=True, text=True)
    # Unknown settings are only printed; older releases ignore this one.
    said = [
        line for line in ran.stderr.splitlines() if any(name in line for name in names.values())
    ]
    assert not [line for line in said if "'FileDescriptorStorePreserve'" not in line], said
    assert ran.returncode == 0, ran.stderr
    for unit in SERVICES:
        # The most exposure that it may find, in tenths: 0 is none, 100 is all.
        security = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=25"]
        ran = subprocess.run([*security, tmp_path / names[unit]], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout[-300:] + ran.stderr


# The workflows.


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_run_chores_alone(file: Path, request: pytest.FixtureRequest) -> None:
    workflow = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == {"contents": "read"} and "concurrency" in workflow
    steps = [step for job in workflow["jobs"].values() for step in job.get("steps", [])]
    commands = [step["run"] for step in steps if "run" in step]
    chores = [command for command in commands if not command.startswith(TOOLCHAIN)]
    assert chores and all(re.search(r"@v\d+$", step["uses"]) for step in steps if "uses" in step)
    are_chores(request, chores)


# The limits of containers that the README shows, with what `kvmem doctor` prints then.


def shown() -> list[tuple[str, str]]:
    """Returns the commands with limits, and the lines that they print."""
    parts = (DEPLOY / "README.md").read_text().split("```")
    start = "bash\ndocker run --rm "
    # A fenced part, the text between, and the next fenced part.
    found = [
        (run.removeprefix(start).strip(), output.removeprefix("text\n"))
        for run, _, output in zip(parts, parts[1:], parts[2:])
        if run.startswith(start) and run.count("\n") == 2 and output.startswith("text\n")
    ]
    assert len(found) == 3
    return found


def is_shown(printed: str, line: str) -> bool:
    """Whether a printed line is the shown one, whose ``…`` may stand for anything. The widths of
    columns follow the values of the machine."""
    parts = [re.escape(part) for part in " ".join(line.split()).split("…")]
    return re.fullmatch(".*".join(parts), " ".join(printed.split())) is not None


def test_dots_stand_for_anything() -> None:
    assert is_shown("a  b", "a b") and is_shown("a b c", "a … c") and is_shown("ab", "…b")
    assert not is_shown("a b", "a") and not is_shown("a b c", "a … d")


@pytest.mark.parametrize(("line", "output"), shown(), ids=lambda text: text.split()[0])
def test_the_command_names_the_limits_of_containers(line: str, output: str, command: Path) -> None:
    limit, image, *arguments = line.split()
    assert image == "kvmem"
    kvmem = f"exec {command} {' '.join(arguments)}"
    option, _, value = limit.removeprefix("--").partition("=")
    users: dict[str, int] = {}
    group = None
    if option == "ulimit":
        kvmem = f"exec prlimit --memlock={value.removeprefix('memlock=')} -- {kvmem[5:]}"
        # Root may pin more than the limit, but another user cannot always reach the program.
        shell = ["sh", "-c", kvmem]
        others = os.access(command, os.X_OK) and os.geteuid() == 0
        reach = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
        tried = subprocess.run([*reach, command, "--version"], capture_output=True).returncode
        users = {"user": USER, "group": USER, "extra_groups": []} if others and not tried else {}
    elif option == "shm-size":
        mount = f"mount -t tmpfs -o size={value} tmpfs /dev/shm && {kvmem}"
        shell = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount]
    else:
        assert option == "memory"
        try:
            group = Cgroup.memory(int(value.removesuffix("m")) << 20)
        except Unavailable as why:
            pytest.skip(str(why))
        shell = ["sh", "-c", f"{group.join()} && {kvmem}"]
    ran = subprocess.run(shell, stdin=subprocess.DEVNULL, capture_output=True, text=True, **users)
    if group:
        group.close()
    if "unshare" in ran.stderr or "mount:" in ran.stderr:
        pytest.skip(ran.stderr)
    assert ran.returncode in (0, 1), ran.stderr
    printed = (ran.stdout + ran.stderr).splitlines()
    for text in filter(lambda text: text.strip() not in ("", "…"), output.splitlines()):
        assert any(is_shown(each, text) for each in printed), (text, printed)
