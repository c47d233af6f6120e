"""docs/models.md, made of the tables that the tests of families run. `make docs` writes it; a test compares it."""

from __future__ import annotations

from support.library_models import TEXT
from support.original_internvl import VERSIONS
from support.seeing_models import CASES

from covspec.common.models.families import FAMILIES, REFUSED

HEAD = """# Models

A model is a folder as it is published: `config.json`, weights in one file or in shards (safetensors, or `.bin` files,
which are read as weights only), a tokenizer (`tokenizer.json`, `tokenizer.model` where
sentencepiece is installed, or a vocabulary with merges) and a
chat template in any of the usual places. Code in a folder never runs. Whether every file is whole is checked from the
headers before anything is loaded; the error names the file and the remedy. Weights that are quantised already (AWQ,
GPTQ, compressed-tensors, bitsandbytes) are refused: give the original ones, which `--quantization` makes smaller.

Every model is held to Transformers' own forward pass when it is loaded: 32 tokens go through our rows in portions,
over a wrong continuation that they replace, and a model whose logits differ by more than rounding is refused by its
name.

The tests make a small random checkpoint of each case below. *Greedy text*: several sessions together in ragged
batches, with drafts that are partly wrong, so that entries are written over, say what the library's own `generate`
says, with pictures where the model has eyes. *Native bits*: logits and visual tokens are those of the same weights in
Transformers' format; sums of experts, whose weights lie elsewhere in memory, may differ in the last bit.

On the library's own layers a verification of 16 drafts of 9 positions took 1.22, 1.10 and 1.08 times what our decoder
takes for the same Qwen2 weights with 8 layers of width 192, 12 of 576 and 6 of 1024 (float32, one thread of a shared
machine, lowest of 25), a step of one token 1.85, 1.35 and 1.40 times. Experts of mixtures stay in floating point
under every `--quantization`. Numbers that do not depend on the batch, to the bit, are promised for our own decoder
alone.

`make docs` writes this page.
"""


def page() -> str:
    lines = [
        HEAD,
        "## With eyes",
        "",
        "| model_type | tried as | layers | proven |",
        "|---|---|---|---|",
    ]
    lines.append("| internvl | with Qwen2, Qwen3 and Llama inside | ours | greedy text |")
    for version, (original, text, _) in VERSIONS.items():
        layers = "ours" if text in ("qwen2", "qwen3", "llama") else "the library's"
        row = f"| internvl_chat | {version}, {original} inside | {layers} | native bits |"
        lines.append(row)
    for name, case in CASES.items():
        lines.append(f"| {case.model_type} | {name} | the library's | greedy text |")
    lines += [
        "",
        "## Text alone",
        "",
        "| model_type | tried as | layers | proven |",
        "|---|---|---|---|",
    ]
    for name, (model_type, _) in TEXT.items():
        lines.append(f"| {model_type} | {name} | the library's | greedy text |")
    lines += ["", "## Refused, with the reason", "", "| model_type | because |", "|---|---|"]
    lines += [f"| {model_type} | {reason} |" for model_type, reason in sorted(REFUSED.items())]
    return "\n".join([*lines, ""])


def untested() -> set[str]:
    """Families that no case tries."""
    tried = {case.model_type for case in CASES.values()} | {kind for kind, _ in TEXT.values()}
    return set(FAMILIES) - tried - {"internvl", "internvl_chat"}


if __name__ == "__main__":
    print(page(), end="")
