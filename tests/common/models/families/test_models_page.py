from pathlib import Path

from support.models_page import page, untested

ROOT = Path(__file__).parents[4]


def test_the_page_of_models_is_what_the_tests_try() -> None:
    assert (ROOT / "docs" / "models.md").read_text(encoding="utf-8") == page()


def test_every_family_is_tried() -> None:
    # The text families of our own decoder, and drafts distilled for it, have tests of their own.
    assert untested() <= {"distilled", "llama", "qwen2", "qwen3"}
