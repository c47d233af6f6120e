"""A draft of a few layers, distilled from a language model that it shares the embedding with (`covspec train-draft`).

Its folder holds the layers, the last norm and the ids that it can say; tokenizer, embedding and the head's rows, which
are the embedding's, come from the target. Ids that it cannot say have logits of -inf.

    config.json          model_type, target (short name, folder or file), num_hidden_layers
    model.safetensors    model.layers.*, model.norm.weight, head_ids
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ModelError
from ..zoo import resolve

if TYPE_CHECKING:
    from torch import Tensor

    from ..checkpoint import Checkpoint, Form

MODEL_TYPE = "distilled"
PICTURE = None
EMBEDDING, HEAD_IDS = "model.embed_tokens.weight", "head_ids"


def check(folder: Path, config: dict[str, Any]) -> None:
    """Raises ModelError for a folder that names no target, or one that is not here or no text model."""
    layers = config.get("num_hidden_layers")
    if not isinstance(config.get("target"), str) or not isinstance(layers, int) or layers < 1:
        raise ModelError(f"{folder}/config.json must name a target and a number of layers")
    _target(folder, config)


def _target(folder: Path, config: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Where the target is, and its configuration."""
    from . import read_config
    from .llama import CLASSES

    source = resolve(config["target"])
    target = read_config(source)
    if target.get("model_type") not in CLASSES:
        raise ModelError(f"{folder} was distilled from {config['target']}, which is no text model")
    return source, target


def student_config(target: dict[str, Any], num_layers: int) -> dict[str, Any]:
    """The configuration of the whole, as Transformers has it. target: the target's."""
    own = {"num_hidden_layers": num_layers, "tie_word_embeddings": True}
    return {**{key: value for key, value in target.items() if key != "layer_types"}, **own}


def load(folder: Path, config: dict[str, Any], form: Form, vocab_size: int) -> Checkpoint:
    """Loads the layers, and the rest from the target."""
    import transformers
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from .. import adapter
    from ..checkpoint import Checkpoint
    from ..decoder import Decoder
    from ..projection import Cut
    from ..weights import read_weights
    from .llama import CLASSES

    source, target = _target(folder, config)
    try:
        weights: dict[str, Tensor] = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder}/model.safetensors cannot be read: {error}") from error
    head_ids = weights.pop(HEAD_IDS, None)
    if head_ids is None or not 0 <= int(head_ids.min()) <= int(head_ids.max()) < vocab_size:
        raise ModelError(f"{folder} says ids that {config['target']} does not have")
    weights |= read_weights(source, target, [EMBEDDING])
    embedding = weights[EMBEDDING]
    cls = getattr(transformers, CLASSES[target["model_type"]])
    known = student_config(target, config["num_hidden_layers"])
    model: Any = adapter.load_state(cls, known, weights, folder, form, ("lm_head",))
    linears = adapter.linear_names(model)
    quantised = adapter.quantised_names(linears, form)
    decoder = adapter.take_decoder(model.model, model.lm_head, form, vocab_size)
    rows = embedding[head_ids.long()].to(form.device, form.dtype)
    head = Cut(form.floating(rows, None), head_ids.long().to(form.device), vocab_size)
    return Checkpoint(
        Decoder(replace(decoder.weights, head=head)),
        None,
        adapter.stop_ids(model),
        tuple(quantised),
        len(linears),
        None,
    )
