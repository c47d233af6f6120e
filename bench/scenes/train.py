"""Trains the embedded pair `scenes` from nothing; `covspec train-pair` is in scenes/command.py.

Each network learns in stages. First the tower and the projector alone, under one linear head per attribute of the
object that a visual token shows; a draft's tower learns besides to tell of all cells at every token, because a device
may drop most of them. Then the language model on top, while the heads' loss stays beside the language loss, so that
the tower keeps what it knows; a draft's is shown few of the tokens. Data are drawn from seeds as training goes; batch
n of a stage depends on the seed and on n alone, so an interrupted run goes on from its last checkpoint as if nothing
had happened.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import InternVLForConditionalGeneration, PreTrainedTokenizerFast

from .batch import IGNORED, PackedTurns, kept_tokens, language_batch, vision_batch
from .model import CELLS, HEADS, build_heads, build_model, save_model, visual_features
from .recipe import RECIPE, ROLES, Stage
from .seeds import TRAINING
from .tokenizer import save_tokenizer, train_tokenizer

SEEDS_PER_STAGE = 10_000_000
_BACKGROUND_WEIGHT = 0.25
_WARMUP_STEPS = 50
_CHECKPOINT_EVERY_S = 120.0


@dataclass(frozen=True, slots=True)
class StepReport:
    """What training says after each step: where it is and its losses (zero where a stage has none)."""

    role: str
    stage: str
    step: int
    steps: int
    language_loss: float
    heads_loss: float


Listener = Callable[[StepReport], None]


def train_pair(
    out_dir: Path,
    *,
    seed: int = 0,
    recipe: dict[str, tuple[Stage, ...]] | None = None,
    roles: tuple[str, ...] = ROLES,
    tokenizer_dir: Path | None = None,
    resume: bool = True,
    progress: Listener = lambda report: None,
) -> None:
    """Trains the networks named in `roles` and writes OUT/target and OUT/draft, checkpoints under OUT/checkpoints.

    tokenizer_dir: whose tokenizer to use; without it one is trained as well.
    """
    tokenizer = (
        _trained_tokenizer(out_dir / "checkpoints" / "tokenizer", resume)
        if tokenizer_dir is None
        else _load_tokenizer(tokenizer_dir)
    )
    for role in roles:
        torch.manual_seed(seed)
        trainee = _Trainee(role, build_model(role), build_heads(role))
        checkpoint = out_dir / "checkpoints" / f"{role}.pt"
        for number, stage in enumerate((recipe or RECIPE)[role]):
            first_seed = stage_seeds(seed, number, stage)[0]
            _train_stage(
                trainee, stage, number, first_seed, tokenizer, checkpoint, resume, progress
            )
        save_model(trainee.model, out_dir / role)
        save_tokenizer(tokenizer, out_dir / role)


def stage_seeds(seed: int, number: int, stage: Stage) -> range:
    """The scenes of a training's stage, which no other stage and no other training draws from."""
    first = TRAINING.start + (10 * seed + number) * SEEDS_PER_STAGE
    return range(first, first + stage.steps * stage.batch)


def _trained_tokenizer(folder: Path, resume: bool) -> PreTrainedTokenizerFast:
    if not (resume and folder.exists()):
        save_tokenizer(train_tokenizer(), folder)
    return _load_tokenizer(folder)


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
        folder, local_files_only=True
    )
    return tokenizer


@dataclass(frozen=True, slots=True)
class _Trainee:
    role: str
    model: InternVLForConditionalGeneration
    heads: nn.ModuleDict


