"""The flags of `device-client`, and those by which every command reaches an edge."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from ..common.errors import InvalidRequest
from ..common.maths.sampling import (
    MAX_NEW_TOKENS,
    MAX_SEED,
    MAX_TEMPERATURE,
    MAX_TOP_K,
    Sampling,
)
from ..common.models.ngram import NAME as NGRAM
from ..common.models.prompt import is_blank
from ..common.models.zoo import DEVICES
from ..common.protocol.access import Access
from ..common.protocol.address import check_target
from ..common.protocol.limits import MAX_DRAFT_LENGTH
from ..common.protocol.messages import Correction, Gate
from ..common.protocol.tls import Tls
from ..common.settings import LONGEST_S, Settings, setting
from .branching.branch import MAX_FAN_OUT
from .drafting.gate import MAX_GATED, THRESHOLD, GateRule
from .lengths.length import LengthName
from .line.lifeline import RECONNECT_S
from .request import AskMode
from .tactics import PAPER_SNR_DB, Tactics
from .visual.keywords import AUTO
from .visual.picture import check_ending
from .visual.selection import ACTIVITY_LAYERS, QUERY_WEIGHT, Selector, SelectorName, make_selector
from .visual.view import MAX_ACTIVITY_LAYERS, ActivitySource, ViewOptions

_MOST_VISUAL_TOKENS = 1 << 20


class ReachSettings(Settings):
    """How an edge is reached: what it must show, and what it is shown."""

    tls: bool = setting(
        False,
        "Encrypt, and trust the authorities of this system or those of --ssl-ca-certs.",
        group="Reaching the edge",
    )
    ssl_ca_certs: Path | None = setting(
        None, "Authorities that signed the edge's certificate, PEM; turns TLS on.", metavar="FILE"
    )
    ssl_certfile: Path | None = setting(
        None, "This device's certificate, where the edge asks for one, PEM.", metavar="FILE"
    )
    ssl_keyfile: Path | None = setting(None, "Private key of the certificate, PEM.", metavar="FILE")
    api_key: str = setting(
        "",
        "API key of the edge. Better set as COVSPEC_API_KEY than on a command line.",
        metavar="KEY",
        repr=False,
    )
    insecure: bool = setting(False, "Allow plain text to another machine.")

    @property
    def access(self) -> Access:
        """What these flags amount to. Raises InvalidRequest for files that cannot be used."""
        identity = Tls.given(
            self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs, wanted=self.tls
        )
        return Access(identity, self.api_key, self.insecure)


class ClientSettings(ReachSettings):
    """What `device-client` is asked for. 0 stands for a choice of the device's where the flag says so."""

    query: str = setting(..., "The question.", group="Question")
    image: Path | None = setting(
        None, "Picture: JPEG, PNG, WebP, GIF, BMP or TIFF.", metavar="FILE"
    )
    edge: str = setting("127.0.0.1:50051", "Address of the edge.", metavar="HOST:PORT")
    mode: AskMode = setting(
        AskMode.SPECULATIVE,
        "Decode with both models, with the target alone or with the draft alone.",
    )

    as_json: bool = setting(False, "Print one JSON object at the end.", group="Output", name="json")
    jsonl: bool = setting(False, "Print one JSON event per line.")
    show_speculation: bool = setting(
        False,
        "Mark accepted tokens green, rejected ones struck out in red, corrected ones yellow and bonus tokens cyan; "
        "provisional tokens dim, and tokens that are final without verification pink.",
    )
    color: Literal["auto", "always", "never"] = setting(
        "auto", "Colours; auto uses none in pipes and with NO_COLOR."
    )

    max_new_tokens: int = setting(
        256, "Longest answer, tokens.", group="Sampling", ge=1, le=MAX_NEW_TOKENS
    )
    temperature: float = setting(
        0.0, "Temperature; 0 is greedy, else at least 0.01.", ge=0, le=MAX_TEMPERATURE
    )
    top_p: float = setting(
        1.0, "Keep the most probable tokens that together have this probability.", gt=0, le=1
    )
    top_k: int = setting(
        0, "Keep this many of the most probable tokens; 0: all.", ge=0, le=MAX_TOP_K
    )
    seed: int = setting(
        0, "Seed of the answer: the same one gives the same answer.", ge=0, le=MAX_SEED
    )
    ignore_stop: bool = setting(False, "Decode past stop tokens, up to --max-new-tokens.")

    draft_model: str = setting(
        "scenes-draft",
        "Draft model: short name, folder, hub id or table:FILE.npz; or ngram, which repeats what followed the same "
        "words earlier in the text (ngram:MODEL where the edge's name for the target is not known here).",
        group="Draft model",
    )
    device: str = setting("cpu", "Device that the draft model runs on.", choices=DEVICES)
    num_threads: int = setting(0, "CPU threads of the draft model; 0: all cores.", ge=0, le=1024)

    draft_length: int = setting(
        8,
        "Tokens of a draft, or of the first draft where --length-policy adapts; 0 lets the edge decode.",
        group="Speculation",
        ge=0,
        le=MAX_DRAFT_LENGTH,
    )
    length_policy: LengthName = setting(
        LengthName.FIXED,
        "Policy of the draft length: fixed; ema, by acceptance and the cost of a rejection (the paper's); plan, as the "
        "edge's scheduler says; goodput, the length that promises the most tokens per second.",
    )
    bandwidth_hz: float = setting(
        0.0,
        "Current uplink bandwidth, Hz, for the cost of a rejection in ema; 0: measured.",
        ge=0,
        le=1e12,
    )
    snr_db: float = setting(
        PAPER_SNR_DB, "Current uplink SNR, dB; counts with --bandwidth-hz.", ge=-60, le=60
    )
    gate: Gate = setting(
        Gate.OFF,
        "Confident draft tokens: verified like all others (off); final without verification (committed, the paper's, "
        "lossy); or shown as provisional and verified with the draft behind them (optimistic).",
    )
    gate_rule: GateRule = setting(
        GateRule.MARGIN,
        "Measure of confidence: CoVSpec's margin, or U-HLM's uncertainty (with --gate committed).",
    )
    gate_threshold: float = setting(
        THRESHOLD,
        "Margin from which a token is confident, or uncertainty below which it is.",
        ge=0,
        le=1,
    )
    max_gated: int = setting(
        MAX_GATED, "Most confident tokens in front of a draft.", ge=1, le=MAX_DRAFT_LENGTH - 1
    )
    branches: int = setting(
        0,
        "Branches to draft for the first outcome while a verdict travels; 0: none.",
        ge=0,
        le=MAX_FAN_OUT,
    )
    branch_decay: float = setting(
        0.5, "Factor on the number of branches for each later outcome.", gt=0, lt=1
    )
    correction: Correction = setting(
        Correction.LOGITS,
        "Replacement of a rejected token when sampling: drawn at the edge (edge, topk), drawn on the device from the "
        "target's row (logits) or from candidates, or coupled by a common noise (fewest bytes).",
    )
    timeout_s: float = setting(
        60.0, "Longest wait for one answer of the edge, seconds.", gt=0, le=LONGEST_S
    )
    reconnect_s: float = setting(
        RECONNECT_S,
        "Seconds to try to reach an edge that was lost; 0: give up at once.",
        ge=0,
        le=LONGEST_S,
    )

    visual_tokens: int = setting(
        0,
        "Visual tokens that the draft model sees; 0: all. Without a picture these flags have no effect.",
        group="Visual tokens",
        ge=0,
        le=_MOST_VISUAL_TOKENS,
    )
    selector: SelectorName | None = setting(
        None, "Choice of visual tokens; covspec where a number is given."
    )
    selection_lambda: float = setting(
        QUERY_WEIGHT,
        "Weight of the query in a visual token's score; the rest is activity.",
        ge=0,
        le=1,
    )
    selection_candidates: int = setting(
        0,
        "Visual tokens to preselect; 0: three for each one that is kept.",
        ge=0,
        le=_MOST_VISUAL_TOKENS,
    )
    selection_rank: int = setting(
        0,
        "Rank of the preselected tokens; 0: half of those that are kept.",
        ge=0,
        le=_MOST_VISUAL_TOKENS,
    )
    activity: ActivitySource | None = setting(
        None,
        "Model whose activity scores count; by default the target, or the draft where there is no target.",
    )
    activity_layers: int = setting(
        ACTIVITY_LAYERS,
        "Last layers that the activity is averaged over.",
        ge=1,
        le=MAX_ACTIVITY_LAYERS,
    )
    keyword_pipeline: str = setting(
        AUTO,
        "Pipeline of spaCy that finds keywords; auto: an installed English one, else stop words.",
    )
    save_selection: Path | None = setting(
        None,
        "Draw the visual tokens that were kept over the picture, into this PNG file.",
        metavar="FILE",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if is_blank(self.query):
            raise InvalidRequest("the query is empty; ask something with --query")
        if self.as_json + self.jsonl + self.show_speculation > 1:
            raise InvalidRequest("--json, --jsonl and --show-speculation exclude each other")
        self.access.check(check_target(self.edge))
        self._check_visual()
        if self.mode is AskMode.DEVICE_ONLY and self.draft_model.partition(":")[0] == NGRAM:
            raise InvalidRequest(
                "--draft-model ngram repeats what is there and cannot answer alone: choose another one, or another "
                "--mode"
            )
        # Each refuses what its own parts exclude.
        self.make_sampling()
        self.make_tactics()
        self.make_selector()
        return self

    def _check_visual(self) -> None:
        if self.mode is AskMode.DEVICE_ONLY and self.activity is ActivitySource.TARGET:
            raise InvalidRequest(
                "--activity target is the edge's, and --mode device-only asks no edge: choose --activity draft"
            )
        if self.save_selection is not None:
            check_ending(self.save_selection)
            if self.image is None or self.mode is AskMode.EDGE_ONLY:
                raise InvalidRequest(
                    "--save-selection shows what the draft model sees of a picture: give --image, and another mode "
                    "than edge-only"
                )

    def make_sampling(self) -> Sampling:
        return Sampling(
            self.temperature,
            self.top_k,
            self.top_p,
            self.seed,
            self.max_new_tokens,
            self.ignore_stop,
        )

    def make_tactics(self) -> Tactics:
        names = (field.name for field in dataclasses.fields(Tactics))
        return Tactics(**{name: getattr(self, name) for name in names})

    def make_selector(self) -> Selector:
        """What chooses the visual tokens, C(12)-C(15)."""
        return make_selector(
            self.selector,
            self.visual_tokens,
            self.seed,
            query_weight=self.selection_lambda,
            num_candidates=self.selection_candidates,
            rank=self.selection_rank,
        )

    def make_view(self) -> ViewOptions:
        alone = self.mode is AskMode.DEVICE_ONLY
        default = ActivitySource.DRAFT if alone else ActivitySource.TARGET
        return ViewOptions(self.activity or default, self.activity_layers, self.keyword_pipeline)
