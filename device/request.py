"""What a user asks for, ready to be decoded."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from PIL import Image

from ..common.maths.sampling import Sampling
from ..common.models.prompt import Prompt
from ..common.protocol.limits import MAX_DRAFT_LENGTH
from ..common.protocol.messages import Correction, DeviceProfile, Feature, Gate, Mode, Open


class AskMode(Enum):
    """Who decodes."""

    SPECULATIVE = "speculative"
    EDGE_ONLY = "edge-only"
    DEVICE_ONLY = "device-only"


FEATURES = frozenset({Feature.RESUME, Feature.GO_AWAY, Feature.DECODE_AHEAD})


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt with its picture, and how to decode the answer.

    image: the decoded picture for the draft model. image_bytes: the same picture as the user gave it, for the edge.
    """

    prompt: Prompt
    sampling: Sampling
    correction: Correction = Correction.LOGITS
    image: Image.Image | None = None
    image_bytes: bytes = b""
    #: The question as the user typed it; visual tokens are chosen by it.
    query: str = ""

    def to_open(
        self,
        mode: Mode,
        tokenizer_fingerprint: bytes,
        activity_layers: int = 0,
        gate: Gate = Gate.OFF,
        *,
        follows_plan: bool = False,
        snr_db: float | None = None,
    ) -> Open:
        """The first message of its session. snr_db: of the uplink, for plans."""
        wanted = set(FEATURES)
        if activity_layers:
            wanted.add(Feature.ACTIVITY)
        if follows_plan:
            wanted.add(Feature.PLAN)
        return Open(
            prompt_ids=self.prompt.ids,
            sampling=self.sampling,
            tokenizer_fingerprint=tokenizer_fingerprint,
            image=self.image_bytes,
            image_position=self.prompt.image_position,
            mode=mode,
            correction=self.correction,
            gate=gate,
            profile=DeviceProfile(max_draft_length=MAX_DRAFT_LENGTH, snr_db=snr_db),
            activity_layers=activity_layers,
            features=frozenset(wanted),
        )

    def target_len(self, num_visual_tokens: int) -> int:
        """Entries of the prompt in the target, whose picture has this many tokens."""
        placeholder = self.prompt.image_position is not None
        return len(self.prompt.ids) - placeholder + num_visual_tokens
