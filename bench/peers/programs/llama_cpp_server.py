"""llama.cpp's server, by the package xllamacpp: the language models of the pair as GGUF files, text prompts.

The server's threads have the server's core; requests are made inside the process, without HTTP, by threads on the
client's core. Prompts are not cached. What speculation may be tuned in: the number of drafted tokens, and the
probability below which drafting stops.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import xllamacpp

from .gguf_export import FORMS, export
from .lines import Answer, Contender, Crowd, Opening, Program, Question, Window, serve, split

#: The server's own defaults: tokens of a draft, and the least probability of one.
DEFAULT = 3, 0.0
GRID = [(k, p) for p in (0.0, 0.5, 0.8) for k in (2, 4, 8, 16)]
#: Forms that serve crowds.
_CROWDS = ("f32", "q8_0")
_SPECULATIVE = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE


class LlamaCpp(Program):
    """A server for each contender, started when it is first asked; idle ones wait for requests."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        work = Path(opening.work)
        self._files = {
            (side, form): export(Path(folder), work / f"{side}-{form}.gguf", form)
            for side, folder in (("target", opening.target), ("draft", opening.draft))
            for form in FORMS
        }
        self._speculative = {
            f"{form}, {k} tokens, probability {p}": (form, k, p)
            for form in ("f32", "q8_0")
            for k, p in GRID
        } | {f"speculative, {form}, default": (form, *DEFAULT) for form in ("f32", "q8_0")}
        self._servers: dict[tuple[str, int], Any] = {}
        # Threads that are started from here on, a server's among them, have the server's core.
        os.sched_setaffinity(0, {opening.server_core})

    def contenders(self) -> list[Contender]:
        alone = [
            Contender(form, f"the target alone, {form}", crowds=form in _CROWDS) for form in FORMS
        ]
        speculative = []
        for name, (form, k, p) in self._speculative.items():
            about = f"both models {form}, drafts of {k}, probability at least {p:g}"
            group = "" if name.startswith("speculative") else f"speculative, {form}, tuned"
            speculative.append(Contender(name, about, group))
        return [*alone, *speculative]

    def ask(self, contender: str, question: Question) -> Answer:
        server = self._server(contender, 1)
        began_s = time.perf_counter()
        arrivals: list[float] = []
        text, num_tokens = self._complete(
            server, question, lambda _: arrivals.append(time.perf_counter() - began_s)
        )
        equal = text == question.expected_text
        return split(equal, num_tokens, 1, arrivals[0], arrivals[-1])

    def crowd(
        self, contender: str, questions: Sequence[Question], clients: int, seconds: float
    ) -> Crowd:
        server = self._server(contender, clients)
        window, numbers, equal = Window(seconds), count(), list[bool]()

        def client() -> None:
            os.sched_setaffinity(0, {self._opening.client_core})
            while not window.over:
                question = questions[next(numbers) % len(questions)]
                # Whole answers: pieces would be work for Python at every token.
                text, num_tokens = self._complete(server, question)
                window.count(num_tokens)
                equal.append(text == question.expected_text)

        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Crowd(window.tokens_per_s, len(equal), sum(equal))

    def _complete(
        self, server: Any, question: Question, arrived: Callable[[Any], None] | None = None
    ) -> tuple[str, int]:
        """The text, and how many tokens it took. arrived: called for each piece; without it there is but one."""
        pieces, last = list[str](), dict[str, Any]()

        def chunk(said: Any) -> None:
            if "error" in said:
                raise RuntimeError(str(said["error"]))
            if arrived is not None:
                arrived(said)
            pieces.append(said["choices"][0]["text"])
            last.update(said)

        server.handle_completions(
            {
                "prompt": question.ids,
                "n_predict": self._opening.max_new_tokens,
                "temperature": 0,
                "samplers": ["top_k"],
                "top_k": 1,
                "cache_prompt": False,
                "stream": arrived is not None,
            },
            chunk,
        )
        return "".join(pieces), int(last["usage"]["completion_tokens"])

    def _server(self, contender: str, clients: int) -> Any:
        if (contender, clients) not in self._servers:
            self._servers[contender, clients] = xllamacpp.Server(self._params(contender, clients))
        return self._servers[contender, clients]

    def _params(self, contender: str, clients: int) -> Any:
        params = xllamacpp.CommonParams()
        form, k, p = self._speculative.get(contender, (contender, 0, 0.0))
        params.model.path = str(self._files["target", form])
        params.n_ctx = self._opening.max_model_len * clients
        params.n_parallel = clients
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.fit_params = False
        params.cache_ram_mib = 0
        if k:
            params.speculative.types = [_SPECULATIVE]
            draft = params.speculative.draft
            draft.mparams.path = str(self._files["draft", form])
            draft.n_max, draft.p_min = k, p
            draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = 1
        return params


def _versions() -> dict[str, str]:
    return {"xllamacpp": version("xllamacpp")}


if __name__ == "__main__":
    serve(LlamaCpp, _versions)
