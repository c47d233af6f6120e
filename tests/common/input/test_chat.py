import json
from pathlib import Path

import pytest
from support.tokenizers import INTERNVL, PICTURE

from covspec.common.errors import ModelError
from covspec.common.input.chat import ChatFormat, chat_format, read_template


def test_internvl_template() -> None:
    got = chat_format(INTERNVL, PICTURE, {})
    head, tail = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    assert got == ChatFormat((head, tail), (head + "<img>", "</img>\n", tail))


def test_text_model_has_no_picture() -> None:
    assert chat_format(INTERNVL, None, {}).picture is None


def test_template_that_writes_the_tokens_around_the_picture_itself() -> None:
    template = INTERNVL.replace("'<IMG_CONTEXT>\n'", "'<img><IMG_CONTEXT></img>\n'")
    assert chat_format(template, PICTURE, {}) == chat_format(INTERNVL, PICTURE, {})


def test_template_that_knows_parts_only() -> None:
    template = (
        "{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'image' %}"
        "<IMG_CONTEXT>{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}"
        "{% endfor %}{% endfor %}!"
    )
    assert chat_format(template, PICTURE, {}) == ChatFormat(("", "!"), ("<img>", "</img>", "!"))


def test_variables_reach_the_template() -> None:
    got = chat_format("{{ bos_token }}{{ messages[0]['content'] }}", None, {"bos_token": "<s>"})
    assert got.text == ("<s>", "")


def test_without_a_template() -> None:
    assert chat_format(None, PICTURE, {}) == ChatFormat(("", ""), ("<img>", "</img>\n", ""))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no users here') }}", "no users here"),
        ("{% if %}", "fails"),
        ("{{ messages.__class__.__mro__ }}", "fails"),
        ("{{ messages.append(1) }}", "fails"),
        ("nothing", "the query 0 times"),
        ("{{ messages[0]['content'] * 2 }}", "the query 2 times"),
    ],
)
def test_bad_templates(template: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        chat_format(template, None, {})


def test_places_of_a_template(tmp_path: Path) -> None:
    assert read_template(tmp_path) is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "c"}))
    assert read_template(tmp_path) == "c"
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "b"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert read_template(tmp_path) == "b"
    (tmp_path / "chat_template.jinja").write_text("a")
    assert read_template(tmp_path) == "a"
