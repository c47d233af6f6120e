"""Keywords of a query: in English, in other languages, with every kind of pipeline, and without any."""

from __future__ import annotations

import builtins
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc

from covspec.device.visual.function_words import ENGLISH, FOREIGN
from covspec.device.visual.keywords import AUTO, MAX_CHARS, MAX_KEYWORDS, Keywords, load_keywords

UMBRELLA = "What color is the umbrella that the woman's holding?"
POS = {"What": "PRON", "color": "NOUN", "umbrella": "NOUN", "quickly": "ADV", "holding": "VERB"}

OTHER_LANGUAGES = [
    "伞是什么颜色的？",
    "Какого цвета зонт у женщины?",
    "女性が持っている傘は何色ですか？",
    "ما لون المظلة التي تحملها المرأة؟",
    "महिला के छाते का रंग क्या है?",
    "우산은 무슨 색이에요?",
    "Welche Farbe hat der Regenschirm der Frau?",
    "Quelle est la couleur du parapluie ?",
    "¿De qué color es el paraguas?",
    "De que cor é o guarda-chuva?",
    "Di che colore è l'ombrello?",
    "Wat is de kleur van de paraplu?",
    "Vilken färg har paraplyet på bilden?",
    "Jaki kolor ma parasol i co jest obok?",
    "Bu resimde kaç kedi var?",
    "Apa warna payung di gambar ini?",
    "Ô này có màu gì?",
]


@pytest.fixture(scope="module")
def blank() -> Keywords:
    return Keywords()


