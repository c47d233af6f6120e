"""From a question to the kept tokens, with a real tiny model: keywords, both activities, and the flags."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.checkpoints import internvl_config, save_internvl
from support.devices import speculate
from support.edges import running_edge

from covspec.common.clock import MonotonicClock
from covspec.common.errors import InvalidRequest, TooLong
from covspec.common.input.image import load_image
from covspec.common.maths.sampling import Sampling
from covspec.common.models.loader import load_model
from covspec.common.models.model import Model, Step
from covspec.common.models.prompt import build_prompt
from covspec.common.protocol.messages import Open
from covspec.device import client
from covspec.device.alone import device_only
from covspec.device.drafting.corrections.greedy import Greedy
from covspec.device.drafting.drafter import Drafter
from covspec.device.record.events import Event, Selected
from covspec.device.record.meters import Meters
from covspec.device.request import AskMode, Request
from covspec.device.settings import ClientSettings
from covspec.device.visual import view
from covspec.device.visual.keywords import load_keywords
from covspec.device.visual.selection import KeepAll, KeepCovspec, KeepRandom, Selector
from covspec.device.visual.view import ActivitySource, ViewOptions, look

QUERY = "Where is the red umbrella?"
DRAFT = ViewOptions(activity=ActivitySource.DRAFT, activity_layers=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_internvl(path, internvl_config(layers=3, side=64), max_tiles=4)
    return path


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """128 x 64 pixels: two tiles and a thumbnail of 16 tokens each."""
    path = tmp_path_factory.mktemp("picture") / "p.png"
    pixels = np.random.default_rng(0).integers(0, 256, (64, 128, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def model(folder: Path) -> Model:
    return load_model(str(folder), quantization="none", num_threads=1)


def request(model: Model, picture: Path, query: str = QUERY) -> Request:
    data = picture.read_bytes()
    return Request(
        prompt=build_prompt(model, query, has_image=True),
        sampling=Sampling(max_new_tokens=8, ignore_stop=True),
        image=load_image(data),
        image_bytes=data,
        query=query,
    )


def looked(model: Model, asked: Request) -> Drafter:
    drafter = Drafter(model, Greedy())
    assert asked.image is not None
    drafter.see(asked.image)
    return drafter


def test_a_selector_gets_what_it_asks_for(model: Model, picture: Path) -> None:
    asked = request(model, picture)
    drafter = looked(model, asked)
    for selector in (KeepAll(), KeepRandom(3, 0)):
        seen = look(drafter, asked, selector, DRAFT)
        assert (seen.num_tokens, seen.activity, seen.query, seen.embeds) == (48, None, None, None)
    seen = look(drafter, asked, KeepCovspec(5), ViewOptions())
    assert seen.embeds is not None and seen.embeds.shape == (48, 64)
    assert seen.query is not None and len(set(seen.query.tolist())) == 48
    assert seen.activity is None
    assert look(Drafter(model, Greedy()), asked, KeepCovspec(5), DRAFT).num_tokens == 0


@pytest.mark.parametrize("query", ["is it?", "x", "😀", "伞是什么颜色的？", "word " * 40])
def test_any_query_has_a_score(model: Model, picture: Path, query: str) -> None:
    asked = request(model, picture, query)
    seen = look(looked(model, asked), asked, KeepCovspec(5), DRAFT)
    assert seen.query is not None and np.isfinite(seen.query).all()
    assert (np.ptp(seen.query) == 0) == (query not in ("x", "word " * 40))
    assert len(KeepCovspec(5).select(seen)) == 5


def test_the_drafts_activity_is_that_of_a_full_prefill(model: Model, picture: Path) -> None:
    asked = request(model, picture)
    drafter = looked(model, asked)
    at = asked.prompt.image_position
    assert at is not None and drafter.visual is not None
    model.allocate(1, 400)
    model.forward([Step(0, 0, asked.prompt.ids[:at])])
    (want,) = model.forward([Step(0, at, visual=drafter.visual)], activity_layers=2)
    seen = look(drafter, asked, KeepCovspec(5), DRAFT)
    assert seen.activity is not None and want.activity is not None
    assert seen.activity == pytest.approx(want.activity)
    assert np.ptp(seen.activity) > 0


def test_a_picture_too_large_for_the_drafts_activity(
    model: Model, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(model, picture)
    drafter = looked(model, asked)
    monkeypatch.setattr(model, "max_model_len", 40)
    with pytest.raises(TooLong, match="--activity target"):
        look(drafter, asked, KeepCovspec(5), DRAFT)


async def kept_by(target: Model, draft: Model, asked: Request, **options: Any) -> tuple[int, ...]:
    """What a session keeps."""
    events: list[Event] = []
    async with running_edge(target) as edge:
        await speculate(edge.address, draft, asked, events=events, **options)
    (selected,) = [e for e in events if isinstance(e, Selected)]
    return selected.kept


async def test_draft_and_target_alike_have_the_same_activity(
    model: Model, folder: Path, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = load_model(str(folder), quantization="none", num_threads=1)
    asked = request(model, picture)
    opened: list[int] = []
    to_open = Request.to_open

    def watch(self: Request, *args: Any, **fields: Any) -> Open:
        opened.append(fields["activity_layers"])
        return to_open(self, *args, **fields)

    monkeypatch.setattr(Request, "to_open", watch)
    selector = KeepCovspec(5)
    by_target, by_draft = [
        await kept_by(model, draft, asked, selector=selector, view=options)
        for options in (ViewOptions(activity_layers=2), DRAFT)
    ]
    # Scores from the edge are float16.
    assert len(set(by_target) & set(by_draft)) >= 4
    assert opened == [2, 0]
    alone: list[Event] = []
    device_only(
        asked,
        draft,
        Meters(MonotonicClock(), alone.append),
        selector=selector,
        view=DRAFT,
    )
    assert next(e for e in alone if isinstance(e, Selected)).kept == by_draft


async def test_keywords_are_looked_for_while_the_edge_works(
    model: Model, folder: Path, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query score is there before the target's activity is."""
    draft = load_model(str(folder), quantization="none", num_threads=1)
    order: list[str] = []

    class Watched(KeepCovspec):
        def select(self, context: Any) -> Any:
            order.append("select")
            assert context.activity is not None and context.query is not None
            return super().select(context)

    def load(pipeline: str) -> Any:
        order.append("keywords")
        return load_keywords(pipeline)

    monkeypatch.setattr(view, "load_keywords", load)
    await kept_by(model, draft, request(model, picture), selector=Watched(5))
    assert order == ["keywords", "select"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["device-client", *arguments])
    with pytest.raises(SystemExit) as end:
        client.main()
    return int(end.value.code or 0)


