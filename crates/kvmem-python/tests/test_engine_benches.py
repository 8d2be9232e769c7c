"""What the measurements with engines calculate without an engine: names and goals of records,
sessions, and what a soak takes for right.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHES = Path(__file__).parents[1] / "benches"


@pytest.fixture(scope="module", autouse=True)
def folders() -> Iterator[None]:
    """Puts the programs on the path for this module alone."""
    path, names = sys.path[:], {*sys.modules}
    sys.path[:0] = [str(BENCHES), str(Path(__file__).parent / "engine")]
    yield
    sys.path[:] = path
    for name in {*sys.modules} - names:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHES)):
            del sys.modules[name]


def test_a_record_is_named_and_filed_like_those_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import engine_record

    day = datetime.date(2026, 1, 2)
    info = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) 8488C @ 2.4GHz\nmodel name\t: b\n"
    name = engine_record.file_name(info, 2, "vllm-soak", day)
    assert name == "2026-01-02-intel-xeon-8488c-2-4ghz-2c-vllm-soak"

    (tmp_path / "bench" / "record").mkdir(parents=True)
    monkeypatch.setattr(engine_record, "ROOT", tmp_path)
    options = argparse.Namespace(json=None, record=True, folder=None, note="busy", rounds=3)
    record = engine_record.Record("vllm-soak", options)
    record.rows = [{"way": "node", "seconds": 0.5}]
    record.goals = [engine_record.Goal("ratio", 0.2, 0.1, "node")]
    record.skip("LMCache", "it is not here")
    record.skip("LMCache", "it is not here")
    record.finish(["a line"])
    (written,) = tmp_path.glob("bench/record/*.json")
    found = json.loads(written.read_text(encoding="utf-8"))
    assert found["suite"] == "vllm-soak" and found["rows"] == record.rows
    assert found["options"] == {"rounds": "3"} and found["notes"] == ["busy"]
    assert found["goals"] == [
        {"name": "ratio", "value": 0.2, "limit": 0.1, "at": "node", "at_least": False, "met": False}
    ]
    assert found["skipped"] == [{"what": "LMCache", "why": "it is not here"}]
    text = written.with_suffix(".txt").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    for line in ("busy", "a line", "MISSED", "LMCache: it is not here"):
        assert line in text


def test_first_tokens_have_goals_for_kills_and_for_the_node() -> None:
    import vllm_first_token as bench

    found = bench.Measurement([2048])
    for way, seconds, cached in (
        ("cold", 10.0, 0),
        ("own cache", 0.5, 2047),
        ("node", 0.6, 1920),
        ("node, engine killed", 1.5, 1920),
        ("node, both killed", 0.9, 1920),
    ):
        found.seconds[way, 2048] = [seconds, seconds / 2, seconds * 2]
        found.cached[way, 2048] = [cached, cached + 1, cached]
    rows = found.rows()
    assert [row["of_cold"] for row in rows] == pytest.approx([1, 0.05, 0.06, 0.15, 0.09])
    met = {goal.at: goal.met for goal in bench.goals(rows)}
    assert met == {
        "node, 2048": True,
        "node, engine killed, 2048": False,
        "node, both killed, 2048": True,
    }
    assert [row["cached"] for row in rows] == [0, 2047, 1920, 1920, 1920]
    assert "1920" in bench.lines(rows)[-1]


def test_sessions_grow_and_take_turns() -> None:
    import vllm_sessions as bench

    sessions = bench.synthetic(3, sessions=5, turns=3, step=512, answer=16)
    assert sessions == bench.synthetic(3, sessions=5, turns=3, step=512, answer=16)
    for session in sessions:
        lengths = [len(turn.tokens) for turn in session.turns]
        assert lengths == [624, 1136, 1648] and session.tokens == 1664
        for one, other in zip(session.turns, session.turns[1:]):
            assert other.tokens[: len(one.tokens)] == one.tokens
    assert sessions[0].turns[0].tokens[:128] == sessions[1].turns[0].tokens[:128]
    assert sessions[0].turns[0].tokens[128:256] != sessions[1].turns[0].tokens[128:256]
    order = bench.batches(sessions, 2)
    assert [[number for number, _ in batch] for batch in order] == [[0, 1], [2, 3], [4]] * 3


def test_sessions_are_cut_from_a_trace() -> None:
    import vllm_sessions as bench

    requests = [[0, 1, 2], [0, 7, 8, 9], [0, 1, 3], [0, 1, 3, 4, 5], [0, 7, 8, 10, 11], [20, 21]]
    requests.append([0, *range(100, 1000)])
    trace = [json.dumps({"hash_ids": ids}) for ids in requests]
    sizes = {"turns": 8, "block": 128, "answer": 4, "most": 16_000}
    first, second = bench.of_trace(trace, 1, 2, **sizes)
    # Requests that share the instruction alone are no turns of one session.
    assert [len(turn.tokens) // 128 for turn in first.turns] == [3, 3, 5]
    assert [len(turn.tokens) // 128 for turn in second.turns] == [4, 5]
    assert first.turns[0].tokens[:256] == first.turns[1].tokens[:256]
    assert first.turns[1].tokens == first.turns[2].tokens[:384]
    assert first.turns[0].tokens[256:] != first.turns[1].tokens[256:]


def test_a_soak_takes_two_outputs_for_right_and_no_other() -> None:
    import vllm_soak as bench

    right: list[dict[str, Any]] = [
        {"tokens": [1, 2], "logprobs": [-0.5, -1.0]},
        {"tokens": [1, 3], "logprobs": [-1, -2]},
    ]
    assert bench.is_one_of({"tokens": [1, 2], "logprobs": [-0.501, -1.0]}, right)
    assert bench.is_one_of({"tokens": [1, 3], "logprobs": [-1, -2]}, right)
    assert not bench.is_one_of({"tokens": [1, 2], "logprobs": [-0.51, -1.0]}, right)
    assert not bench.is_one_of({"tokens": [1, 4], "logprobs": [-0.5, -1.0]}, right)


def test_a_soak_finds_processes_and_the_data_of_a_tier() -> None:
    import vllm_soak as bench

    block = bytearray(4096)
    block[:8] = b"KvmemDsk"
    parts: list[Any] = [8192, 1, 2, 3, 4, 5, 6, 7, 1 << 20, 1 << 30]
    struct.pack_into("<10Q", block, 128, *parts)
    assert bench.data_of(bytes(block)) == (1 << 20, 1 << 30)

    sign = f"a-sign-of-{os.getpid()}"
    program = "import sys; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", program, sign], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    assert bench.naming(sign) == [child.pid] and child.pid in bench.children(os.getpid())
    assert bench.descriptors(child.pid) >= 3 and bench.anonymous(child.pid) > 0
    child.communicate()
    assert bench.naming(sign) == [] and child.pid not in bench.children(os.getpid())
