"""MBPP+ (Austin et al. 2021; Liu et al. 2023): Python functions from a sentence and an assertion.

DIR/MbppPlus.jsonl, from https://github.com/evalplus/mbppplus_release: task_id, prompt, entry_point, assertion, …

Code is right if the assertions hold. Running code that a model wrote is for those who ask for it (`run_code`): it runs
in a process of its own with bounds on time, memory and files, which is no prison.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .task import TextQuestion, json_lines, unscored

FILES = ("MbppPlus.jsonl", "mbpp.jsonl")

_ASK = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code block:\n"
    "```\n{prompt}\n```"
)
_BLOCK = re.compile(r"```(?:python|py)?\n(.*?)(?:```|\Z)", re.S)
_SECONDS, _BYTES = 5, 1 << 30


def read(path: Path, *, run_code: bool = False) -> Iterator[TextQuestion]:
    """The problems of a file, in its order. run_code: whether answers may be run, and so be scored."""
    for row in json_lines(path):
        assertion = str(row["assertion"])

        def judge(answer: str, assertion: str = assertion) -> float:
            return score(answer, assertion)

        text = _ASK.format(prompt=row["prompt"].strip())
        yield TextQuestion(row["task_id"], text, judge if run_code else unscored)


def code_of(answer: str) -> str:
    """The first block of code in an answer; all of it where there is none."""
    found = _BLOCK.search(answer)
    return found[1] if found else answer


def score(answer: str, assertion: str) -> float:
    """Whether an answer's code stands the assertions. Runs it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-"],
                input=f"{code_of(answer)}\n{assertion}\n",
                text=True,
                cwd=folder,
                env={},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=2 * _SECONDS,
                preexec_fn=_bound,
            )
        except subprocess.TimeoutExpired:
            return 0.0
    return float(done.returncode == 0)


def _bound() -> None:
    """Of the process that runs the code: seconds, bytes of memory, no files, no other processes."""
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
