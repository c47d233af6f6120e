"""`covspec demo`, whole: processes of their own, the embedded pair, a sample picture."""

import subprocess
import sys

from PIL import Image

from covspec.bench.demo import samples

DEMO = [sys.executable, "-m", "covspec.bench.cli", "demo"]


def test_the_demo_answers_and_compares() -> None:
    done = subprocess.run(DEMO, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert samples()[0].question in done.stdout
    assert "edge-only" in done.stdout
    assert done.stdout.split("\ntext ")[1].split()[:2] == ["the", "same"]


def test_the_samples_are_pictures_with_questions_and_answers() -> None:
    assert samples()
    for sample in samples():
        assert sample.question and sample.answer
        with Image.open(sample.image) as picture:
            picture.load()
            assert min(picture.size) > 1


def test_a_picture_without_a_question_is_a_usage_error() -> None:
    done = subprocess.run([*DEMO, "--image", "x.png"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--query" in done.stderr
