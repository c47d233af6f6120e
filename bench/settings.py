"""The flags that every benchmark has, and those of commands that measure or show single things."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ..common.errors import InvalidRequest
from ..common.maths.sampling import MAX_TEMPERATURE
from ..common.models.ngram import full_name
from ..common.models.zoo import DEVICES, DTYPES, QUANTIZATIONS
from ..common.protocol.limits import MAX_DRAFT_LENGTH
from ..common.settings import Settings, setting

#: Threads of a model on a CPU.
THREADS: dict[str, Any] = {"ge": 0, "le": 1024}
SEEDS: dict[str, Any] = {"ge": 0, "le": (1 << 63) - 1}


class JsonSettings(Settings):
    """A command whose result can be printed for programs."""

    as_json: bool = setting(False, "Print one JSON object as the last line.", name="json")


class BenchSettings(JsonSettings):
    """What every benchmark is asked."""

    quick: bool = setting(False, "Measure less of the same, in under a minute.")
    result_dir: Path = setting(
        Path("results"), "Folder for the JSON object, plots and tables.", metavar="FOLDER"
    )


class VerifySettings(BenchSettings):
    model: str = setting("scenes-target", "Target model: short name or folder.")
    quantization: str = setting("none", "Form of the target's weights.", choices=QUANTIZATIONS)
    num_threads: int = setting(
        0, "CPU threads of the target; 0: as many as an edge takes.", **THREADS
    )


class Int8Settings(BenchSettings):
    model: str = setting("scenes-target", "Target model: short name or folder.")
    num_threads: int = setting(1, "CPU threads of the target.", ge=1, le=1024)


class DecodeSettings(BenchSettings):
    quantization: str = setting("auto", "Form of the target's weights.", choices=QUANTIZATIONS)


class PairSettings(BenchSettings):
    models: Path | None = setting(
        None, "Folder with target/ and draft/; by default the embedded pair.", metavar="FOLDER"
    )


class LoadBenchSettings(BenchSettings):
    only: Literal["crowd", "embedded", "paused", "failures", "killed"] | None = setting(
        None, "Run this part alone.", metavar="PART"
    )


class SoakSettings(BenchSettings):
    minutes: float = setting(30.0, "Minutes to run.", gt=0, le=1440)
    model: str = setting(
        "table:target-512", "Target: table:target-V, or scenes for the embedded one with pictures."
    )


class TraceSettings(BenchSettings):
    out: Path | None = setting(
        None, "File for the recording; by default trace.npz in --result-dir.", metavar="FILE"
    )
    num_prompts: int = setting(96, "Questions, of three families in turn.", ge=1, le=100_000)
    target: str = setting("scenes-target", "Target model: short name or folder.")
    draft: str = setting("scenes-draft", "Draft model: short name or folder.")
    quantization: str = setting("auto", "Form of the target's weights.", choices=QUANTIZATIONS)


class PlansSettings(BenchSettings):
    draws: int = setting(6, "Draws of devices and channels.", ge=1, le=1000)
    seconds: float = setting(20.0, "Seconds of each draw, for each solver.", gt=0, le=3600)


class MultiSpinSettings(BenchSettings):
    calibrate: bool = setting(False, "Find drafting and verify times again, print them, and end.")


class PeersSettings(BenchSettings):
    """What is measured beside ours. --quick measures ours alone, and says which peers are not installed."""

    install: bool = setting(
        False, "Install from PyPI what is not installed yet of the peers, some GB.", group="Peers"
    )
    environments: Path = setting(
        Path("build/peers"), "Folder of the peers' environments.", metavar="FOLDER"
    )
    peer: tuple[str, ...] = setting(
        (), "Peer to measure; all of them without this flag. Repeatable.", metavar="NAME"
    )
    suite: tuple[str, ...] = setting(
        (), "Suite: pictures, text. Repeatable.", group="Questions", metavar="NAME"
    )
    questions: int = setting(12, "Questions of each suite.", ge=1, le=1000)
    repetitions: int = setting(5, "Times that every question is asked.", ge=1, le=1000)
    crowd_s: float = setting(
        6.0,
        "Seconds of a crowd of one, up to three times as many of larger ones; 0: no crowds.",
        ge=0,
        le=3600,
    )
    quantization: str = setting("none", "Form of our target's weights.", choices=QUANTIZATIONS)


class ReproductionSettings(Settings):
    document: Path = setting(
        Path("docs/reproduction.md"), "Document whose marked places are filled.", metavar="FILE"
    )
    results: Path = setting(
        Path("docs/results"), "Folder of the tables to fill in.", metavar="FOLDER"
    )


class DemoSettings(Settings):
    sample: int = setting(0, "Sample picture to ask about.", ge=0, le=99)
    image: Path | None = setting(None, "A picture of yours instead.", metavar="FILE")
    query: str | None = setting(None, "A question of yours instead.")
    model: str = setting("scenes-target", "Target model of the edge.")
    draft_model: str = setting("scenes-draft", "Draft model of the device.")


class TrainSettings(Settings):
    out: Path = setting(
        Path("scenes-pair"), "Folder for weights and checkpoints.", metavar="FOLDER"
    )
    seed: int = setting(0, "Seed of the weights and of the training scenes.", ge=0, le=1 << 20)
    only: Literal["target", "draft", "draft-small"] | None = setting(
        None, "Train this model alone."
    )
    draft_for: Path | None = setting(
        None, "Folder of a target: train a draft for it, with its tokenizer.", metavar="FOLDER"
    )
    threads: int = setting(0, "CPU threads; 0: as many as PyTorch takes.", **THREADS)
    resume: bool = setting(True, "Go on from the checkpoints in --out.")
    quick: bool = setting(False, "Take a few steps of each stage, to try the command.")


class TextSettings(BenchSettings):
    pair: str = setting("smollm2-135m,ngram", "Target and draft model.", metavar="TARGET,DRAFT")
    task: tuple[str, ...] = setting(
        (), "Task: mbpp, gsm8k, mtbench, squad; all by default. Repeatable.", metavar="NAME"
    )
    data: Path | None = setting(
        None, "Folder with the published files; by default ten prompts of ours.", metavar="FOLDER"
    )
    examples: int = setting(0, "Prompts of each task; 0: all.", ge=0, le=1_000_000)
    max_new_tokens: int = setting(96, "Longest answer, tokens.", ge=1, le=1 << 20)
    draft_length: int = setting(8, "Tokens of a draft.", ge=1, le=MAX_DRAFT_LENGTH)
    seed: int = setting(0, "Seed of prompts and sampling.", **SEEDS)
    quantization: str = setting("none", "Form of the target's weights.", choices=QUANTIZATIONS)

    @property
    def models(self) -> tuple[str, str]:
        """Names of target and draft. Raises InvalidRequest for a pair that is none."""
        target, _, draft = self.pair.partition(",")
        if not (target and draft):
            raise InvalidRequest(f"--pair must be TARGET,DRAFT, not {self.pair!r}")
        return target, full_name(draft, target)


class TasksSettings(TextSettings):
    run_code: bool = setting(
        False,
        "Run the Python code of answers to mbpp, in a process with bounds, so that they are scored.",
    )


class AcceptRatesSettings(TextSettings):
    temperature: float = setting(1.0, "Temperature; 0 is greedy.", ge=0, le=MAX_TEMPERATURE)
    threads: int = setting(1, "CPU threads of the models.", ge=1, le=1024)


class TrainDraftSettings(Settings):
    target: str = setting("smollm2-135m", "Text model to distil from: short name, folder or file.")
    out: Path = setting(
        Path("draft"), "Folder for answers, checkpoint and the draft.", metavar="FOLDER"
    )
    seed: int = setting(0, "Seed of the questions and of the training.", ge=0, le=1 << 20)
    answers: int = setting(
        4096, "Answers of the target to learn from.", group="Answers", ge=8, le=1 << 24
    )
    rows: int = setting(64, "Answers that are made at the same time.", ge=1, le=4096)
    dtype: str = setting("auto", "Floating-point type of the target meanwhile.", choices=DTYPES)
    layers: int = setting(4, "Layers of the draft.", group="Draft", ge=1, le=128)
    head: int = setting(6144, "Ids that the draft can say.", ge=2, le=1 << 20)
    steps: int = setting(6000, "Steps of the training.", group="Training", ge=1, le=1 << 24)
    batch: int = setting(8, "Answers of a step.", ge=1, le=4096)
    rate: float = setting(1e-3, "Learning rate at its highest.", gt=0, le=1)
    threads: int = setting(0, "CPU threads; 0: as many as PyTorch takes.", **THREADS)
    quick: bool = setting(False, "Take a few steps of everything, to try the command.")


class TableSettings(BenchSettings):
    examples: int = setting(50, "Questions of each suite.", group="Questions", ge=1, le=1_000_000)
    suite: tuple[str, ...] = setting(
        (),
        "Suite: open, description, choice; or vqav2, mmmu, mmbench with --data. Repeatable.",
        metavar="NAME",
    )
    data: Path | None = setting(
        None, "Folder with a published benchmark's files.", metavar="FOLDER"
    )
    seed: int = setting(0, "Seed of questions and sampling.", ge=0, le=80)
    max_new_tokens: int = setting(96, "Longest answer, tokens.", ge=1, le=1 << 20)
    virtual: bool = setting(
        False, "Tell time by a virtual clock that replays medians of measured step times."
    )

    bandwidth_hz: float = setting(5e6, "Bandwidth of the link, Hz.", group="Link", ge=1, le=1e12)
    snr_db: float = setting(10.0, "SNR of the link, dB.", ge=-60, le=100)
    rtt_ms: float = setting(0.0, "Round trip of the link, ms.", ge=0, le=60_000)

    target: str = setting("scenes-target", "Target model of the edge.", group="Models")
    draft: str = setting("scenes-draft", "Draft model of the device.")
    quantization: str = setting("auto", "Form of the target's weights.", choices=QUANTIZATIONS)
    device: str = setting("cpu", "Device that the draft model runs on.", choices=DEVICES)
    edge: str = setting(
        "", "Address of an edge that already serves the target.", metavar="HOST:PORT"
    )


class Table1Settings(TableSettings):
    calibrate: int = setting(
        24, "Other questions, which set U-HLM's threshold.", group="U-HLM", ge=1, le=100_000
    )
    risk: float = setting(
        0.05, "Probability of a rejection up to which U-HLM skips verification.", ge=0, le=1
    )


class SweepSettings(BenchSettings):
    examples: int = setting(9, "Questions at each point.", ge=1, le=100_000)
    seed: int = setting(0, "Seed of questions and sampling.", ge=0, le=80)