def test_the_client_saves_what_it_kept(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    picture: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "kept.png"
    words = (
        f"--query x --image {picture} --mode device-only --draft-model {folder} --max-new-tokens 3"
    )
    code = run(
        monkeypatch,
        *words.split(),
        "--jsonl",
        *f"--visual-tokens 6 --selection-rank 2 --save-selection {out}".split(),
    )
    printed = capsys.readouterr()
    assert code == 0, printed.err
    kept = re.search(
        r'"selector": "covspec", "num_visual_tokens": 48, "kept": \[(.*?)\]', printed.out
    )
    assert kept is not None and len(kept[1].split(",")) == 6
    with Image.open(out) as saved:
        assert saved.width > saved.height


@pytest.mark.parametrize(
    "fields,flag",
    [
        ({"visual_tokens": 5, "selection_lambda": 2.0}, "--selection-lambda"),
        ({"visual_tokens": 5, "selection_candidates": 3}, "--selection-candidates"),
        ({"selection_rank": -1}, "--selection-rank"),
        ({"activity_layers": 0}, "--activity-layers"),
        ({"activity_layers": 65}, "--activity-layers"),
        ({"save_selection": Path("a.png")}, "--image"),
        ({"save_selection": Path("a.txt")}, "--save-selection"),
        (
            {"save_selection": Path("a.png"), "image": Path("p.png"), "mode": AskMode.EDGE_ONLY},
            "edge-only",
        ),
        ({"mode": AskMode.DEVICE_ONLY, "activity": ActivitySource.TARGET}, "--activity"),
    ],
)
def test_flags_that_make_no_sense_are_refused(fields: dict[str, Any], flag: str) -> None:
    with pytest.raises(InvalidRequest, match=flag):
        ClientSettings(query="x", **fields)


def test_the_source_of_activity_follows_the_mode() -> None:
    selector: Selector = KeepCovspec(5)
    speculative, alone = (
        ClientSettings(query="x", mode=m) for m in (AskMode.SPECULATIVE, AskMode.DEVICE_ONLY)
    )
    assert speculative.make_view().target_layers(selector) == 4
    assert speculative.make_view().target_layers(KeepAll()) == 0
    assert alone.make_view().target_layers(selector) == 0
