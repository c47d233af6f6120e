"""The draft in the making: some layers of the target, its embedding, and a head of its most frequent answers' ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel

from ...common.errors import InvalidRequest
from ...common.models.families import read_config
from ...common.models.families.distilled import (
    EMBEDDING,
    HEAD_IDS,
    MODEL_TYPE,
    student_config,
)
from ...common.models.weights import read_weights
from ...common.models.zoo import resolve
from .answers import Example


@dataclass(frozen=True, slots=True)
class Student:
    """body: Transformers' decoder without an embedding of its own. embedding: [V, hidden], the target's, which stays.

    head_ids: ids that it can say. head: their rows of the embedding, [ids, hidden].
    """

    body: nn.Module
    embedding: Tensor
    head_ids: Tensor
    head: Tensor

    def logits(self, ids: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        """Logits of the head's ids behind some positions. ids: [batch, length]; positions: indices into both."""
        embeds = functional.embedding(ids, self.embedding)
        hidden = self.body(inputs_embeds=embeds, use_cache=False).last_hidden_state
        return functional.linear(hidden[positions], self.head.to(hidden.dtype)).float()


def layers_of(num_layers: int, num_kept: int) -> list[int]:
    """The target's layers to begin with: the first half from its beginning, the others from its end."""
    if not 1 <= num_kept <= num_layers:
        raise InvalidRequest(f"--layers must be between 1 and {num_layers}, not {num_kept}")
    first = (num_kept + 1) // 2
    return [*range(first), *range(num_layers - (num_kept - first), num_layers)]


def build_student(target: str, num_layers: int, head_ids: Sequence[int]) -> Student:
    """A student of a target with the weights that it begins with. Raises ModelError for a target that is not here."""
    source = resolve(target)
    config = read_config(source)
    kept = layers_of(config["num_hidden_layers"], num_layers)
    known = student_config(config, num_layers)
    model_type = known.pop("model_type")
    body: Any = AutoModel.from_config(AutoConfig.for_model(model_type, **known))
    body.embed_tokens = nn.Identity()
    places = {name: f"model.{_place_in_target(name, kept)}" for name, _ in body.named_parameters()}
    weights = read_weights(source, config, [EMBEDDING, *places.values()])
    body.load_state_dict({name: weights[place] for name, place in places.items()})
    embedding = weights[EMBEDDING]
    ids = torch.tensor(list(head_ids))
    return Student(body, embedding, ids, embedding[ids])


def _place_in_target(name: str, kept: Sequence[int]) -> str:
    if not name.startswith("layers."):
        return name
    _, layer, rest = name.split(".", 2)
    return f"layers.{kept[int(layer)]}.{rest}"


def frequent_ids(
    examples: Sequence[Example], count: int, vocab_size: int, always: Sequence[int]
) -> list[int]:
    """The ids that stand most often in answers, weighed by the target's probabilities; `always` among them."""
    weights = np.zeros(vocab_size)
    for example in examples:
        np.add.at(weights, example.top_ids.ravel(), example.top_probs.ravel())
    weights[list(always)] = np.inf
    return sorted(np.argsort(-weights, kind="stable")[: min(count, vocab_size)].tolist())


def save_student(student: Student, target: str, folder: Path) -> None:
    """Writes a folder that `--draft-model` takes, in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        f"model.{name}": parameter.detach().to(torch.float16).contiguous()
        for name, parameter in student.body.named_parameters()
    }
    weights[HEAD_IDS] = student.head_ids.to(torch.int32)
    # The library's own file could be read by its owner alone.
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    num_layers = len({name.split(".")[2] for name in weights if ".layers." in name})
    config = {"model_type": MODEL_TYPE, "target": target, "num_hidden_layers": num_layers}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
