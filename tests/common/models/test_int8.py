from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import internvl_config, save_internvl

from covspec.common.errors import ModelError
from covspec.common.models.int8 import Int8, check_quantised, is_quantisable, quantise
from covspec.common.models.loader import load_model
from covspec.common.models.model import Model, Step
from covspec.common.models.projection import Dense, Packed, Projection, dense, fewest_rows
from covspec.common.models.self_test import self_test

SAME_BITS = fewest_rows() is not None


def weights(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(3)) * 0.05


def test_quantise_by_hand() -> None:
    q, scale = quantise(torch.tensor([[1.27, -0.5, 0.004], [0.0, 0.0, 0.0]]))
    assert q.tolist() == [[127, -50, 0], [0, 0, 0]]
    assert q.dtype == torch.int8
    torch.testing.assert_close(scale, torch.tensor([0.01, 0.0]))


def test_error_is_half_a_step() -> None:
    w = weights(64, 96)
    q, scale = quantise(w)
    assert (w - q * scale[:, None]).abs().max() <= scale.max() * 0.5001


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "shape", [(96, 64), (1100, 1000)]
)  # kept converted, and converted in blocks
def test_equals_the_product_with_rounded_weights(shape: tuple[int, int], bias: bool) -> None:
    w = weights(*shape)
    b = torch.randn(shape[0], generator=torch.Generator().manual_seed(4)) if bias else None
    x = torch.randn(7, shape[1], generator=torch.Generator().manual_seed(5))
    layer = Int8(w, b)
    assert {block.dtype for block in layer.blocks} == {torch.int8}
    assert sum(block.numel() for block in layer.blocks) == w.numel()
    q, scale = quantise(w)
    want = torch.nn.functional.linear(x, q * scale[:, None], b)
    torch.testing.assert_close(layer(x), want, atol=1e-5, rtol=1e-5)
    full = Dense(w, b)(x)
    assert (layer(x) - full).norm() / full.norm() < 0.01


