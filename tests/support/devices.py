"""A real device in the test's own event loop."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from covspec.common.clock import MonotonicClock
from covspec.common.maths.sampling import Sampling
from covspec.common.models.model import Model
from covspec.common.models.prompt import Prompt
from covspec.device.alone import edge_only
from covspec.device.branching.branch import Branching
from covspec.device.drafting.corrections import make_corrector
from covspec.device.drafting.drafter import Drafter
from covspec.device.drafting.gate import NoGate
from covspec.device.lengths.length import FixedLength, LengthPolicy
from covspec.device.line.edge_link import EdgeLink
from covspec.device.line.lifeline import RECONNECT_S
from covspec.device.method import Method
from covspec.device.record.events import Done, Event
from covspec.device.record.meters import Meters
from covspec.device.request import Request
from covspec.device.session import Session
from covspec.device.tactics import Tactics
from covspec.device.visual.selection import KeepAll, Selector
from covspec.device.visual.view import PAPER, ViewOptions

PROMPT = Prompt((1, 2, 3))


def request(**fields: Any) -> Request:
    """A request; sampling parameters may be given by name."""
    names = Sampling.__dataclass_fields__
    sampling = Sampling(**{"max_new_tokens": 40, **{k: v for k, v in fields.items() if k in names}})
    rest: dict[str, Any] = {k: v for k, v in fields.items() if k not in names}
    return Request(**{"prompt": PROMPT, "sampling": sampling, **rest})


async def speculate(
    target: str,
    draft: Model,
    asked: Request,
    *,
    length: int | LengthPolicy = 4,
    tactics: Tactics | None = None,
    selector: Selector | None = None,
    view: ViewOptions = PAPER,
    timeout_s: float = 10.0,
    reconnect_s: float = RECONNECT_S,
    events: list[Event] | None = None,
) -> Done:
    """One speculative session with the edge at `target`. tactics: in place of `length`."""
    if tactics is not None:
        length = tactics.make_length(asked, draft.vocab_size)
    with ThreadPoolExecutor(1) as executor:
        async with EdgeLink(target, timeout_s=timeout_s) as link:
            session = Session(
                asked,
                Drafter(draft, make_corrector(asked.correction, asked.sampling)),
                link,
                Method(
                    FixedLength(length) if isinstance(length, int) else length,
                    selector or KeepAll(),
                    view,
                    NoGate() if tactics is None else tactics.make_gate(),
                    Branching() if tactics is None else tactics.branching,
                ),
                Meters(MonotonicClock(), (events if events is not None else list[Event]()).append),
                executor=executor,
                reconnect_s=reconnect_s,
            )
            return await session.run()


async def decode_at_edge(target: str, model: Model, asked: Request) -> Done:
    """One edge-only session with the edge at `target`."""
    async with EdgeLink(target, timeout_s=10.0) as link:
        return await edge_only(
            asked, model.tokenizer, link, Meters(MonotonicClock(), lambda event: None)
        )
