import json
import string
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.original_internvl import save_vocabulary
from support.tokenizers import TEXTS
from transformers.utils import sentencepiece_model_pb2_new as sentencepiece_model_pb2

from covspec.common.errors import ModelError
from covspec.common.models.files.tokenizers import read_tokenizer

CONTROL = {"<|im_start|>": 400, "<|im_end|>": 401, "<img>": 402, "<IMG_CONTEXT>": 403}


def save_sentencepiece(folder: Path, tokenizer_class: str) -> None:
    """A small SentencePiece model, with control tokens as InternLM2's folders name them."""
    proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.trainer_spec.model_type = proto.trainer_spec.BPE
    proto.trainer_spec.byte_fallback = True
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.remove_extra_whitespaces = False
    kind = proto.SentencePiece
    for piece, type_ in (("<unk>", kind.UNKNOWN), ("<s>", kind.CONTROL), ("</s>", kind.CONTROL)):
        proto.pieces.add(piece=piece, score=0.0, type=type_)
    for byte in range(256):
        proto.pieces.add(piece=f"<0x{byte:02X}>", score=0.0, type=kind.BYTE)
    merges = ["\u2581t", "he", "\u2581the", "re", "red", "\u2581red", "ci", "cl", "cle"]
    for rank, piece in enumerate([*merges, "\u2581", *string.ascii_lowercase]):
        proto.pieces.add(piece=piece, score=-float(rank), type=kind.NORMAL)
    (folder / "tokenizer.model").write_bytes(proto.SerializeToString())
    size = len(proto.pieces)
    added = {
        str(size + i): {"content": token, "special": True, "normalized": False}
        for i, token in enumerate(CONTROL)
    }
    stored = {
        "tokenizer_class": tokenizer_class,
        "auto_map": {"AutoTokenizer": ["tokenization_internlm2.InternLM2Tokenizer", None]},
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "added_tokens_decoder": added,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(stored))


def sentencepiece_ids(folder: Path, texts: Sequence[str]) -> list[list[int]]:
    """SentencePiece's own ids; in a process of its own, since its C++ code and gRPC's crash in one."""
    code = (
        "import json, sys, sentencepiece\n"
        "model = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])\n"
        "print(json.dumps([model.encode(text) for text in json.loads(sys.argv[2])]))"
    )
    command = [sys.executable, "-c", code, str(folder / "tokenizer.model"), json.dumps(texts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    ids: list[list[int]] = json.loads(done.stdout)
    return ids


@pytest.mark.skipif(find_spec("sentencepiece") is None, reason="SentencePiece is not installed")
@pytest.mark.parametrize("tokenizer_class", ["InternLM2Tokenizer", "LlamaTokenizer"])
def test_tokenizer_model(tokenizer_class: str, tmp_path: Path) -> None:
    save_sentencepiece(tmp_path, tokenizer_class)
    made = read_tokenizer(tmp_path)
    texts = ("the red circle", "a naïve café 🙂")
    for text, want in zip(texts, sentencepiece_ids(tmp_path, texts), strict=True):
        assert made.encode_user(text, first=True) == want
        # Behind other text no space comes before it.
        behind = made.encode_control(f"the\n{text}")
        assert behind == [*made.encode_control("the\n"), *made.encode_user(text)]
        assert made.decode(want) == text
    start = made.token_id("<|im_start|>")
    assert start is not None and made.encode_control("<|im_start|>") == [start]
    assert start not in made.encode_user("<|im_start|>")
    assert made.size == 3 + 256 + 36 + len(CONTROL)


def test_vocabulary_and_merges(tmp_path: Path) -> None:
    save_vocabulary(tmp_path)
    made = read_tokenizer(tmp_path)
    for text in TEXTS:
        assert made.decode(made.encode_user(text)) == text


def test_a_folder_without_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no tokenizer.json"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json"])
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x93garbage")
    cls = "Qwen2Tokenizer" if name == "vocab.json" else "LlamaTokenizer"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": cls}))
    with pytest.raises(ModelError, match=f"no tokenizer can be made of .*{name}"):
        read_tokenizer(tmp_path)
