"""The loop of a contender: one line of JSON for each call, and one for each answer.

The heads of lab/src/bench/tier/mod.rs and node/mod.rs have the calls. `open` makes the contender of
the call's arguments; every other call is a method of it."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any


def serve(make: Callable[..., Any]) -> None:
    """Answers calls until the input ends. Closes the contender then, if it has `close`."""
    contender = None
    try:
        for line in sys.stdin:
            try:
                call = json.loads(line)
                name = call.pop("call")
                if name == "open":
                    contender, answer = make(**call), {}
                else:
                    answer = getattr(contender, name)(**call)
            except Exception as error:  # The benchmark ends with what is said here.
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
    finally:
        close = getattr(contender, "close", None)
        if close is not None:
            close()


def spent(start: float, cpu: float) -> dict[str, float]:
    """Returns the wall time and the processor time since a moment, in both clocks."""
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    return {"seconds": seconds, "cpu_seconds": cpu_seconds}
