"""tightwad's speculation between two llama.cpp servers: the target's on one core, draft and proxy on the other.

The servers speak HTTP on loopback; the proxy is called inside this process, which spares it one hop. It speaks text and
counts words, so it gets the prompt as text, and the answer's tokens are those that the proxy says it committed.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import xllamacpp
from tightwad.config import ProxyConfig, ServerEndpoint
from tightwad.proxy import SpeculativeProxy

from .gguf_export import export
from .lines import Answer, Contender, Opening, Program, Question, serve, split

#: Tokens of a draft; 8 is tightwad's default.
LENGTHS = (4, 8, 16)


class Tightwad(Program):
    """Two servers, and a proxy between them for each draft length."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._servers = []
        urls = {}
        for side, folder, core in (
            ("target", opening.target, opening.server_core),
            ("draft", opening.draft, opening.client_core),
        ):
            # The threads of the server take this thread's core.
            os.sched_setaffinity(0, {core})
            path = export(Path(folder), Path(opening.work) / f"tightwad-{side}.gguf", "f32")
            server = xllamacpp.Server(_params(path, opening.max_model_len))
            self._servers.append(server)
            urls[side] = server.listening_address
        self._runner = asyncio.Runner()
        self._proxies = {
            f"drafts of {k}": SpeculativeProxy(
                ProxyConfig(
                    draft=ServerEndpoint(urls["draft"], "draft"),
                    target=ServerEndpoint(urls["target"], "target"),
                    max_draft_tokens=k,
                    fallback_on_draft_failure=False,
                )
            )
            for k in LENGTHS
        }

    def contenders(self) -> list[Contender]:
        return [
            Contender(name, f"{name}, f32, two servers on loopback", "tuned")
            for name in self._proxies
        ]

    def ask(self, contender: str, question: Question) -> Answer:
        return self._runner.run(self._ask(self._proxies[contender], question))

    async def _ask(self, proxy: Any, question: Question) -> Answer:
        before, began_s = proxy.stats.total_tokens_output, time.perf_counter()
        pieces, times = list[str](), list[tuple[float, int]]()
        stream = await proxy.generate_completion(
            question.text, self._opening.max_new_tokens, 0.0, stream=True
        )
        async for event in stream:
            payload = event.removeprefix("data: ").strip()
            if payload == "[DONE]":
                break
            piece = json.loads(payload)["choices"][0]["text"]
            if piece:
                pieces.append(piece)
                num_tokens = proxy.stats.total_tokens_output - before
                times.append((time.perf_counter() - began_s, num_tokens))
        total_s = time.perf_counter() - began_s
        (first_s, num_first), (_, num_tokens) = times[0], times[-1]
        equal = "".join(pieces) == question.expected_text
        return split(equal, num_tokens, num_first, first_s, total_s)

    def close(self) -> None:
        for proxy in self._proxies.values():
            self._runner.run(proxy.close())
        self._runner.close()


def _params(path: Path, max_model_len: int) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = max_model_len
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.fit_params = False
    params.cache_ram_mib = 0
    return params


def _versions() -> dict[str, str]:
    return {"tightwad": version("tightwad"), "xllamacpp": version("xllamacpp")}


if __name__ == "__main__":
    serve(Tightwad, _versions)
