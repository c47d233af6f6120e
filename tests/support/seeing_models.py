"""Tiny random vision-language checkpoints of families whose layers stay Transformers' own, and the library's inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image
from support.library_models import randomise
from support.tokenizers import CONTROL, byte_level

_PICTURE = [
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    *(f"<row_{r}_col_{c}>" for r in range(1, 5) for c in range(1, 5)),
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]


@cache
def tokenizer() -> tokenizers.Tokenizer:
    return byte_level(control=[*CONTROL, *_PICTURE])


def id_of(token: str) -> int:
    found = tokenizer().token_to_id(token)
    assert found is not None
    return int(found)


def _text(model_type: str, **options: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "vocab_size": tokenizer().get_vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "bos_token_id": None,
        "eos_token_id": id_of("<|endoftext|>"),
        "pad_token_id": None,
        **options,
    }


def _tower(model_type: str, side: int = 56, **options: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": side,
        "patch_size": 14,
        "projection_dim": 32,
        **options,
    }


@dataclass(frozen=True)
class Case:
    """A family: its configuration, its image processor's settings, and what a picture is in its template."""

    model_type: str
    config: dict[str, Any]
    processor: dict[str, Any]
    mark: str = "<image>"
    text: str = "{before}{picture}\n{query}{after}"
    #: Names of the inputs that the library's model takes of its image processor.
    inputs: tuple[str, ...] = ("pixel_values",)
    types: str | None = None
    size: tuple[int, int] = (90, 50)
    extra: dict[str, Any] = field(default_factory=dict)


_CLIP = {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}
_PINPOINTS = [[56, 112], [112, 56], [112, 112]]
_SIGLIP_SIZE = {"size": {"height": 56, "width": 56}}
_QWEN = {"min_pixels": 28 * 28 * 4, "max_pixels": 28 * 28 * 30}
_QWEN_INPUTS = ("pixel_values", "image_grid_thw")
_QWEN_IDS = {
    "image_token_id": id_of("<|image_pad|>"),
    "video_token_id": id_of("<|video_pad|>"),
    "vision_start_token_id": id_of("<|vision_start|>"),
    "vision_end_token_id": id_of("<|vision_end|>"),
}
_MROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}


def _qwen(model_type: str, text_type: str, vision: dict[str, Any], patch: int, **text: Any) -> Case:
    return Case(
        model_type,
        {
            "text_config": _text(text_type, rope_parameters=_MROPE, **text),
            "vision_config": vision,
            **_QWEN_IDS,
        },
        {
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "patch_size": patch,
            "merge_size": 2,
            **_QWEN,
        },
        mark="<|image_pad|>",
        inputs=_QWEN_INPUTS,
        types="mm_token_type_ids",
    )


