"""`device-client`: asks about a picture, streams the answer to stdout and statistics to stderr."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack

from ..common.command import ClosedPipe, run
from ..common.flags import command_line, flags_of
from ..common.models.model import Model
from ..common.models.prompt import TextSide
from .ask import ask
from .notes import Notes
from .output import JsonOutput, SpeculationOutput, TextOutput, card, console
from .record.events import Emit
from .settings import ClientSettings


@flags_of(ClientSettings)
def command(settings: ClientSettings) -> None:
    """Ask a large vision-language model at the edge; a small one on this device drafts the answer."""
    notes = Notes()
    logging.basicConfig(level=logging.WARNING, handlers=[notes])
    as_json = settings.as_json or settings.jsonl

    def make_output(speaker: Model | TextSide) -> Emit:
        if as_json:
            return JsonOutput(only_done=settings.as_json)
        text: SpeculationOutput | TextOutput = TextOutput()
        if settings.show_speculation:
            out = console(settings.color, stderr=False)
            text = SpeculationOutput(out, speaker.tokenizer, speaker.stop_ids)
        notes.end_line = text.end_line
        ending.callback(text.end_line)
        return text

    try:
        with ExitStack() as ending:
            done = ask(settings, make_output)
        if not as_json:
            console(settings.color, stderr=True).print(card(done))
    except BrokenPipeError as error:
        raise ClosedPipe from error


app = command_line(
    command,
    "device-client",
    epilog="Exit codes: 0 answered, 2 a wrong flag or query, 3 a bad picture, 4 too long, 5 the draft model cannot be "
    "loaded, 6 both ends do not match, 7 the edge cannot be reached, 8 the session failed, 9 the edge has no room, "
    "10 not authorised, 130 interrupted. Every flag has an environment variable: COVSPEC_EDGE=10.0.0.5:50051.",
)


def main() -> None:
    sys.exit(run(app, "device"))


if __name__ == "__main__":
    main()
