"""What a selector is shown of a picture: scores and embeddings from the draft model, the query and the target."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ...common.errors import InvalidRequest
from ..drafting.drafter import Drafter
from ..request import Request
from .keywords import AUTO, load_keywords
from .query_score import keyword_embeddings, on_host, query_score
from .selection import ACTIVITY_LAYERS, Selector, VisualContext

MAX_ACTIVITY_LAYERS = 64


class ActivitySource(Enum):
    """Whose layers the activity scores come from, C(11): the paper's target, or the draft, which needs no edge."""

    TARGET = "target"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """activity_layers: K of C(11). keyword_pipeline: `auto`, or the name of a spaCy pipeline."""

    activity: ActivitySource = ActivitySource.TARGET
    activity_layers: int = ACTIVITY_LAYERS
    keyword_pipeline: str = AUTO

    def __post_init__(self) -> None:
        if not 1 <= self.activity_layers <= MAX_ACTIVITY_LAYERS:
            raise InvalidRequest(
                f"--activity-layers must be between 1 and {MAX_ACTIVITY_LAYERS}, not {self.activity_layers}"
            )

    def target_layers(self, selector: Selector) -> int:
        """Layers whose activity the target is asked for; 0: none."""
        wanted = selector.needs_activity and self.activity is ActivitySource.TARGET
        return self.activity_layers if wanted else 0


#: What the paper says: the target's activity.
PAPER = ViewOptions()


def look(
    drafter: Drafter, request: Request, selector: Selector, options: ViewOptions
) -> VisualContext:
    """What the selector asks for and the device knows on its own, after the draft model has seen the picture.

    The target's activity scores come later. A full prefill of the draft takes their place where they are its own.
    """
    visual = drafter.visual
    if visual is None:
        return VisualContext(0)
    activity = query = embeds = None
    if selector.needs_embeddings:
        embeds = on_host(visual.embeds)
        keywords = load_keywords(options.keyword_pipeline).find(request.query)
        query = query_score(embeds, keyword_embeddings(drafter.model, request.query, keywords))
    if selector.needs_activity and options.activity is ActivitySource.DRAFT:
        activity = drafter.activity(request.prompt, options.activity_layers)
    return VisualContext(visual.num_tokens, activity, query, embeds)
