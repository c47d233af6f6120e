"""Transformers' generate(): the target alone, and assisted by the draft model, which sees the picture too.

float32, one thread, batch 1. What `assisted` may be tuned in: the number of drafted tokens, and the confidence below
which drafting stops.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForImageTextToText

from .lines import Answer, Contender, Opening, Program, Question, answered, serve

#: Transformers' own defaults: tokens of a draft, and the confidence that drafting stops below.
DEFAULT = 20, 0.4
GRID = [(k, confidence) for confidence in (0.0, 0.4) for k in (4, 8, 12, 16, 20, 28)]
_TUNED = "assisted, tuned"


class _Arrivals:
    """A streamer that notes when which tokens came. The prompt comes first and is no answer."""

    def __init__(self) -> None:
        self.began_s = time.perf_counter()
        self.ids: list[int] = []
        self.arrivals: list[float] = []
        self._saw_prompt = False

    def put(self, value: torch.Tensor) -> None:
        if not self._saw_prompt:
            self._saw_prompt = True
            return
        ids = value.flatten().tolist()
        self.ids += ids
        self.arrivals += [time.perf_counter() - self.began_s] * len(ids)

    def end(self) -> None:
        """Nothing is left to do."""


class _FirstForward:
    """When a model's first forward pass of an answer began, how long it took, and how many positions it had."""

    def __init__(self, model: Any) -> None:
        self.forget()
        model.register_forward_pre_hook(self._begin, with_kwargs=True)
        model.register_forward_hook(self._end)

    def forget(self) -> None:
        """Before another answer."""
        self.began_s = self.seconds = 0.0
        self.num_positions = 0

    def _begin(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if not self.num_positions:
            self.num_positions = kwargs["input_ids"].shape[1]
            self.began_s = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self.seconds = self.seconds or time.perf_counter() - self.began_s


class Generate(Program):
    """Both models, loaded."""

    def __init__(self, opening: Opening) -> None:
        torch.set_num_threads(1)
        self._opening = opening
        self._target, self._draft = (_load(folder) for folder in (opening.target, opening.draft))
        self._target_first = _FirstForward(self._target)
        self._draft_first = _FirstForward(self._draft)
        self._assisted: dict[str, tuple[int, float]] = {
            "assisted, 8 tokens": (8, 0.0),
            "assisted, default": DEFAULT,
        } | {f"drafts of {k} that end below a confidence of {c}": (k, c) for k, c in GRID}

    def contenders(self) -> list[Contender]:
        grid = [name for name in self._assisted if not name.startswith("assisted")]
        return [
            Contender("plain", "the target alone"),
            Contender("assisted, 8 tokens", "drafts of 8, however confident"),
            Contender("assisted, default", "drafts of 20 that end below a confidence of 0.4"),
            *(Contender(name, name, _TUNED) for name in grid),
        ]

    def ask(self, contender: str, question: Question) -> Answer:
        settings: dict[str, Any] = {}
        if contender in self._assisted:
            config = self._draft.generation_config
            config.num_assistant_tokens, config.assistant_confidence_threshold = self._assisted[
                contender
            ]
            config.num_assistant_tokens_schedule = "constant"
            settings["assistant_model"] = self._draft
        self._target_first.forget()
        self._draft_first.forget()
        streamer = _Arrivals()
        ids = torch.tensor([question.expanded(self._opening)])
        if question.tiles:
            settings["pixel_values"] = torch.from_numpy(np.load(question.tiles))
        with torch.inference_mode():
            self._target.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=self._opening.max_new_tokens,
                streamer=streamer,
                **settings,
            )
        answer = answered(question, streamer.ids, self._opening.stop_ids, streamer.arrivals)
        if not settings.get("assistant_model"):
            return answer
        ended_s = streamer.began_s + answer.total_s
        return replace(answer, decode_s=ended_s - self._prompt_in_s(ids.shape[1]))

    def _prompt_in_s(self, num_positions: int) -> float:
        """The moment at which both models would have the prompt if nothing had been drafted before.

        The draft model drafts before the target reads the prompt, with the first draft behind it and in one pass: of
        that pass, the prompt's share of the positions is the prompt's.
        """
        draft, target = self._draft_first, self._target_first
        share = num_positions / target.num_positions
        return draft.began_s + draft.seconds + share * target.seconds


def _load(folder: str) -> Any:
    return AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    ).eval()


def _versions() -> dict[str, str]:
    return {"transformers": transformers.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    serve(Generate, _versions)
