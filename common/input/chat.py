"""The text that a chat template puts around a query, found once by rendering it with stand-ins.

Templates are code of the model's author: they run in Jinja's sandbox, once, at load, and never see
what a user typed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError

_QUERY = "COVSPEC-QUERY-STAND-IN"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Control text around a query.

    text: before and after the query of a prompt without a picture.
    picture: before the picture, between picture and query, after the query; None for text models.
    """

    text: tuple[str, str] = ("", "")
    picture: tuple[str, str, str] | None = None


@dataclass(frozen=True, slots=True)
class PictureTokens:
    """Names of the tokens that stand for a picture and, when not empty, around it."""

    image: str
    start: str = ""
    end: str = ""


def read_template(folder: Path) -> str | None:
    """The chat template of a model folder from any of the places where Transformers keeps it."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    for name in ("tokenizer_config.json", "chat_template.json", "processor_config.json"):
        if not (folder / name).is_file():
            continue
        template = json.loads((folder / name).read_text(encoding="utf-8")).get("chat_template")
        if isinstance(template, list):
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("default")
        if isinstance(template, str):
            return template
    return None


def chat_format(
    template: str | None, picture: PictureTokens | None, variables: Mapping[str, Any]
) -> ChatFormat:
    """Renders a template with and without a picture and cuts it at the stand-ins.

    variables: what the template may use beside the messages, such as `bos_token`.
    """
    if template is None:
        around = None if picture is None else (picture.start, picture.end + "\n", "")
        return ChatFormat(("", ""), around)
    plain = _render(template, _QUERY, variables)
    if _QUERY not in plain:  # templates of vision models may know lists of parts only
        plain = _render(template, [{"type": "text", "text": _QUERY}], variables)
    text = _cut(plain, _QUERY, "the query")
    if picture is None:
        return ChatFormat(text)
    parts = [{"type": "image"}, {"type": "text", "text": _QUERY}]
    before, rest = _cut(_render(template, parts, variables), picture.image, "the picture")
    between, after = _cut(rest, _QUERY, "the query")
    # InternVL's template writes the bare token and its processor the tokens around it.
    if not before.endswith(picture.start):
        before += picture.start
    if not between.startswith(picture.end):
        between = picture.end + between
    return ChatFormat(text, (before, between, after))


def _render(template: str, content: Any, variables: Mapping[str, Any]) -> str:
    # Jinja comes with torch; table models need neither.
    from jinja2.exceptions import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals["raise_exception"] = raise_exception
    messages = [{"role": "user", "content": content}]
    try:
        return environment.from_string(template).render(
            **variables, messages=messages, add_generation_prompt=True
        )
    except (TemplateError, TypeError) as error:
        raise ModelError(f"the model's chat template fails: {error}") from error


def _cut(text: str, mark: str, what: str) -> tuple[str, str]:
    parts = text.split(mark)
    if len(parts) != 2:
        raise ModelError(
            f"the model's chat template writes {what} {len(parts) - 1} times where once is needed"
        )
    return parts[0], parts[1]
