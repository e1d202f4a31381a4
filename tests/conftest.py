"""Fixtures shared by all tests."""

import gc
import logging
import signal
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import composing
import helpers

import fairseq_rope  # noqa: F401  with fairseq, once for all tests

# Importing fairseq leaves half a million objects that live as long as the tests; collections need not look at them.
gc.collect()
gc.freeze()
composing.install()
torch.set_num_threads(1)
# A run in the background (nohup, CI) may have been started with Ctrl-C ignored; programs under test shall hear it.
signal.signal(signal.SIGINT, signal.default_int_handler)
logging.getLogger("matplotlib").setLevel(logging.WARNING)


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """A binarized toy corpus with a joined dictionary: digits in words, reversed on the target side."""
    folder = tmp_path_factory.mktemp("digits")
    return helpers.binarize(helpers.write_digits(folder / "text"), folder / "bin")


@pytest.fixture(scope="session")
def digits_separate(tmp_path_factory):
    """The same corpus with two dictionaries."""
    folder = tmp_path_factory.mktemp("digits_separate")
    return helpers.binarize(helpers.write_digits(folder / "text"), folder / "bin", joined=False)


@pytest.fixture(scope="session")
def real_data():
    """Folder of the real corpora; tests that need it are skipped where it is absent."""
    if not helpers.DATA.is_dir():
        pytest.skip(f"no real data at $FAIRSEQ_ROPE_DATA ({helpers.DATA})")
    return helpers.DATA
