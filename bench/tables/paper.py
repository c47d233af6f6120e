"""CoVSpec's Tables I and II as printed: 50 examples each, 1024 tokens an answer, 5 MHz, 10 dB. MB for one example."""

from __future__ import annotations

from dataclasses import dataclass

#: Our three families of questions stand in for the paper's datasets.
DATASETS = {"open": "VQAv2", "description": "MMMU", "choice": "MMBench"}
REAL_DATASETS = {"vqav2": "VQAv2", "mmmu": "MMMU", "mmbench": "MMBench"}


@dataclass(frozen=True, slots=True)
class PaperRow:
    """Spd., Acc. in percent, Comm. in MB, Cost Red. in percent; None where the paper has a dash."""

    spd: float | None
    acc: float | None
    comm_mb: float | None = None
    cost_red: float | None = None


TABLE_1: dict[str, dict[str, PaperRow]] = {
    "VQAv2": {
        "edge-only": PaperRow(1.00, 74.70, None, 0.0),
        "device-only": PaperRow(3.41, 56.20),
        "vanilla-sd": PaperRow(0.54, 74.70, 568.09, -7.32),
        "u-hlm": PaperRow(1.13, 72.60, 155.27, 5.06),
        "covspec": PaperRow(2.21, 74.40, 16.49, 29.75),
    },
    "MMMU": {
        "edge-only": PaperRow(1.00, 58.30, None, 0.0),
        "device-only": PaperRow(3.44, 40.00),
        "vanilla-sd": PaperRow(0.54, 58.30, 599.23, -10.39),
        "u-hlm": PaperRow(0.85, 39.60, 248.51, 7.85),
        "covspec": PaperRow(1.63, 52.17, 21.23, 15.30),
    },
    "MMBench": {
        "edge-only": PaperRow(1.00, 88.00, None, 0.0),
        "device-only": PaperRow(3.75, 72.00),
        "vanilla-sd": PaperRow(0.48, 88.00, 534.51, -9.74),
        "u-hlm": PaperRow(0.87, 82.00, 181.09, 7.39),
        "covspec": PaperRow(1.85, 90.00, 18.30, 22.57),
    },
}

#: On VQAv2.
TABLE_2: dict[str, PaperRow] = {
    "full-token drafting": PaperRow(1.64, 68.16, 14.32, 34.81),
    "random-token selection": PaperRow(1.71, 58.57, 13.59, 34.65),
    "w/o margin gating": PaperRow(1.73, 74.70, 15.63, -6.90),
    "w/o adaptive drafting": PaperRow(2.14, 71.88, 16.94, 30.28),
    "w/o parallel branching": PaperRow(2.07, 74.40, 16.49, 29.75),
    "w/o decoupled correction": PaperRow(1.98, 74.40, 82.68, 29.75),
    "covspec": PaperRow(2.21, 74.40, 16.49, 29.75),
}
#: Vis. Red., Tok. Sel., M-Gate, Len. Adapt., Branch, DVC.
COMPONENTS = ("Vis. Red.", "Tok. Sel.", "M-Gate", "Len. Adapt.", "Branch", "DVC")
ENABLED: dict[str, str] = {
    "full-token drafting": "––✓✓✓✓",
    "random-token selection": "✓–✓✓✓✓",
    "w/o margin gating": "✓✓–✓✓✓",
    "w/o adaptive drafting": "✓✓✓–✓✓",
    "w/o parallel branching": "✓✓✓✓–✓",
    "w/o decoupled correction": "✓✓✓✓✓–",
    "covspec": "✓✓✓✓✓✓",
}
