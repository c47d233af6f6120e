"""Whether an edge and this device fit together, checked before a picture travels."""

from __future__ import annotations

from ..common.errors import Incompatible, InvalidImage, InvalidRequest
from ..common.models.model import Model
from ..common.models.prompt import TextSide
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


def check_tokenizer(info: ModelInfo, speaker: Model | TextSide, draft_model: str) -> None:
    """Raises Incompatible for a draft model whose tokens are not the target's."""
    if speaker.tokenizer.fingerprint != info.tokenizer_fingerprint:
        raise Incompatible(
            f"{draft_model} and the edge's {info.model_names[0]} have different tokenizers: "
            "choose a --draft-model of the target's family"
        )
