"""Questions for peers: the answers that are expected, and the files that programs read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covspec.bench.peers.questions import Counts, make_suite
from covspec.common.clock import MonotonicClock
from covspec.common.maths.sampling import Sampling
from covspec.common.models.loader import load_draft_model, load_model
from covspec.common.models.prompt import Prompt
from covspec.device.alone import device_only
from covspec.device.fleet.pair_trace import load_pair_trace
from covspec.device.record.meters import Meters
from covspec.device.request import Request


@pytest.mark.parametrize("name", ["pictures", "text"])
def test_a_suite_expects_what_the_target_says(name: str, tmp_path: Path) -> None:
    target = load_model("scenes-target", quantization="none", num_threads=1)
    draft = load_draft_model("scenes-draft", num_threads=1)
    suite = make_suite(
        name, target, draft, "scenes-target", Counts(judged=1, tuning=1, crowd=2), tmp_path / name
    )
    (question,), (other,) = suite.judged, suite.tuning
    assert question.text != other.text or question.image != other.image
    assert len(load_pair_trace(suite.trace).answers) == len(suite.crowd) == 2
    if name == "pictures":
        assert np.load(question.tiles).shape == (1, 3, 160, 160)
        assert suite.num_visual_tokens == 100
        return
    assert not question.image and question.text.startswith("<|im_start|>user\n")
    request = Request(Prompt(tuple(question.ids)), Sampling(max_new_tokens=96))
    done = device_only(request, target, Meters(MonotonicClock(), lambda _: None))
    assert question.expected_text == done.text
    assert question.expected_ids == [i for i in done.token_ids if i not in target.stop_ids]
