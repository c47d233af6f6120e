"""The device with a real, tiny vision-language model: its draft sees the picture, or some of it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support.checkpoints import internvl_config, save_internvl
from support.devices import decode_at_edge, request, speculate
from support.edges import running_edge

from covspec.common.clock import MonotonicClock
from covspec.common.models.loader import load_model, load_text_side
from covspec.common.models.model import Model, VisualTokens
from covspec.common.models.prompt import build_prompt
from covspec.device.alone import device_only
from covspec.device.record.events import Event, Selected
from covspec.device.record.meters import Meters
from covspec.device.request import Request
from covspec.device.visual.selection import KeepAll, KeepRandom, KeepTopK, Selector


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target of three layers and a draft of one; both see 4 visual tokens a tile."""
    made = {}
    for name, layers in (("target", 3), ("draft", 1)):
        made[name] = tmp_path_factory.mktemp(name)
        save_internvl(made[name], internvl_config(layers=layers), max_tiles=4)
    return made


@pytest.fixture(scope="module")
def draft(folders: dict[str, Path]) -> Model:
    return load_model(str(folders["draft"]), quantization="none", num_threads=1)


@pytest.fixture
def target(folders: dict[str, Path]) -> Model:
    return load_model(str(folders["target"]), quantization="none", num_threads=1)


def asked(model: Model, image: Image.Image, **fields: Any) -> Request:
    data = io.BytesIO()
    image.save(data, "PNG")
    prompt = build_prompt(model, "What is there?", has_image=True)
    return request(
        prompt=prompt, image=image, image_bytes=data.getvalue(), ignore_stop=True, **fields
    )


def picture(seed: int, width: int = 64, height: int = 32) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def test_the_drafts_answer_changes_with_the_picture(
    draft: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    encode = draft.encode_tiles

    def count(tiles: NDArray[np.float32]) -> VisualTokens:
        seen.append(len(tiles))
        return encode(tiles)

    monkeypatch.setattr(draft, "encode_tiles", count)
    answers = {
        device_only(
            # With the same noise, answers differ only where the model's view does.
            asked(draft, picture(seed), temperature=1.0),
            draft,
            Meters(MonotonicClock(), lambda event: None),
        ).token_ids
        for seed in range(4)
    }
    assert len(seen) == 4
    assert len(answers) > 1


@pytest.mark.parametrize("length", [1, 4, 8])
async def test_the_same_model_with_the_whole_picture_is_always_accepted(
    target: Model, folders: dict[str, Path], length: int
) -> None:
    same = load_model(str(folders["target"]), quantization="none", num_threads=1)
    async with running_edge(target) as edge:
        done = await speculate(edge.address, same, asked(same, picture(0)), length=length)
    assert done.statistics.accept_rate == 1.0


@pytest.mark.parametrize(
    "selector", [KeepAll(), KeepRandom(5, 0), KeepTopK(5), KeepTopK(1), KeepTopK(99)]
)
async def test_text_is_the_targets_whatever_the_draft_sees(
    target: Model, draft: Model, selector: Selector
) -> None:
    question = asked(draft, picture(1))
    events: list[Event] = []
    async with running_edge(target) as edge:
        alone = await decode_at_edge(edge.address, draft, question)
        done = await speculate(edge.address, draft, question, selector=selector, events=events)
    assert done.token_ids == alone.token_ids
    (selected,) = [e for e in events if isinstance(e, Selected)]
    # Two tiles and a thumbnail.
    assert selected.num_visual_tokens == 12
    assert list(selected.kept) == sorted(set(selected.kept))


@pytest.mark.parametrize("wide", ["draft", "target"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}], ids=str)
async def test_heads_of_different_width_work_together(
    wide: str, sampling: dict[str, Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    layers = {"target": 3, "draft": 1}[wide]
    save_internvl(tmp_path, internvl_config(layers=layers, padded_vocab=26), max_tiles=4)
    models = {
        name: load_model(str(path), quantization="none", num_threads=1)
        for name, path in {**folders, wide: tmp_path}.items()
    }
    target, draft = models["target"], models["draft"]
    question = asked(draft, picture(1), **sampling)
    async with running_edge(target) as edge:
        alone = await decode_at_edge(edge.address, draft, question)
        done = await speculate(edge.address, draft, question)
    assert len(done.token_ids) == 40 and max(done.token_ids) < draft.tokenizer.size
    assert sampling or done.token_ids == alone.token_ids


async def test_topk_keeps_what_the_target_moved_most(target: Model, draft: Model) -> None:
    question = asked(draft, picture(2))
    kept: list[Sequence[int]] = []
    async with running_edge(target) as edge:
        for num_kept in (3, 6):
            events: list[Event] = []
            await speculate(
                edge.address, draft, question, selector=KeepTopK(num_kept), events=events
            )
            kept += [e.kept for e in events if isinstance(e, Selected)]
    assert [len(k) for k in kept] == [3, 6]
    assert set(kept[0]) < set(kept[1])


def test_the_text_side_makes_the_same_prompts(draft: Model, folders: dict[str, Path]) -> None:
    side = load_text_side(str(folders["draft"]))
    for has_image in (False, True):
        assert build_prompt(side, "What?", has_image) == build_prompt(draft, "What?", has_image)
    assert side.tokenizer.fingerprint == draft.tokenizer.fingerprint
    assert side.max_model_len == draft.max_model_len