CASES: dict[str, Case] = {
    "llava, clip": Case(
        "llava",
        {
            "text_config": _text("llama"),
            "vision_config": _tower("clip_vision_model"),
            "image_token_index": id_of("<image>"),
        },
        {"image_processor_type": "CLIPImageProcessor", **_CLIP},
    ),
    "llava, siglip": Case(
        "llava",
        {
            "text_config": _text("qwen2"),
            "vision_config": _tower("siglip_vision_model"),
            "image_token_index": id_of("<image>"),
            "vision_feature_select_strategy": "full",
        },
        {"image_processor_type": "SiglipImageProcessor", **_SIGLIP_SIZE},
    ),
    "llava_next": Case(
        "llava_next",
        {
            "text_config": _text("mistral", sliding_window=None),
            "vision_config": _tower("clip_vision_model"),
            "image_token_index": id_of("<image>"),
            "image_grid_pinpoints": _PINPOINTS,
        },
        {
            "image_processor_type": "LlavaNextImageProcessor",
            "image_grid_pinpoints": _PINPOINTS,
            **_CLIP,
        },
        inputs=("pixel_values", "image_sizes"),
    ),
    "llava_onevision": Case(
        "llava_onevision",
        {
            "text_config": _text("qwen2"),
            "vision_config": _tower("siglip_vision_model", vision_use_head=False),
            "image_token_index": id_of("<image>"),
            "video_token_index": id_of("<|video_pad|>"),
            "image_grid_pinpoints": _PINPOINTS,
            "vision_feature_select_strategy": "full",
        },
        {
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "image_grid_pinpoints": _PINPOINTS,
            **_SIGLIP_SIZE,
        },
        inputs=("pixel_values", "image_sizes", "batch_num_images"),
    ),
    "idefics3": Case(
        "idefics3",
        {
            "text_config": _text("llama"),
            "vision_config": _tower("idefics3_vision"),
            "image_token_id": id_of("<image>"),
            "scale_factor": 2,
        },
        {
            "image_processor_type": "Idefics3ImageProcessor",
            "size": {"longest_edge": 112},
            "max_image_size": {"longest_edge": 56},
        },
        inputs=("pixel_values", "pixel_attention_mask"),
    ),
    "smolvlm": Case(
        "smolvlm",
        {
            "text_config": _text("llama"),
            "vision_config": _tower("smolvlm_vision"),
            "image_token_id": id_of("<image>"),
            "scale_factor": 2,
        },
        {
            "image_processor_type": "SmolVLMImageProcessor",
            "size": {"longest_edge": 112},
            "max_image_size": {"longest_edge": 56},
        },
        inputs=("pixel_values", "pixel_attention_mask"),
    ),
    "gemma3": Case(
        "gemma3",
        {
            "text_config": _text(
                "gemma3_text", sliding_window=24, query_pre_attn_scalar=32, num_hidden_layers=7
            ),
            "vision_config": _tower("siglip_vision_model", vision_use_head=False),
            "mm_tokens_per_image": 16,
            "image_token_index": id_of("<image_soft_token>"),
            "boi_token_index": id_of("<start_of_image>"),
            "eoi_token_index": id_of("<end_of_image>"),
        },
        {"image_processor_type": "Gemma3ImageProcessor", **_SIGLIP_SIZE},
        mark="<start_of_image>",
        types="token_type_ids",
    ),
    "qwen2_vl": _qwen(
        "qwen2_vl",
        "qwen2_vl_text",
        {
            "depth": 2,
            "embed_dim": 32,
            "num_heads": 2,
            "hidden_size": 64,
            "mlp_ratio": 2,
            "patch_size": 14,
        },
        14,
    ),
    "qwen2_5_vl": _qwen(
        "qwen2_5_vl",
        "qwen2_5_vl_text",
        {
            "depth": 3,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "patch_size": 14,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
        14,
    ),
    "qwen3_vl": _qwen(
        "qwen3_vl",
        "qwen3_vl_text",
        {
            "depth": 3,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "patch_size": 16,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
        16,
    ),
}

#: Writes a picture's mark where the message has one.
_TEMPLATE = (
    "{{% for message in messages %}}{{{{ '<|im_start|>' + message['role'] + '\n' }}}}"
    "{{% if message['content'] is string %}}{{{{ message['content'] }}}}{{% else %}}"
    "{{% for part in message['content'] %}}{{% if part['type'] == 'image' %}}{{{{ '{mark}' }}}}"
    "{{% else %}}{{{{ part['text'] }}}}{{% endif %}}{{% endfor %}}{{% endif %}}"
    "{{{{ '<|im_end|>\n' }}}}{{% endfor %}}{{{{ '<|im_start|>assistant\n' }}}}"
)


def template(case: Case) -> str:
    mark = case.mark
    if case.types == "mm_token_type_ids":
        mark = f"<|vision_start|>{mark}<|vision_end|>"
    return _TEMPLATE.format(mark=mark)


def save_seeing(folder: Path, case: Case) -> Any:
    """Saves a random model with tokenizer, template and image processor; returns it, for comparison."""
    config = transformers.AutoConfig.for_model(case.model_type, **case.config)
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    randomise(model)
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    files = {
        "tokenizer_config.json": {"eos_token": "<|endoftext|>", "chat_template": template(case)},
        "preprocessor_config.json": case.processor,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return model


def image_processor(case: Case) -> Any:
    """The library's image processor on Pillow."""
    named = case.processor["image_processor_type"].removesuffix("Fast")
    cls = getattr(transformers, f"{named}Pil")
    return cls(**{k: v for k, v in case.processor.items() if k != "image_processor_type"})


def some_image(case: Case) -> Image.Image:
    width, height = case.size
    noise = np.random.default_rng(1).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def library_inputs(
    case: Case, model: Any, image: Image.Image, expand: Callable[[int], list[int]], image_id: int
) -> dict[str, Any]:
    """What the library's model is given for a picture. expand: prompt ids with so many tokens for the picture."""
    options = {"return_row_col_info": True} if "pixel_attention_mask" in case.inputs else {}
    made = image_processor(case)(images=[image], return_tensors="pt", **options)
    inputs = {name: made[name] for name in case.inputs if name in made}
    with torch.inference_mode():
        seen = model.get_image_features(**inputs, return_dict=True).pooler_output
    size = sum(len(part) for part in seen) if isinstance(seen, list | tuple) else len(seen[0])
    ids = torch.tensor([expand(size)])
    if case.types is not None:
        inputs[case.types] = (ids == image_id).int()
    return {"input_ids": ids, **inputs}
