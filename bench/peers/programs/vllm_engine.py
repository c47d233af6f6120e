"""vLLM's engine on one core, in one process: no HTTP, no second process, nothing cached from one request to the next.

`-m programs.vllm_engine none` decodes with the target alone, `ngram` takes drafts from prompt and answer: one engine a
process.
"""

from __future__ import annotations

import os
import sys

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_LOGGING_LEVEL="ERROR",
    # Compiled code stays with the environment.
    VLLM_CACHE_ROOT=os.path.join(sys.prefix, "cache"),
)

import json  # noqa: E402
import shutil  # noqa: E402
import time  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from itertools import count  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import vllm  # noqa: E402
from PIL import Image  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402

from .lines import (  # noqa: E402
    Answer,
    Contender,
    Crowd,
    Opening,
    Program,
    Question,
    Window,
    answered,
    is_expected,
    serve,
)

#: As vLLM's documentation has it.
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
MOST_CLIENTS = 64


class Vllm(Program):
    """One engine."""

    def __init__(self, opening: Opening, drafts: str) -> None:
        self._opening = opening
        self._drafts = drafts
        options: dict[str, Any] = {}
        if opening.pictures:
            options = {"limit_mm_per_prompt": {"image": 1, "video": 0}, "mm_processor_cache_gb": 0}
        if drafts == "ngram":
            options["speculative_config"] = NGRAM
        folder = _prepared(Path(opening.target), Path(opening.work) / f"vllm-{drafts}")
        self._engine = LLM(
            model=str(folder),
            dtype="float32",
            max_model_len=opening.max_model_len,
            max_num_seqs=MOST_CLIENTS,
            enable_prefix_caching=False,
            disable_log_stats=True,
            seed=0,
            **options,
        ).llm_engine
        self._sampling = SamplingParams(
            temperature=0, max_tokens=opening.max_new_tokens, detokenize=False
        )
        self._numbers = count()

    def contenders(self) -> list[Contender]:
        if self._drafts == "ngram":
            about = "drafts of 5, found by the last 4 tokens in prompt and answer"
            return [Contender("n-gram drafts", about, crowds=True)]
        return [Contender("plain", "the target alone", crowds=True)]

    def ask(self, contender: str, question: Question) -> Answer:
        began_s = time.perf_counter()
        ids, arrivals = list[int](), list[float]()
        self._add(question)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                now_s = time.perf_counter() - began_s
                ids = list(output.outputs[0].token_ids)
                arrivals += [now_s] * (len(ids) - len(arrivals))
        return answered(question, ids, self._opening.stop_ids, arrivals)

    def crowd(
        self, contender: str, questions: Sequence[Question], clients: int, seconds: float
    ) -> Crowd:
        window, numbers = Window(seconds), count()
        running: dict[str, tuple[Question, int]] = {}
        equal = list[bool]()

        def ask() -> None:
            question = questions[next(numbers) % len(questions)]
            running[self._add(question)] = question, 0

        for _ in range(clients):
            ask()
        while not window.over:
            for output in self._engine.step():
                question, before = running[output.request_id]
                ids = output.outputs[0].token_ids
                window.count(len(ids) - before)
                running[output.request_id] = question, len(ids)
                if output.finished:
                    del running[output.request_id]
                    equal.append(is_expected(question, ids, self._opening.stop_ids))
                    ask()
        self._engine.abort_request(list(running))
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return Crowd(window.tokens_per_s, len(equal), sum(equal))

    def _add(self, question: Question) -> str:
        prompt: dict[str, Any] = {"prompt_token_ids": question.ids}
        if question.image:
            with Image.open(question.image) as picture:
                prompt["multi_modal_data"] = {"image": [picture.convert("RGB")]}
        name = str(next(self._numbers))
        self._engine.add_request(name, prompt, self._sampling)
        return name


def _prepared(folder: Path, out: Path) -> Path:
    """A copy of the checkpoint with what vLLM's processor of InternVL asks for and other readers do without."""
    shutil.copytree(folder, out, dirs_exist_ok=True)
    config = json.loads((out / "config.json").read_text())
    if "image_seq_length" in config:
        processor = {
            "processor_class": "InternVLProcessor",
            "image_seq_length": config["image_seq_length"],
        }
        (out / "processor_config.json").write_text(json.dumps(processor))
        path = out / "tokenizer_config.json"
        tokenizer = json.loads(path.read_text())
        tokenizer["extra_special_tokens"] = {"video_token": "<video>"}
        tokenizer["video_token"] = "<video>"
        path.write_text(json.dumps(tokenizer))
    return out


def _versions() -> dict[str, str]:
    return {"vllm": vllm.__version__}


if __name__ == "__main__":
    serve(lambda opening: Vllm(opening, sys.argv[1]), _versions)
