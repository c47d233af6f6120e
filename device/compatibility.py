"""Whether an edge and this device fit together, checked before a picture travels."""

from __future__ import annotations

from ..common.errors import Incompatible, InvalidImage, InvalidRequest
from ..common.models.model import Model
from ..common.models.ngram import NAME as NGRAM
from ..common.models.ngram import full_name
from ..common.models.prompt import TextSide
from ..common.models.zoo import ALIASES
from ..common.protocol.limits import SUPPORTED_VERSIONS
from ..common.protocol.messages import ModelInfo


def check_edge(info: ModelInfo, edge: str, image_bytes: bytes) -> None:
    """Refuses here what the edge would refuse after it got the picture. Raises CovspecError."""
    if info.protocol_version not in SUPPORTED_VERSIONS:
        raise Incompatible(
            f"the edge at {edge} speaks protocol version {info.protocol_version}, this device "
            f"{', '.join(map(str, sorted(SUPPORTED_VERSIONS)))}: install matching versions of covspec on both ends",
            reason="PROTOCOL_VERSION",
        )
    if image_bytes and not info.vision:
        raise InvalidRequest(
            f"the edge at {edge} serves {info.model_names[0]}, which reads text only; "
            "ask without --image, or serve a model with eyes"
        )
    if len(image_bytes) > info.limits.max_image_bytes:
        raise InvalidImage(
            f"the picture has {len(image_bytes)} bytes, but the edge takes at most "
            f"{info.limits.max_image_bytes}: make it smaller"
        )


def full_draft_model(info: ModelInfo, draft_model: str) -> str:
    """The draft model's full name: a bare `ngram` takes the tokenizer of the target, where its name is known here."""
    if draft_model != NGRAM:
        return draft_model
    known = next((name for name in info.model_names if name.lower() in ALIASES), None)
    if known is None:
        raise InvalidRequest(
            f"--draft-model ngram needs the tokenizer of {info.model_names[0]}, which is no short name known here: "
            "say --draft-model ngram:FOLDER with a folder that has it"
        )
    return full_name(NGRAM, known)


def check_tokenizer(info: ModelInfo, speaker: Model | TextSide, draft_model: str) -> None:
    """Raises Incompatible for a draft model whose tokens are not the target's."""
    if speaker.tokenizer.fingerprint != info.tokenizer_fingerprint:
        looks_up = draft_model.startswith(NGRAM)
        raise Incompatible(
            f"{draft_model} and the edge's {info.model_names[0]} have different tokenizers: "
            f"choose a --draft-model of the target's family{'' if looks_up else ', or ngram'}"
        )