@pytest.mark.skipif(not SAME_BITS, reason="other kernels")
@pytest.mark.parametrize("kind", [dense, Int8])
@pytest.mark.parametrize(
    "shape", [(384, 192), (192, 512), (448, 192), (128, 256), (1100, 1000), (192, 6000)]
)
def test_rows_do_not_depend_on_batch_mates(
    kind: Callable[[torch.Tensor], Projection], shape: tuple[int, int]
) -> None:
    layer = kind(weights(*shape))
    x = torch.randn(130, shape[1], generator=torch.Generator().manual_seed(5))
    whole = layer(x)
    for size in (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 127):
        size = max(size, fewest_rows() or 0)
        assert torch.equal(layer(x[1 : 1 + size]), whole[1 : 1 + size])


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="no oneDNN")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 9, 144])
def test_both_forms_of_a_dense_projection_are_the_same_map(rows: int, bias: bool) -> None:
    w = weights(320, 192)
    generator = torch.Generator().manual_seed(4)
    b = torch.randn(320, generator=generator) if bias else None
    x = torch.randn(rows, 192, generator=generator)
    residual = torch.randn(rows, 320, generator=generator)
    want = torch.nn.functional.linear(x.double(), w.double(), None if b is None else b.double())
    for form in (Dense(w, b), Packed(w, b)):
        before = residual.clone()
        torch.testing.assert_close(form(x), want.float(), atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(
            form(x, residual), (residual + want).float(), atol=1e-4, rtol=1e-5
        )
        assert torch.equal(residual, before)  # what comes in stays as it was
    strided = torch.randn(rows, 2 * 192, generator=generator)[:, ::2]
    torch.testing.assert_close(Packed(w, b)(strided), Dense(w, b)(strided), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("shape", [(384, 192), (192, 512), (1000, 1000), (70, 3000)])
def test_a_kept_copy_has_the_same_numbers(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    w = weights(*shape)
    x = torch.randn(6, shape[1], generator=torch.Generator().manual_seed(5))
    kept = Int8(w)
    monkeypatch.setattr("covspec.common.models.int8._SMALL", 0)
    converted = Int8(w)
    torch.testing.assert_close(kept(x), converted(x), atol=1e-5, rtol=1e-5)
    # A last block of very few columns is summed in another order on some processors.
    assert not SAME_BITS or shape == (70, 3000) or torch.equal(kept(x), converted(x))


@pytest.mark.parametrize(
    ("name", "quantisable"),
    [
        ("model.language_model.layers.0.self_attn.q_proj", True),
        ("model.language_model.layers.11.mlp.down_proj", True),
        ("language_model.model.layers.3.mlp.up_proj", True),
        ("model.vision_tower.encoder.layer.0.attention.q_proj", False),
        ("vision_model.encoder.layers.0.self_attn.q_proj", False),
        ("model.multi_modal_projector.linear_1", False),
        ("mlp1.1", False),
        ("lm_head", False),
        ("model.language_model.embed_tokens", False),
    ],
)
def test_what_may_be_quantised(name: str, quantisable: bool) -> None:
    assert is_quantisable(name) is quantisable


def test_a_wrong_list_is_an_error() -> None:
    decoder = ["m.layers.0.mlp.up_proj", "m.layers.0.self_attn.q_proj"]
    names = [*decoder, "vision_tower.layer.0.fc1", "lm_head"]
    assert check_quantised(reversed(decoder), names) == decoder
    for wrong in ([*decoder, "lm_head"], [*decoder, "vision_tower.layer.0.fc1"], decoder[:1], []):
        with pytest.raises(ModelError, match="INT8 loading went wrong"):
            check_quantised(wrong, names)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int8")
    save_internvl(folder, internvl_config(layers=2), scale=2.0)
    return folder


def loaded(folder: Path, quantization: str) -> Model:
    model = load_model(str(folder), quantization=quantization, num_threads=1)
    model.allocate(4, 128)
    self_test(model)
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning:bitsandbytes")
@pytest.mark.parametrize("quantization", ["int8", "int8-weight-only"])
def test_int8_model_is_near_the_full_one(folder: Path, quantization: str) -> None:
    ids = np.random.default_rng(0).integers(0, 290, 60).tolist()
    full = loaded(folder, "none").forward([Step(0, 0, ids, num_logits=60)])[0].logits
    model = loaded(folder, quantization)
    assert model.quantization == quantization
    got = model.forward([Step(0, 0, ids, num_logits=60)])[0].logits
    assert np.isfinite(got).all()
    assert 0 < np.abs(got - full).mean() < 0.05 * np.abs(full).mean()
    assert (got.argmax(-1) == full.argmax(-1)).mean() >= 0.8


def test_auto_on_cpu_is_weight_only(folder: Path) -> None:
    assert load_model(str(folder)).quantization == "int8-weight-only"


@pytest.mark.parametrize("quantization", ["int8", "int8-weight-only"])
def test_the_list_of_quantised_layers_is_logged(
    folder: Path, quantization: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="covspec.common.models.loader"):
        loaded(folder, quantization)
    (line,) = [r.getMessage() for r in caplog.records if "linear layers in INT8" in r.getMessage()]
    assert "14 of " in line
    for part in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        assert f"layers.1.{'mlp' if part[0] in 'gud' else 'self_attn'}.{part}" in line
    for part in ("vision", "projector", "head", "embed"):
        assert part not in line


def test_weight_only_is_batch_invariant(folder: Path) -> None:
    model = loaded(folder, "int8-weight-only")
    ids = np.random.default_rng(0).integers(0, 290, 40).tolist()
    for row in range(4):
        model.forward([Step(row, 0, ids[: 10 + row])])
    steps = [Step(row, 10 + row, ids[row : 5 + row], num_logits=5) for row in range(4)]
    for step, result in zip(steps, model.forward(steps), strict=True):
        alone = model.forward([step])[0].logits
        np.testing.assert_allclose(result.logits, alone, atol=1e-6 * np.abs(alone).max())
        assert np.array_equal(result.logits.argmax(-1), alone.argmax(-1))
        assert not SAME_BITS or np.array_equal(result.logits, alone)
