"""The `covspec` command. A subcommand's module is imported when it is called: `--help` loads no torch.

A subcommand is a function named `command`, made by `flags_of`, or a typer application named `app`; the names of modules
are relative to this package.
"""

import importlib
import sys
from typing import Annotated, Any

import typer
from typer.main import get_command

from ..common.command import run
from ..common.flags import PLAIN, FlagsCommand, FlagsGroup, version_option

# name: (module, one line of help)
COMMANDS = {
    "demo": ("demo", "Start an edge, ask it about a picture, and show what speculation saved."),
    "link": (
        "link.command",
        "A wireless link in user space between a device and an edge, for experiments.",
    ),
    "loadtest": ("load.loadtest", "Load an edge with many simulated devices."),
    "plan": (".edge.plan_command", "Plan draft lengths and bandwidth of a round from a scenario."),
    "simulate": ("sim.simulate", "Devices and edges on a virtual clock: plan capacity."),
    "models": ("models", "List the models that have a short name, and which are on this machine."),
    "train-draft": (
        "distill.command",
        "Distil a draft from a text model's own answers: a few layers, seeded, resumable.",
    ),
    "train-pair": ("scenes.command", "Train the embedded model pair again, from its seed."),
}
BENCHES = {
    "accept-rates": (
        "parts.accept_rates",
        "How often drafts are accepted, by kind of text: Multi-SPIN's Table I, measured.",
    ),
    "decode": ("parts.decode", "Speculation against the target alone, one client, loopback."),
    "device": (
        "parts.device",
        "The device's parts: selection, draft step, selectors, gate and branches.",
    ),
    "int8": (
        "parts.int8",
        "INT8 against float32: agreement, answers, and invariance to batch mates.",
    ),
    "loadtest": ("load.bench", "The load tester and an edge, held to what they promise."),
    "multispin": (
        "multispin.command",
        "Multi-SPIN's figures, by its model and through the real server.",
    ),
    "pair": (
        "scenes.pair",
        "The embedded pair: how often it is right, and how often both models agree.",
    ),
    "peers": (
        "peers.command",
        "Other programs beside ours: Transformers, llama.cpp, vLLM, remote drafters.",
    ),
    "plans": (
        "multispin.plans",
        "Plans served end to end to 20 devices: exact against fixed, in real time.",
    ),
    "scheduler": (
        "multispin.scheduler",
        "The planner: exact against brute force, all solvers, solve times.",
    ),
    "selection": ("parts.selection", "How long it takes to choose visual tokens on one thread."),
    "simulate": ("sim.bench", "Simulated against measured loads, and how large one may be."),
    "soak": ("load.soak", "Clients that come, go, cancel and get killed, for half an hour."),
    "startup": ("parts.startup", "How long a user waits for an edge, an answer, the whole demo."),
    "trace": ("load.trace", "Record what the embedded pair says, for simulated devices to play."),
    "sweep": (
        "tables.sweep",
        "covspec-exact against edge-only over SNR, bandwidth and draft length.",
    ),
    "tasks": (
        "parts.tasks",
        "Speculation on a text model against the target alone, by kind of text.",
    ),
    "table1": ("tables.table1", "CoVSpec's Table I: baselines and systems on three suites."),
    "table2": ("tables.table2", "CoVSpec's Table II: what each of its components gives."),
    "reproduction": ("tables.reproduction", "Put the tables' results into docs/reproduction.md."),
    "verify": (
        "parts.verify",
        "The engine under load: verify times, batching gain, a newcomer's prefill.",
    ),
    "wire": (
        "parts.wire",
        "A round without its model: latency of one client, rounds a second of 64.",
    ),
}


class _Lazy(FlagsGroup):
    """Its commands are names and summaries until one is called or completed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        module = getattr(getattr(found, "callback", None), "module", None)
        return name, found if module is None else _load(module), rest


def _load(module: str) -> Any:
    """The command of a module: its `app`, or its function `command`."""
    found = importlib.import_module(f".{module}", __package__)
    single: typer.Typer | None = getattr(found, "app", None)
    if single is None:
        single = typer.Typer(**PLAIN, add_completion=False)
        single.command(cls=FlagsCommand)(found.command)
    return get_command(single)


app = typer.Typer(name="covspec", cls=_Lazy, **PLAIN)
bench = typer.Typer(cls=_Lazy, **PLAIN)
app.add_typer(bench, name="bench")


@app.callback(invoke_without_command=True)
def _covspec(
    context: typer.Context, version: Annotated[bool, version_option("covspec")] = False
) -> None:
    """Device-edge co-inference for vision-language models: train, measure, demonstrate."""
    _help_unless_told(context)


@bench.callback(invoke_without_command=True)
def _bench(context: typer.Context) -> None:
    """Measure; each benchmark writes its results to --result-dir."""
    _help_unless_told(context)


def _help_unless_told(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


def _register(group: typer.Typer, name: str, module: str, summary: str) -> None:
    def stub() -> None: ...

    vars(stub)["module"] = module
    group.command(name, help=summary)(stub)


for _name, (_module, _summary) in COMMANDS.items():
    _register(app, _name, _module, _summary)
for _name, (_module, _summary) in BENCHES.items():
    _register(bench, _name, _module, _summary)


def main() -> None:
    sys.exit(run(app, "edge,device,bench"))


if __name__ == "__main__":
    main()
