"""The recipe of the embedded pair: the stages in which `covspec train-pair` trains each network."""

from dataclasses import dataclass, replace

ROLES = ("target", "draft", "draft-small")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of training.

    muon_lr is the rate of the matrices and adam_lr that of all else; vision_factor multiplies both for the tower and
    the projector. They are constant up to decay_from (a fraction of the steps) and then fall along a line to last_rate
    times their value. batch counts scenes, turns the questions per scene (0: heads alone), and extra_choices the
    multiple-choice questions on top of them. final_weight weighs the tokens of a conclusion, mark_weight those that
    mark a cell or do not, and spot_weight the heads that name what a visual token itself shows. Of each picture the
    language model is shown a share of the visual tokens, drawn between the two numbers of kept, evenly on a
    logarithmic scale.
    """

    name: str
    steps: int
    muon_lr: float
    adam_lr: float
    vision_factor: float
    batch: int = 8
    turns: int = 3
    extra_choices: int = 1
    final_weight: float = 4.0
    decay_from: float = 0.0
    last_rate: float = 0.0
    mark_weight: float = 1.0
    spot_weight: float = 1.0
    kept: tuple[float, float] = (1.0, 1.0)


_VISION = Stage("vision", 600, 0.02, 2.5e-3, 1.0, batch=32, turns=0)
#: Shares of the visual tokens that a draft learns to do with: a wide range, none of them the one that tables use.
_KEPT = (0.05, 1.0)
#: Every token learns to tell of all cells, in the end of nothing else, so that few tokens are enough.
_DRAFT = (
    replace(_VISION, steps=800, batch=16, decay_from=1.0),
    replace(
        _VISION,
        name="spread",
        steps=1500,
        batch=16,
        spot_weight=0.0,
        decay_from=0.3,
        last_rate=0.05,
    ),
    Stage(
        "language",
        2000,
        0.01,
        2e-3,
        0.1,
        final_weight=12.0,
        decay_from=0.4,
        last_rate=0.05,
        kept=_KEPT,
        spot_weight=0.0,
    ),
    Stage(
        "conclude",
        900,
        0.008,
        1.6e-3,
        0.0,
        final_weight=12.0,
        mark_weight=12.0,
        decay_from=0.2,
        last_rate=0.03,
        kept=_KEPT,
        spot_weight=0.0,
    ),
)

RECIPE: dict[str, tuple[Stage, ...]] = {
    "target": (
        _VISION,
        Stage(
            "language",
            686,
            0.01,
            2e-3,
            0.2,
            turns=4,
            extra_choices=0,
            decay_from=0.350,
            last_rate=0.535,
        ),
        Stage(
            "refine",
            1057,
            0.008,
            1.5e-3,
            0.2,
            turns=4,
            extra_choices=0,
            decay_from=0.454,
            last_rate=0.199,
        ),
        Stage("choice", 452, 0.01, 2e-3, 0.1, extra_choices=2, decay_from=0.664, last_rate=0.493),
        Stage("settle", 800, 0.006, 1e-3, 0.1, decay_from=0.3),
        Stage("finish", 450, 0.006, 1e-3, 0.1, decay_from=0.2),
    ),
    "draft": _DRAFT,
    "draft-small": _DRAFT,
}


def quick_recipe() -> dict[str, tuple[Stage, ...]]:
    """Returns the recipe cut down to a few steps, enough to run every line of it."""
    return {
        role: tuple(replace(stage, steps=3, batch=2) for stage in stages)
        for role, stages in RECIPE.items()
    }
