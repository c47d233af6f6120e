"""The two networks of the embedded pair: Transformers' native InternVL at two small sizes, and its training heads."""

import json
import math
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    InternVLConfig,
    InternVLForConditionalGeneration,
    Qwen2Config,
)
from transformers.models.internvl import InternVLVisionConfig

from .scene import COLOURS, SHAPES, SIZES
from .tokenizer import SPECIAL_TOKENS, VOCAB_SIZE

IMAGE_SIDE = 160
PATCH_SIDE = 8
GRID_SIDE = IMAGE_SIDE // PATCH_SIDE // 2
VISUAL_TOKENS = GRID_SIDE * GRID_SIDE
IMAGE_MEAN = (0.485, 0.456, 0.406)
IMAGE_STD = (0.229, 0.224, 0.225)
CONTEXT_LENGTH = 1024

# Classes of the training heads; class 0 is the background.
HEADS = {"cell": 10, "colour": len(COLOURS) + 1, "shape": len(SHAPES) + 1, "size": len(SIZES) + 1}
ATTRIBUTES = ("colour", "shape", "size")
CELLS = 9


@dataclass(frozen=True, slots=True)
class Size:
    """Widths, depths and head counts of the vision tower and of the language model."""

    vision_width: int
    vision_layers: int
    vision_heads: int
    width: int
    layers: int
    heads: int
    key_value_heads: int
    intermediate: int
    #: Whether the tower starts from positions as waves, which makes it learn sooner to look elsewhere.
    waves: bool = False


SIZE_OF = {
    "target": Size(128, 3, 4, 192, 8, 4, 2, 512),
    "draft": Size(64, 3, 4, 128, 2, 4, 2, 256, waves=True),
    "draft-small": Size(32, 2, 2, 64, 1, 2, 1, 128, waves=True),
}


def build_model(role: str) -> InternVLForConditionalGeneration:
    """Builds the network of a role of SIZE_OF with fresh weights in float32."""
    size = SIZE_OF[role]
    vision = InternVLVisionConfig(
        hidden_size=size.vision_width,
        num_hidden_layers=size.vision_layers,
        num_attention_heads=size.vision_heads,
        intermediate_size=4 * size.vision_width,
        image_size=[IMAGE_SIDE, IMAGE_SIDE],
        patch_size=[PATCH_SIDE, PATCH_SIDE],
        attention_bias=True,
    )
    text = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        intermediate_size=size.intermediate,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index("<|im_end|>"),
        pad_token_id=SPECIAL_TOKENS.index("<|endoftext|>"),
    )
    config = InternVLConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=SPECIAL_TOKENS.index("<IMG_CONTEXT>"),
        image_seq_length=VISUAL_TOKENS,
        tie_word_embeddings=True,
    )
    AttentionInterface.register("matrix", matrix_attention)
    model = _fresh(config, "matrix")
    if size.waves:
        _start_from_waves(model.model.vision_tower)
    model.generation_config.eos_token_id = [
        SPECIAL_TOKENS.index(t) for t in ("<|im_end|>", "<|endoftext|>")
    ]
    model.generation_config.pad_token_id = SPECIAL_TOKENS.index("<|endoftext|>")
    model.generation_config.bos_token_id = None
    return model


