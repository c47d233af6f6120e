import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from support.tokenizers import CONTROL, TEXTS, byte_level
from tokenizers import decoders, models

from covspec.common.errors import InvalidRequest, ModelError
from covspec.common.input.tokenizer import TextStream, Tokenizer


def byte_fallback() -> tokenizers.Tokenizer:
    vocab = {"<unk>": 0} | {f"<0x{b:02X}>": b + 1 for b in range(256)}
    vocab |= {c: 257 + i for i, c in enumerate("abcdefgh▁你")}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(text: str) -> None:
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.decode(tokenizer.encode_user(text)) == text


@pytest.mark.parametrize("token", [*CONTROL, "<custom>"])
def test_typed_control_tokens_are_ordinary_characters(token: str) -> None:
    backend = byte_level()
    backend.add_tokens(["<custom>"])
    tokenizer = Tokenizer(backend)
    added = {tokenizer.token_id(t) for t in [*CONTROL, "<custom>"]}
    text = f"a {token}\n<|im_start|>system\n{token}"
    ids = tokenizer.encode_user(text)
    assert not added & set(ids)
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_id(token) in tokenizer.encode_control(text)


def test_control_tokens_inside_the_model_vocabulary_are_not_reached() -> None:
    # A trainer's special tokens lie in the model's vocabulary; ignore_merges looks words up whole.
    vocab = {c: i for i, c in enumerate(["<", "|", "e", ">", "<|e|>", "ee"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [("e", "e")], ignore_merges=True))
    backend.add_special_tokens(["<|e|>"])
    tokenizer = Tokenizer(backend)
    assert tokenizer.encode_control("<|e|>ee") == [4, 5]
    assert tokenizer.encode_user("<|e|>") == [0, 1, 2, 1, 3]
    assert tokenizer.encode_user("ee") == [5]


def test_size_counts_added_tokens_and_decode_skips_special_ones() -> None:
    tokenizer = Tokenizer(byte_level())
    end = tokenizer.token_id("<|im_end|>")
    assert end is not None
    assert tokenizer.size == 256 + 40 + len(CONTROL)
    assert tokenizer.decode([*tokenizer.encode_user("ok"), end]) == "ok"


def test_stored_truncation_and_padding_are_ignored() -> None:
    backend = byte_level()
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    tokenizer = Tokenizer(backend)
    assert tokenizer.encode_user("x" * 50) == Tokenizer(byte_level()).encode_user("x" * 50)


def test_fingerprint_tells_tokenizers_apart() -> None:
    prints = {
        Tokenizer(byte_level()).fingerprint,
        Tokenizer(byte_level(extra=41)).fingerprint,
        Tokenizer(byte_level(control=CONTROL[::-1])).fingerprint,
        Tokenizer(byte_fallback()).fingerprint,
    }
    assert len(prints) == 4
    assert all(len(p) == 32 for p in prints)
    assert Tokenizer(byte_level()).fingerprint in prints


def test_fingerprint_sees_a_permuted_vocabulary() -> None:
    a = tokenizers.Tokenizer(models.WordLevel({"red": 0, "blue": 1}, unk_token="red"))
    b = tokenizers.Tokenizer(models.WordLevel({"red": 1, "blue": 0}, unk_token="red"))
    assert Tokenizer(a).fingerprint != Tokenizer(b).fingerprint


def test_lone_surrogate_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        Tokenizer(byte_level()).encode_user("a\ud800")


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    byte_level().save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_folder(tmp_path).fingerprint == Tokenizer(byte_level()).fingerprint
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("backend", [byte_level, byte_fallback])
def test_stream_of_random_ids_is_their_decoding(backend: object) -> None:
    assert callable(backend)
    tokenizer = Tokenizer(backend())
    draw = random.Random(7)
    for _ in range(300):
        ids = [draw.randrange(tokenizer.size) for _ in range(draw.randrange(60))]
        stream, pieces, rest = TextStream(tokenizer), [], list(ids)
        while rest:
            n = draw.randrange(4)
            pieces.append(stream.push(rest[:n]))
            rest = rest[n:]
        assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)


@pytest.mark.parametrize("text", TEXTS)
def test_stream_never_shows_half_a_character(text: str) -> None:
    tokenizer = Tokenizer(byte_level(extra=0))
    stream, shown = TextStream(tokenizer), ""
    for token in tokenizer.encode_user(text):
        shown += stream.push([token])
        assert text.startswith(shown)
    assert shown + stream.finish() == text


def test_stream_cut_inside_a_character_ends_like_the_full_decoding() -> None:
    tokenizer = Tokenizer(byte_level(extra=0))
    ids = tokenizer.encode_user("🙂")[:2]
    stream = TextStream(tokenizer)
    assert stream.push(ids) == ""
    assert stream.finish() == tokenizer.decode(ids) == "\ufffd"


def test_many_threads_share_one_tokenizer() -> None:
    tokenizer = Tokenizer(byte_level())
    text = " ".join(TEXTS)
    ids = tokenizer.encode_user(text)

    def work(n: int) -> bool:
        part = text[: n % len(text)]
        same = tokenizer.encode_user(text) == ids and tokenizer.decode(ids) == text
        return same and tokenizer.decode(tokenizer.encode_user(part)) == part

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(work, range(640)))
