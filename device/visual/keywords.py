"""Keywords of a query, Q of C(10): spaCy without its stop words, wherever spaCy is and whatever the query.

| what is installed | `name` | what a keyword is |
|---|---|---|
| spaCy and an English pipeline with a tagger | its own | a noun, proper noun, adjective, verb or number, no stop word |
| spaCy alone | `blank:en` | a word or number that is no stop word |
| no spaCy | `built-in` | the same by a regular expression and a short list of stop words |

Nothing is downloaded. English pipelines find no keywords in other languages: other scripts word by word, languages in
Latin letters by their function words. A query without keywords scores all visual tokens alike.
"""

from __future__ import annotations

import logging
import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

from .function_words import ENGLISH, FOREIGN

logger = logging.getLogger(__name__)

#: Takes the smallest English pipeline that is installed, and the blank one when none is.
AUTO = "auto"
#: Keywords of one query at most, the first ones: work and memory go with their number.
MAX_KEYWORDS = 128
#: Characters of a query that are looked at.
MAX_CHARS = 100_000

_BUILT_IN = "built-in"
_CONTENT = frozenset({"NOUN", "PROPN", "ADJ", "VERB", "NUM"})
#: Parts of a pipeline that are of no use here and take most of its time.
_NOT_NEEDED = ["parser", "ner", "lemmatizer", "senter", "entity_linker"]
#: Pipelines for `auto`, fastest first.
_ENGLISH = ("en_core_web_sm", "en_core_web_md", "en_core_web_lg", "en_core_web_trf")
_WORD = re.compile(r"[^\W_]+(?:[-.][^\W_]+)*")


class Span(NamedTuple):
    """Characters begin ... end - 1 of a query."""

    begin: int
    end: int


class _Word(NamedTuple):
    """A word of a query with what its tokenizer says of it."""

    text: str
    begin: int
    stop: bool
    content: bool


class Keywords:
    """Finds the keywords of queries. Keeps nothing of them; any thread may call it."""

    def __init__(self, pipeline: str = AUTO) -> None:
        """pipeline: name or folder of a spaCy pipeline, or `auto`; a warning where it cannot be loaded."""
        self._lock = threading.Lock()
        self._nlp: Any = _load(pipeline.strip())
        if self._nlp is None:
            self.name, self._english = _BUILT_IN, True
        else:
            self.name = _name(self._nlp)
            self._english = self._nlp.lang == "en"

    def find(self, query: str) -> list[Span]:
        """Where the keywords are, in order, each one once; none in a language that the pipeline does not speak."""
        query = query[:MAX_CHARS]
        with self._lock, self._memory():
            words = list(_by_spacy(self._nlp, query) if self._nlp else _by_regex(query))
        if self._english and _is_foreign(words):
            return []
        found: dict[str, Span] = {}
        for word in words:
            if not word.content or (self._english and not _is_latin(word.text)):
                continue
            found.setdefault(word.text.casefold(), Span(word.begin, word.begin + len(word.text)))
            if len(found) == MAX_KEYWORDS:
                break
        return list(found.values())

    def _memory(self) -> AbstractContextManager[Any]:
        """Forgets new words at its end, so that the vocabulary of a process that lives long does not grow."""
        if self._nlp is None:
            return nullcontext()
        zone: AbstractContextManager[Any] = self._nlp.memory_zone()
        return zone


@lru_cache(maxsize=4)
def load_keywords(pipeline: str = AUTO) -> Keywords:
    """The finder of a pipeline, loaded once in a process; the first call takes a second or two."""
    return Keywords(pipeline)


def _load(pipeline: str) -> Any:
    """A spaCy pipeline; None without spaCy."""
    try:
        import spacy
    except Exception as error:  # an install against another numpy raises ValueError
        logger.warning(
            "spaCy cannot be imported (%s): keywords come from a built-in list of stop words", error
        )
        return None
    if pipeline == AUTO:
        pipeline = next((name for name in _ENGLISH if name in _installed(spacy)), "")
    if pipeline:
        try:
            return spacy.load(pipeline, exclude=_NOT_NEEDED)
        except Exception as error:  # missing, damaged, or made by another version
            logger.warning(
                "spaCy's pipeline %s cannot be loaded (%s): keywords come from spaCy's stop words",
                pipeline,
                " ".join(str(error).split()),
            )
    return spacy.blank("en")


def _installed(spacy: ModuleType) -> list[str]:
    names: list[str] = spacy.util.get_installed_models()
    return names


def _name(nlp: Any) -> str:
    return f"{nlp.lang}_{nlp.meta['name']}" if nlp.pipe_names else f"blank:{nlp.lang}"


def _by_spacy(nlp: Any, query: str) -> Iterator[_Word]:
    """All words; a tagger decides what is content where there is one, and stop words never are."""
    doc = nlp(query)
    tagged = any(token.pos_ for token in doc)
    for token in doc:
        content = not token.is_stop and (not tagged or token.pos_ in _CONTENT)
        content = content and any(c.isalnum() for c in token.text)
        yield _Word(token.text, token.idx, token.is_stop, content)


def _by_regex(query: str) -> Iterator[_Word]:
    for match in _WORD.finditer(query):
        stop = match.group().casefold() in ENGLISH
        yield _Word(match.group(), match.start(), stop, not stop)


def _is_latin(text: str) -> bool:
    """Whether all letters and digits are of the Latin script."""
    return all(
        c.isascii() or unicodedata.name(c, "").startswith("LATIN") for c in text if c.isalnum()
    )


def _is_foreign(words: Iterable[_Word]) -> bool:
    """Whether more of the words, and at least two, are function words of another language than of English."""
    texts = {unicodedata.normalize("NFC", word.text.casefold()): word.stop for word in words}
    english = sum(texts.values())
    foreign = max(sum(text in language for text in texts) for language in FOREIGN)
    return foreign >= 2 and foreign > english
