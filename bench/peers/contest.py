"""Everyone who can be asked about one suite: each question is asked of every contender in turn, many times over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from rich.console import Console

from ..progress import track
from .figures import decode_tokens_per_s
from .process import OPEN_TIMEOUT_S, PeerFailed, PeerProcess
from .programs.lines import Answer, Contender, Crowd, Opening, Question

_TUNING_REPETITIONS = 2
#: Clients that one measurement's seconds are enough for; more of them take longer to have all begun.
_CLIENTS = 32
#: Answers by repetition and question.
Answers = list[list[Answer]]


@dataclass(frozen=True, slots=True)
class Side:
    """One contender of one program. title: of the program."""

    title: str
    contender: Contender
    process: PeerProcess

    @property
    def name(self) -> str:
        return f"{self.title}, {self.contender.group or self.contender.name}"

    def ask(self, question: Question) -> Answer:
        """Raises PeerFailed."""
        request = {"ask": asdict(question), "contender": self.contender.name}
        return Answer(**self.process.request(request))

    def crowd(self, questions: Sequence[Question], clients: int, seconds: float) -> Crowd:
        """Raises PeerFailed."""
        request = {
            "crowd": [asdict(question) for question in questions],
            "contender": self.contender.name,
            "clients": clients,
            "seconds": seconds,
        }
        return Crowd(**self.process.request(request, 10 * seconds + 300))


class Contest:
    """The programs of one suite, from their start to their end. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self.sides: list[Side] = []
        self.versions: dict[str, str] = {}
        #: Who could not be measured, and why.
        self.missing: dict[str, str] = {}
        self._console = console
        self._stack = ExitStack()

    def add(self, title: str, process: PeerProcess, opening: Opening) -> None:
        """Opens a program. One that fails is missing, with its reason."""
        self._stack.enter_context(process)
        self._console.print(f"opening {title} …")
        try:
            reply = process.request({"open": asdict(opening)}, OPEN_TIMEOUT_S)
        except PeerFailed as error:
            self.missing[title] = str(error)
            return
        self.versions |= reply["versions"]
        self.sides += [Side(title, Contender(**each), process) for each in reply["contenders"]]

    def tune(self, questions: Sequence[Question]) -> None:
        """Keeps of each group of settings the one that decodes fastest on these questions."""
        groups: dict[tuple[str, str], list[Side]] = {}
        for side in self.sides:
            if side.contender.group:
                groups.setdefault((side.title, side.contender.group), []).append(side)
        for (title, group), sides in groups.items():
            answers = self.ask(sides, questions, _TUNING_REPETITIONS, f"tuning {title}, {group}")
            if not answers:
                continue
            best = max(answers, key=lambda side: decode_tokens_per_s(sum(answers[side], [])))
            self.sides = [side for side in self.sides if side is best or side not in sides]

    def ask(
        self, sides: Sequence[Side], questions: Sequence[Question], repetitions: int, what: str
    ) -> Mapping[Side, Answers]:
        """Who fails is left out from there on. The first question is asked of all once more before, and not counted."""
        answers: dict[Side, Answers] = {side: [] for side in sides}

        def ask(side: Side, question: Question) -> Answer | None:
            try:
                return side.ask(question)
            except PeerFailed as error:
                self.missing[side.name] = str(error)
                self.sides = [each for each in self.sides if each is not side]
                del answers[side]
                return None

        for side in sides:
            ask(side, questions[0])
        for repetition in track(range(repetitions), what, console=self._console):
            for each in answers.values():
                each.append([])
            for number, question in enumerate(questions):
                turn = list(answers)
                # Nobody always comes behind the same neighbour.
                at = (number + repetition) % max(1, len(turn))
                for side in turn[at:] + turn[:at]:
                    answer = ask(side, question)
                    if answer is not None:
                        answers[side][-1].append(answer)
        return answers

    def crowds(
        self, sizes: Sequence[int], questions: Sequence[Question], seconds: float, repetitions: int
    ) -> dict[Side, dict[int, list[Crowd]]]:
        """So many clients, of each contender in turn, and that so many times over.

        seconds: of a crowd of one; larger ones take longer, up to three times as long with 64.
        """
        sides = [side for side in self.sides if side.contender.crowds]
        found: dict[Side, dict[int, list[Crowd]]] = {
            side: {size: [] for size in sizes} for side in sides
        }
        turns = [(size, side) for size in sizes for _ in range(repetitions) for side in sides]
        for size, side in track(turns, "crowds", console=self._console):
            try:
                found[side][size].append(
                    side.crowd(questions, size, seconds * (1 + size / _CLIENTS))
                )
            except PeerFailed as error:
                self.missing[f"{side.name}, {size} clients"] = str(error)
        return found

    def __enter__(self) -> Contest:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
