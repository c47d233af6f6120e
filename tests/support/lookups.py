from covspec.common.input.chat import ChatFormat
from covspec.common.models.ngram import NgramModel
from covspec.common.models.prompt import TextSide
from covspec.common.models.table import word_tokenizer


def lookup(vocab_size: int = 12, stop_ids: frozenset[int] = frozenset()) -> NgramModel:
    """A draft for table models, and others, of made-up words."""
    tokenizer = word_tokenizer(vocab_size)
    return NgramModel(TextSide("words", tokenizer, ChatFormat(), stop_ids, None, 4096))
