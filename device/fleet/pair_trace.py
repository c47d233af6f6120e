"""A recording of a pair of models: what the target answers, greedily, and what the draft proposes on the way.

A greedy session commits the target's own answer whatever is drafted, so what the draft model proposes behind each
prefix of that answer is all there is to know: a simulated device that proposes it has, round by round, the accept
lengths of the real pair. What a draft says behind its own first wrong token is never accepted, and not recorded.

`covspec bench trace` writes one; `covspec loadtest` plays it. No torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import InvalidRequest
from ...common.models.prompt import Prompt


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One question and its answer."""

    prompt: Prompt
    #: The picture's file; empty without one.
    image: bytes
    token_ids: tuple[int, ...]
    #: The draft model's token behind the first n tokens of the answer, n = 0, 1, …; as long as the answer.
    draft_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PairTrace:
    """Answers of one pair of models.

    quantization: the target's. max_new_tokens: the cap of its answers. num_visual_tokens: of each picture.
    draft_token_s: median seconds in which the draft model made a token where this was recorded.
    """

    target: str
    draft: str
    quantization: str
    vocab_size: int
    stop_ids: tuple[int, ...]
    num_visual_tokens: int
    max_model_len: int
    max_new_tokens: int
    draft_token_s: float
    answers: tuple[RecordedAnswer, ...]

    @property
    def agreement(self) -> float:
        """Share of positions at which both models say the same."""
        pairs = [p for a in self.answers for p in zip(a.token_ids, a.draft_ids, strict=True)]
        return sum(t == d for t, d in pairs) / len(pairs)

    def save(self, path: Path) -> None:
        answers = self.answers
        about = {key: value for key, value in asdict(self).items() if key != "answers"}
        positions = [-1 if (at := a.prompt.image_position) is None else at for a in answers]
        arrays: dict[str, NDArray[Any]] = {
            "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
            "image_positions": np.array(positions, np.int32),
            **_joined("prompts", [a.prompt.ids for a in answers], np.int32),
            **_joined("images", [a.image for a in answers], np.uint8),
            **_joined("tokens", [a.token_ids for a in answers], np.int32),
            **_joined("drafts", [a.draft_ids for a in answers], np.int32),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)


def load_pair_trace(path: Path) -> PairTrace:
    """Reads what `PairTrace.save` wrote. Raises InvalidRequest with the file's name."""
    try:
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        about = json.loads(arrays["about"].tobytes())
        answers = tuple(
            RecordedAnswer(
                Prompt(tuple(prompt.tolist()), None if at < 0 else int(at)),
                image.tobytes(),
                tuple(tokens.tolist()),
                tuple(drafts.tolist()),
            )
            for prompt, image, tokens, drafts, at in zip(
                *(_split(name, arrays) for name in ("prompts", "images", "tokens", "drafts")),
                arrays["image_positions"],
                strict=True,
            )
        )
        if not answers:
            raise ValueError("no answers")
        return PairTrace(**about | {"stop_ids": tuple(about["stop_ids"]), "answers": answers})
    except FileNotFoundError as error:
        raise InvalidRequest(
            f"there is no recording {path}; make one with covspec bench trace --out {path}"
        ) from error
    except Exception as error:  # numpy and its file formats raise many kinds
        raise InvalidRequest(
            f"{path} is not a recording that covspec bench trace wrote: {error}"
        ) from error


def _joined(
    name: str, rows: Sequence[Sequence[int]], dtype: type[np.generic]
) -> dict[str, NDArray[Any]]:
    """Rows of any length as one array and the places where they end."""
    parts = [
        np.frombuffer(r, np.uint8) if isinstance(r, bytes) else np.array(r, dtype) for r in rows
    ]
    ends = np.cumsum([part.size for part in parts], dtype=np.int64)
    return {name: np.concatenate(parts) if parts else np.zeros(0, dtype), f"{name}_ends": ends}


def _split(name: str, arrays: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    return np.split(arrays[name], arrays[f"{name}_ends"][:-1])
