"""Language models without eyes whose layers are Llama's: Llama, Qwen2 and Qwen3, as folders or GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..gguf_model import weight_names

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, Form

PICTURE = None

#: `model_type` of config.json: Transformers' class.
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
#: What stays in floating point when bitsandbytes quantises.
_NOT_INT8 = ("lm_head",)


def check(folder: Path, config: dict[str, Any]) -> None:
    """Refuses nothing: what our decoder does not run is found when the layers are taken."""


def load(folder: Path, config: dict[str, Any], form: Form, vocab_size: int) -> Checkpoint:
    """Loads the language model into our decoder. folder: may be a GGUF file."""
    import transformers

    from .. import adapter
    from ..checkpoint import Checkpoint
    from ..weights import read_weights

    cls = getattr(transformers, CLASSES[config["model_type"]])
    if folder.is_dir():
        model: Any = adapter.load_pretrained(cls, folder, form, _NOT_INT8)
    else:
        weights = read_weights(folder, config, weight_names(folder, config))
        model = adapter.load_state(cls, config, weights, folder, form, _NOT_INT8)
    linears = adapter.linear_names(model)
    quantised = adapter.quantised_names(linears, form)
    reference = adapter.plain_logits(model, vocab_size)
    decoder = adapter.take_decoder(model.model, model.lm_head, form, vocab_size)
    stops = adapter.stop_ids(model)
    return Checkpoint(decoder, None, stops, tuple(quantised), len(linears), reference)