def _train_stage(
    trainee: _Trainee,
    stage: Stage,
    number: int,
    first_seed: int,
    tokenizer: PreTrainedTokenizerFast,
    checkpoint: Path,
    resume: bool,
    progress: Listener,
) -> None:
    optimizers = _optimizers(trainee, stage)
    start = _load_checkpoint(checkpoint, trainee, optimizers, stage, number) if resume else 0
    trainee.model.train()
    saved_at = time.monotonic()
    for step in range(start, stage.steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * _rate(step, stage)
        seeds = range(first_seed + step * stage.batch, first_seed + (step + 1) * stage.batch)
        language_loss, heads_loss = _losses(trainee, stage, seeds, tokenizer)
        (language_loss + heads_loss).backward()
        nn.utils.clip_grad_norm_([*trainee.model.parameters(), *trainee.heads.parameters()], 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses = float(language_loss.detach()), float(heads_loss.detach())
        progress(StepReport(trainee.role, stage.name, step + 1, stage.steps, *losses))
        if step + 1 == stage.steps or time.monotonic() - saved_at > _CHECKPOINT_EVERY_S:
            _save_checkpoint(checkpoint, trainee, optimizers, number, step + 1)
            saved_at = time.monotonic()


def _losses(
    trainee: _Trainee, stage: Stage, seeds: range, tokenizer: PreTrainedTokenizerFast
) -> tuple[Tensor, Tensor]:
    """Returns the language loss and the heads' loss of one batch, zero where the stage has none."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pixels, labels, cells = vision_batch(seeds)
        kept = kept_tokens(seeds, stage.kept)
        features = visual_features(trainee.model, pixels)
        heads_loss = stage.spot_weight * _heads_loss(trainee.heads, features, labels)
        if "scene" in trainee.heads:
            heads_loss = heads_loss + _scene_loss(trainee.heads["scene"], features, cells)
        if not stage.turns:
            return torch.zeros(()), heads_loss
        packed = language_batch(
            tokenizer,
            seeds,
            stage.turns,
            stage.final_weight,
            stage.extra_choices,
            stage.mark_weight,
        )
        return _language_loss(trainee.model, packed, features, kept), heads_loss


def _language_loss(
    model: InternVLForConditionalGeneration, packed: PackedTurns, features: Tensor, kept: Tensor
) -> Tensor:
    """Returns the weighted cross-entropy of the answers. features: [batch, 100, width]; kept: bool [batch, 100].

    No query sees a dropped token; those kept stay where they are, as on a device that selects.
    """
    embedding = model.model.language_model.embed_tokens
    shown = packed.input_ids == model.config.image_token_id
    embeds = embedding(packed.input_ids).to(features.dtype)
    embeds = embeds.masked_scatter(shown[..., None], features)
    seen = torch.ones_like(shown).masked_scatter(shown, kept)
    mask = packed.mask & seen[:, None, None, :]
    unseen = torch.zeros(mask.shape, dtype=embeds.dtype).masked_fill(~mask, float("-inf"))
    hidden = model.model.language_model(
        inputs_embeds=embeds,
        attention_mask=unseen,
        position_ids=packed.position_ids,
        use_cache=False,
    ).last_hidden_state
    asked = packed.labels != IGNORED
    logits = functional.linear(hidden[asked], embedding.weight).float()
    each = functional.cross_entropy(logits, packed.labels[asked], reduction="none")
    weights = packed.weights[asked]
    return (each * weights).sum() / weights.sum()


def _heads_loss(heads: nn.ModuleDict, features: Tensor, labels: dict[str, Tensor]) -> Tensor:
    """Returns the mean over heads of the weighted cross-entropy. features: [batch, 100, width]."""
    losses = []
    for name in HEADS:
        logits = heads[name](features).float().flatten(0, 1)
        truth = labels[name].flatten()
        weights = torch.where(truth > 0, 1.0, _BACKGROUND_WEIGHT)
        each = functional.cross_entropy(logits, truth, reduction="none")
        losses.append((each * weights).sum() / weights.sum())
    return torch.stack(losses).mean()


def _scene_loss(head: nn.Module, features: Tensor, cells: dict[str, Tensor]) -> Tensor:
    """Returns the mean over attributes of the cross-entropy of every cell at every token. cells: int64 [batch, 9]."""
    # [batch, 100, 9, classes of all attributes]
    logits = head(features).float().unflatten(-1, (CELLS, -1))
    losses = []
    for name, part in zip(cells, logits.split([HEADS[name] for name in cells], -1), strict=True):
        truth = cells[name][:, None].expand(part.shape[:-1])
        losses.append(functional.cross_entropy(part.flatten(0, 2), truth.flatten()))
    return torch.stack(losses).mean()


def _rate(step: int, stage: Stage) -> float:
    """Returns the factor of the learning rates: a short rise, a plateau, a linear fall to last_rate."""
    fall_start = stage.decay_from * stage.steps
    fallen = max(0.0, step - fall_start) / max(1.0, stage.steps - fall_start)
    return min(1.0, (step + 1) / _WARMUP_STEPS) * (1 - (1 - stage.last_rate) * fallen)


def _optimizers(trainee: _Trainee, stage: Stage) -> list[torch.optim.Optimizer]:
    """Returns Muon for the matrices and AdamW for embeddings, norms, biases, convolutions and heads."""
    matrices: dict[float, list[nn.Parameter]] = {}
    others: dict[float, list[nn.Parameter]] = {1.0: list(trainee.heads.parameters())}
    for name, parameter in trainee.model.named_parameters():
        of_vision = "vision_tower" in name or "multi_modal_projector" in name
        factor = stage.vision_factor if of_vision else float(stage.turns > 0)
        parameter.requires_grad_(factor > 0)  # a frozen one must not gather gradients
        if factor:
            is_matrix = parameter.ndim == 2 and "embed" not in name
            (matrices if is_matrix else others).setdefault(factor, []).append(parameter)

    def groups(split: dict[float, list[nn.Parameter]], lr: float) -> list[dict[str, Any]]:
        return [
            {"params": ps, "lr": lr * factor, "base_lr": lr * factor}
            for factor, ps in split.items()
        ]

    muon = torch.optim.Muon(groups(matrices, stage.muon_lr), momentum=0.95, weight_decay=0.01)
    adam = torch.optim.AdamW(groups(others, stage.adam_lr), betas=(0.9, 0.98), weight_decay=0.0)
    return [muon, adam]


def _save_checkpoint(
    path: Path, trainee: _Trainee, optimizers: list[torch.optim.Optimizer], number: int, step: int
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "stage": number,
        "step": step,
        "model": trainee.model.state_dict(),
        "heads": trainee.heads.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def _load_checkpoint(
    path: Path,
    trainee: _Trainee,
    optimizers: list[torch.optim.Optimizer],
    stage: Stage,
    number: int,
) -> int:
    """Restores the trainee if the checkpoint is of this stage or a later one; returns the step to go on from."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    if state["stage"] < number:
        return 0
    trainee.model.load_state_dict(state["model"])
    trainee.heads.load_state_dict(state["heads"])
    if state["stage"] > number:
        return stage.steps
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return int(state["step"])