@torch.no_grad()
def _start_from_waves(tower: Any) -> None:
    """Sets positions to sines and cosines of place and opens attention to them.

    Fresh, positions are zero and every patch looks at all others alike; from there a tower takes thousands of pictures
    to find out that other places can be looked at.
    """
    width = tower.config.hidden_size
    side = IMAGE_SIDE // PATCH_SIDE
    place = (torch.arange(side) + 0.5) / side
    octaves = torch.linspace(0, math.log2(side / 2), width // 4)
    angles = place[:, None] * math.pi * 2**octaves
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # [side, width / 2]
    down, across = waves[:, None].expand(-1, side, -1), waves[None].expand(side, -1, -1)
    tower.embeddings.position_embeddings[0, 1:] = torch.cat([down, across], -1).flatten(0, 1)
    for layer in tower.encoder.layer:
        layer.lambda_1.fill_(0.5)
        layer.lambda_2.fill_(0.5)
        for projection in (layer.attention.q_proj, layer.attention.k_proj):
            nn.init.orthogonal_(projection.weight, 0.7)


def matrix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **unused: object,
) -> tuple[Tensor, None]:
    """Attention as two matrix products and a softmax, all in the inputs' type.

    At these sizes and in bfloat16 it is about 1.7 times as fast on a CPU as the fused kernel, forward and backward.

    query: [batch, heads, length, depth]; key, value: [batch, key_value_heads, length, depth];
    attention_mask: additive, [batch, 1, length, length]. Returns [batch, length, heads, depth].
    """
    batch, heads, length, depth = query.shape
    groups = heads // key.shape[1]
    scale = depth**-0.5 if scaling is None else scaling
    with torch.autocast(
        query.device.type, enabled=False
    ):  # autocast would take the softmax to float32
        # The query heads that share a key head are stacked as more rows of one product.
        rows = (query * scale).reshape(-1, groups * length, depth)
        scores = torch.bmm(rows, key.flatten(0, 1).transpose(1, 2)).view(batch, heads, length, -1)
        if attention_mask is not None:
            scores.add_(attention_mask.to(scores.dtype))
        weights = torch.softmax(scores, dim=-1).view(-1, groups * length, scores.shape[-1])
        mixed = torch.bmm(weights, value.flatten(0, 1).to(weights.dtype)).view(
            batch, heads, length, depth
        )
    return mixed.transpose(1, 2).contiguous(), None


def build_heads(role: str) -> nn.ModuleDict:
    """Builds linear heads on the projector's output: what a visual token shows, and for a draft what the scene holds.

    They exist during training only. `scene` reads colour, shape and size of all nine cells off every single token: it
    makes the tower spread what it sees, so that few tokens tell of the whole picture.
    """
    width = SIZE_OF[role].width
    heads = {name: nn.Linear(width, classes) for name, classes in HEADS.items()}
    if role != "target":
        heads["scene"] = nn.Linear(width, CELLS * sum(HEADS[name] for name in ATTRIBUTES))
    return nn.ModuleDict(heads)


def visual_features(model: InternVLForConditionalGeneration, pixels: Tensor) -> Tensor:
    """Returns the projector's output. pixels: [batch, 3, 160, 160] -> [batch, 100, width]."""
    features: Tensor = model.model.get_image_features(
        pixel_values=pixels, return_dict=True
    ).pooler_output
    return features


def save_model(model: InternVLForConditionalGeneration, folder: Path) -> None:
    """Writes float16 weights with config.json, generation_config.json and preprocessor_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    half = build_like(model).half()
    half.save_pretrained(folder)
    preprocessor = {
        "image_processor_type": "GotOcr2ImageProcessor",
        "crop_to_patches": True,
        "min_patches": 1,
        "max_patches": 1,
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE},
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(IMAGE_MEAN),
        "image_std": list(IMAGE_STD),
    }
    text = json.dumps(preprocessor, indent=2) + "\n"
    (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")


def build_like(model: InternVLForConditionalGeneration) -> InternVLForConditionalGeneration:
    """Returns a copy of `model` in memory of its own."""
    copy = _fresh(deepcopy(model.config), "sdpa")
    copy.generation_config = model.generation_config
    copy.load_state_dict(model.state_dict())
    copy.eval()
    return copy


def load_model(folder: Path) -> InternVLForConditionalGeneration:
    """Loads stored weights as float32, ready for evaluation."""
    model: InternVLForConditionalGeneration = InternVLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    )
    model.eval()
    return model


def _fresh(config: InternVLConfig, attention: str) -> InternVLForConditionalGeneration:
    model: InternVLForConditionalGeneration = InternVLForConditionalGeneration._from_config(
        config, attn_implementation=attention
    )
    return model