@pytest.fixture
def built_in(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Keywords:
    """What is left where spaCy is not installed."""
    real = builtins.__import__

    def without_spacy(name: str, *rest: Any, **named: Any) -> Any:
        if name == "spacy":
            raise ModuleNotFoundError("No module named 'spacy'")
        return real(name, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without_spacy)
        return Keywords()


@Language.component("test_tagger")
def tagger(doc: Doc) -> Doc:
    for token in doc:
        token.pos_ = POS.get(token.text, "X")
    return doc


@pytest.fixture
def tagged(tmp_path: Path) -> Iterator[str]:
    """A folder with a pipeline that tags."""
    nlp = spacy.blank("en")
    nlp.add_pipe("test_tagger")
    nlp.meta["name"] = "made_up"
    nlp.to_disk(tmp_path / "en_made_up")
    yield str(tmp_path / "en_made_up")


def words(keywords: Keywords, query: str) -> list[str]:
    return [query[begin:end] for begin, end in keywords.find(query)]


def test_stop_words_and_punctuation_are_no_keywords(blank: Keywords) -> None:
    assert words(blank, UMBRELLA) == ["color", "umbrella", "woman", "holding"]
    assert words(blank, "HOW MANY Dogs, or 3 cats??") == ["Dogs", "3", "cats"]
    assert blank.name == "blank:en"


def test_a_keyword_counts_once_whatever_its_case(blank: Keywords) -> None:
    assert words(blank, "Red car, red CAR, blue bus") == ["Red", "car", "blue", "bus"]


@pytest.mark.parametrize(
    "query", ["", " ", "is it?", "a", "the of and", "?!", "😀🎉👩‍👩‍👧", "…", "\u200b", "\n\t", "❤️"]
)
def test_no_keywords(blank: Keywords, built_in: Keywords, query: str) -> None:
    assert blank.find(query) == built_in.find(query) == []


def test_one_letter_may_be_a_keyword(blank: Keywords, built_in: Keywords) -> None:
    assert words(blank, "x") == words(built_in, "x") == ["x"]


@pytest.mark.parametrize("query", OTHER_LANGUAGES)
def test_other_languages_have_none(blank: Keywords, built_in: Keywords, query: str) -> None:
    assert blank.find(query) == []
    assert built_in.find(query) == []


@pytest.mark.parametrize(
    "query,expected",
    [
        ("What does 注意 mean on the red sign?", ["mean", "red", "sign"]),
        ("Where is the café?", ["café"]),
        ("hat", ["hat"]),
        ("What does the sign 'casa de la luz' say?", ["sign", "casa", "de", "la", "luz"]),
    ],
)
def test_a_few_foreign_words_do_no_harm(blank: Keywords, query: str, expected: list[str]) -> None:
    assert words(blank, query) == expected


def test_long_queries_have_an_end(blank: Keywords, built_in: Keywords) -> None:
    query = " ".join(f"word{i}" for i in range(10_000))
    for keywords in (blank, built_in):
        assert words(keywords, query) == [f"word{i}" for i in range(MAX_KEYWORDS)]
        assert keywords.find("x" * 2 * MAX_CHARS) == [(0, MAX_CHARS)]


def test_without_spacy_a_list_of_stop_words_stands_in(
    built_in: Keywords, caplog: pytest.LogCaptureFixture
) -> None:
    assert built_in.name == "built-in"
    assert words(built_in, UMBRELLA) == ["color", "umbrella", "woman", "holding"]
    assert words(built_in, "Red-hot chili, v1.2 don't") == ["Red-hot", "chili", "v1.2", "don"]


def test_without_spacy_there_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    Keywords().find(UMBRELLA)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "spaCy cannot be imported" in caplog.text


def test_a_tagger_chooses_by_part_of_speech(tagged: str) -> None:
    keywords = Keywords(f"  {tagged}\n")
    assert keywords.name == "en_made_up"
    assert words(keywords, "What color umbrella quickly holding the thing") == [
        "color",
        "umbrella",
        "holding",
    ]


def test_a_pipeline_of_another_language_speaks_it(tmp_path: Path) -> None:
    spacy.blank("de").to_disk(tmp_path)
    query = "Welche Farbe hat der Regenschirm?"
    assert words(Keywords(str(tmp_path)), query) == ["Farbe", "Regenschirm"]


def test_auto_takes_the_smallest_installed_pipeline(
    monkeypatch: pytest.MonkeyPatch, tagged: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(spacy.util, "get_installed_models", lambda: ["en_core_web_lg", "de_x"])
    load = spacy.load

    def fake(name: str, **options: Any) -> Language:
        asked.append(name)
        return load(tagged, **options)

    monkeypatch.setattr(spacy, "load", fake)
    assert words(Keywords(AUTO), "umbrella quickly") == ["umbrella"]
    assert asked == ["en_core_web_lg"]


def test_a_missing_pipeline_falls_back_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    keywords = Keywords("en_core_web_missing")
    assert words(keywords, UMBRELLA) == ["color", "umbrella", "woman", "holding"]
    assert keywords.name == "blank:en"
    assert len(caplog.records) == 1 and "en_core_web_missing" in caplog.text


def test_a_pipeline_is_loaded_once() -> None:
    assert load_keywords() is load_keywords()


def test_any_thread_may_ask(blank: Keywords) -> None:
    found: list[list[str]] = []

    def ask(i: int) -> None:
        found.append(words(blank, f"object{i} above thing{i}"))

    threads = [Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted([f"object{i}", f"thing{i}"] for i in range(8))


def test_function_words_of_languages_do_not_collide_with_english() -> None:
    """A question in English has more English function words than foreign ones."""
    common = "what is the in on of how many are there which where who does a an to and or this that"
    assert set(common.split()) <= ENGLISH
    for language in FOREIGN:
        assert len(language & set(common.split())) <= 4


def growth(keywords: Keywords, num_queries: int) -> tuple[int, int]:
    """Words and strings that a pipeline's vocabulary gains."""
    vocab = keywords._nlp.vocab
    keywords.find("warm up")
    before = sum(1 for _ in vocab), len(vocab.strings)
    for i in range(num_queries):
        keywords.find(f"unseen{i}a unseen{i}b")
    return sum(1 for _ in vocab) - before[0], len(vocab.strings) - before[1]


def test_the_vocabulary_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert growth(Keywords(), 200) == (0, 0)
    monkeypatch.setattr(Keywords, "_memory", lambda self: nullcontext())
    assert min(growth(Keywords(), 200)) >= 400


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_over_100000_queries() -> None:
    keywords = Keywords()
    growth(keywords, 2_000)
    before = resident_bytes()
    assert growth(keywords, 100_000) == (0, 0)
    assert resident_bytes() - before < 8 << 20
