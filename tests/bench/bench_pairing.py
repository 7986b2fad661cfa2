"""How long `pairing` takes for 100,000 messages, next to mistral-common's check of the same history in the same run.

    python tests/bench/bench_pairing.py

Prints a table in milliseconds, the best of three. mistral-common only checks; `repair` checks and writes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode, get_validator
from mistral_common.tokens.tokenizers.base import TokenizerVersion

from agentlab.messages import Message, assistant, call, tool, user
from agentlab.pairing import problems, repair

SIZE = 100_000


def session(size: int, *, torn_every: int = 0) -> list[Message]:
    """Turns of five messages: words, two calls, their results, a reply. Every n-th turn lacks its second result."""
    history: list[Message] = []
    for turn in range(size // 5):
        calls = [call(f"call_{turn}_{n}", "read_file", path=f"src/module_{turn}.py", limit=200) for n in range(2)]
        history += [user(f"Look at module {turn}."), assistant("I look.", *calls), tool(calls[0]["id"], "line\n" * 40)]
        if not torn_every or turn % torn_every:
            history.append(tool(calls[1]["id"], "ok"))
        history.append(assistant("It is fine."))
    return [*history, user("go on")]


def best(work: Callable[[], object], rounds: int = 3) -> float:
    """The shortest of some runs, in milliseconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) * 1000


def main() -> None:
    sound, torn = session(SIZE), session(SIZE, torn_every=10)
    validator = get_validator(TokenizerVersion.v15, ValidationMode.serving)

    def check() -> None:
        validator.validate_request(ChatCompletionRequest.from_openai(sound, model="m"))  # type: ignore[arg-type]

    request = ChatCompletionRequest.from_openai(sound, model="m")  # type: ignore[arg-type]
    peer = best(check)
    rows = [
        ("mistral-common, dicts to verdict", len(sound), peer),
        ("mistral-common, the verdict alone", len(sound), best(lambda: validator.validate_request(request))),
        ("problems, nothing wrong", len(sound), best(lambda: problems(sound))),
        ("repair, nothing wrong", len(sound), best(lambda: repair(sound))),
        ("problems, every 10th turn torn", len(torn), best(lambda: problems(torn))),
        ("repair, every 10th turn torn", len(torn), best(lambda: repair(torn))),
    ]
    print(f"{'':36} {'messages':>9} {'ms':>8} {'times as fast':>14}")
    for name, messages, taken in rows:
        print(f"{name:36} {messages:9,} {taken:8.1f} {peer / taken:14.1f}")


if __name__ == "__main__":
    main()
