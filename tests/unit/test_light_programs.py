"""Programs that work on text alone start without fairseq, and everything else still registers the models."""

import subprocess
import sys

import pytest

from fairseq_rope import LIGHT_PROGRAMS

IMPORT = """
import importlib, sys
sys.argv = [{program!r}]
importlib.import_module("fairseq_rope.cli." + {program!r}.removeprefix("fairseq-rope-"))
print("fairseq" in sys.modules)
"""


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("program", LIGHT_PROGRAMS)
def test_starts_without_fairseq(program):
    assert run(IMPORT.format(program=program)) == "False"


def test_a_light_program_can_register_later():
    code = """
import sys
sys.argv = ["fairseq-rope-translate"]
import fairseq_rope
fairseq_rope.register()
from fairseq.models import ARCH_MODEL_REGISTRY
print(ARCH_MODEL_REGISTRY["roformer_tiny"].__name__, len(fairseq_rope.compat.status()) > 10)
"""
    assert run(code) == "TranslationTransformer True"
