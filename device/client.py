"""`device-client`: asks about a picture, streams the answer to stdout and statistics to stderr."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..common.command import ClosedPipe, run, version_option
from ..common.errors import InvalidRequest
from ..common.maths.sampling import Sampling
from ..common.models.model import Model
from ..common.models.prompt import TextSide
from ..common.protocol.access import Access
from ..common.protocol.messages import Correction, Gate
from ..common.protocol.tls import Tls
from .access_options import ApiKey, CaCerts, Certfile, Insecure, Keyfile, WithTls
from .ask import AskMode, Question, ask
from .drafting.gate import GateRule
from .lengths.length import LengthName
from .notes import Notes
from .output import JsonOutput, SpeculationOutput, TextOutput, card, console
from .record.events import Emit
from .tactics import Tactics
from .visual.selection import SelectorName
from .visual.view import ActivitySource

_EPILOG = (
    "Exit codes: 0 answered · 2 bad flag or query · 3 bad picture · 4 too long · 5 draft model cannot be loaded · "
    "6 both ends do not match · 7 edge unreachable · 8 session failed · 9 edge has no room · 10 not authorised · "
    "130 interrupted. Every option can be set by environment: COVSPEC_EDGE=10.0.0.5:50051."
)

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"auto_envvar_prefix": "COVSPEC", "help_option_names": ["-h", "--help"]},
)
#: Environment variables are named once, in the epilog.
_option = partial(typer.Option, show_envvar=False)
_Q = Question(query="?")


class Color(Enum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@app.command(epilog=_EPILOG)
def command(
    query: Annotated[str, _option(help="The question.")],
    image: Annotated[Path | None, _option(help="JPEG, PNG, WebP, GIF, BMP or TIFF.")] = None,
    edge: Annotated[str, _option(metavar="HOST:PORT", help="Where the edge is.")] = _Q.edge,
    tls: WithTls = False,
    ssl_ca_certs: CaCerts = None,
    ssl_certfile: Certfile = None,
    ssl_keyfile: Keyfile = None,
    api_key: ApiKey = "",
    insecure: Insecure = False,
    mode: Annotated[
        AskMode, _option(help="Both together, the target alone, or the draft model alone.")
    ] = _Q.mode,
    json: Annotated[
        bool, _option("--json", help="One JSON object at the end instead of text.")
    ] = False,
    jsonl: Annotated[
        bool, _option("--jsonl", help="One JSON event a line instead of text.")
    ] = False,
    show_speculation: Annotated[
        bool,
        _option(
            "--show-speculation",
            help="Accepted green, rejected struck out in red, corrected yellow, bonus cyan; "
            "provisional dim, final without verification pink.",
        ),
    ] = False,
    max_new_tokens: Annotated[
        int, _option(help="Tokens to decode at most.")
    ] = _Q.sampling.max_new_tokens,
    temperature: Annotated[
        float, _option(help="0 is greedy; else 0.01 … 100.")
    ] = _Q.sampling.temperature,
    top_p: Annotated[
        float, _option(help="Keep the most probable tokens that have this probability.")
    ] = _Q.sampling.top_p,
    top_k: Annotated[
        int, _option(help="Keep so many of the most probable tokens; 0 keeps all.")
    ] = _Q.sampling.top_k,
    seed: Annotated[int, _option(help="The same seed gives the same answer.")] = _Q.sampling.seed,
    ignore_stop: Annotated[
        bool, _option("--ignore-stop", help="Decode past stop tokens, up to the cap.")
    ] = False,
    draft_model: Annotated[
        str, _option(help="Alias, local folder, hub id, or table:FILE.npz.")
    ] = _Q.draft_model,
    draft_length: Annotated[
        int, _option(help="Tokens to draft in a round (the first one's); 0 lets the edge decode.")
    ] = _Q.tactics.draft_length,
    length_policy: Annotated[
        LengthName,
        _option(
            help="fixed; ema: by acceptance and the cost of a rejection; plan: as the edge says; "
            "goodput: what promises most tokens a second."
        ),
    ] = _Q.tactics.length_policy,
    bandwidth_hz: Annotated[
        float, _option(help="The link's, for ema's cost of a rejection; 0: it is measured.")
    ] = _Q.tactics.bandwidth_hz,
    snr_db: Annotated[float, _option(help="The same link's SNR.")] = _Q.tactics.snr_db,
    gate: Annotated[
        Gate,
        _option(
            help="Confident draft tokens: verified like all (off), final without verification "
            "(committed: the paper's, lossy), or provisional until the next verdict (optimistic)."
        ),
    ] = _Q.tactics.gate,
    gate_rule: Annotated[
        GateRule,
        _option(
            help="What confidence is: a margin (CoVSpec), or agreement of other temperatures "
            "(uncertainty: U-HLM, with --gate committed)."
        ),
    ] = _Q.tactics.gate_rule,
    gate_threshold: Annotated[
        float,
        _option(
            help="Margin from which a token is confident, or uncertainty below which it is; 0 to 1."
        ),
    ] = _Q.tactics.gate_threshold,
    max_gated: Annotated[
        int, _option(help="Confident tokens that may pile up before verification.")
    ] = _Q.tactics.max_gated,
    branches: Annotated[
        int,
        _option(help="Branches to draft for the first outcome while a verdict travels; 0: none."),
    ] = _Q.tactics.branches,
    branch_decay: Annotated[
        float, _option(help="How many as many for each outcome further on, 0 to 1.")
    ] = _Q.tactics.branch_decay,
    correction: Annotated[
        Correction, _option(help="How a rejected token is replaced when sampling.")
    ] = _Q.correction,
    visual_tokens: Annotated[
        int, _option(help="Visual tokens that the draft model sees; 0: all.")
    ] = _Q.visual_tokens,
    selector: Annotated[
        SelectorName | None,
        _option(help="Which visual tokens those are; covspec when a number is given."),
    ] = None,
    selection_lambda: Annotated[
        float, _option(help="Weight of the query in a visual token's score; the rest is activity.")
    ] = _Q.selection_lambda,
    selection_candidates: Annotated[
        int, _option(help="Visual tokens to preselect; 0: three for each that is kept.")
    ] = _Q.selection_candidates,
    selection_rank: Annotated[
        int, _option(help="Rank of the preselected tokens; 0: half of those that are kept.")
    ] = _Q.selection_rank,
    activity: Annotated[
        ActivitySource | None,
        _option(help="Whose activity scores; target, or draft where there is none."),
    ] = None,
    activity_layers: Annotated[
        int, _option(help="Last layers that the activity is averaged over.")
    ] = _Q.activity_layers,
    keyword_pipeline: Annotated[
        str,
        _option(help="spaCy pipeline that finds keywords; auto: an English one, or stop words."),
    ] = _Q.keyword_pipeline,
    save_selection: Annotated[
        Path | None, _option(help="Draw the kept visual tokens over the picture: a PNG file.")
    ] = None,
    device: Annotated[
        str, _option(help="Where the draft model runs: cpu, cuda or mps.")
    ] = _Q.device,
    num_threads: Annotated[
        int, _option(help="CPU threads of the draft model; 0: all cores.")
    ] = _Q.num_threads,
    timeout_s: Annotated[
        float, _option(help="Longest wait for any one answer of the edge.")
    ] = _Q.timeout_s,
    reconnect_s: Annotated[
        float,
        _option(help="How long to try to get back to an edge that was lost; 0: not at all."),
    ] = _Q.reconnect_s,
    color: Annotated[Color, _option(help="auto heeds pipes and NO_COLOR.")] = Color.AUTO,
    version: Annotated[bool, version_option("device-client")] = False,
) -> None:
    """Ask a large vision-language model at the edge; a small one here drafts the answer."""
    notes = Notes()
    logging.basicConfig(level=logging.WARNING, handlers=[notes])
    if json + jsonl + show_speculation > 1:
        raise InvalidRequest("--json, --jsonl and --show-speculation exclude each other")
    identity = Tls.given(ssl_certfile, ssl_keyfile, ssl_ca_certs, wanted=tls)
    question = Question(
        query=query,
        image=image,
        sampling=Sampling(temperature, top_k, top_p, seed, max_new_tokens, ignore_stop),
        edge=edge,
        access=Access(identity, api_key, insecure),
        mode=mode,
        draft_model=draft_model,
        tactics=Tactics(
            draft_length=draft_length,
            length_policy=length_policy,
            bandwidth_hz=bandwidth_hz,
            snr_db=snr_db,
            gate=gate,
            gate_rule=gate_rule,
            gate_threshold=gate_threshold,
            max_gated=max_gated,
            branches=branches,
            branch_decay=branch_decay,
        ),
        correction=correction,
        selector=selector,
        visual_tokens=visual_tokens,
        selection_lambda=selection_lambda,
        selection_candidates=selection_candidates,
        selection_rank=selection_rank,
        activity=activity,
        activity_layers=activity_layers,
        keyword_pipeline=keyword_pipeline,
        save_selection=save_selection,
        device=device,
        num_threads=num_threads,
        timeout_s=timeout_s,
        reconnect_s=reconnect_s,
    )

    def make_output(speaker: Model | TextSide) -> Emit:
        if json or jsonl:
            return JsonOutput(only_done=json)
        text: SpeculationOutput | TextOutput = TextOutput()
        if show_speculation:
            out = console(color.value, stderr=False)
            text = SpeculationOutput(out, speaker.tokenizer, speaker.stop_ids)
        notes.end_line = text.end_line
        ending.callback(text.end_line)
        return text

    try:
        with ExitStack() as ending:
            done = ask(question, make_output)
        if not (json or jsonl):
            console(color.value, stderr=True).print(card(done))
    except BrokenPipeError as error:
        raise ClosedPipe from error


def main() -> None:
    """The `device-client` command."""
    sys.exit(run(app))


if __name__ == "__main__":
    main()
