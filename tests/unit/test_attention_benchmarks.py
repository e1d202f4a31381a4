"""Attention beside other libraries', and its memory by length: tiny runs of the two benchmarks in this process."""

import json
import sys

import helpers
import pytest
import torch

sys.path.insert(0, str(helpers.ROOT / "benchmarks"))

import attention
import floor
import length

CASES = ("encoder", "encoder, pads", "decoder, causal")


@pytest.fixture(autouse=True)
def known_speed(monkeypatch):
    """Peaks that are not measured, which would take a second; and the number of threads as it was."""
    monkeypatch.setattr(floor, "peaks", lambda device, precision: {"flops": 1e11, "bytes": 1e10})
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(program, monkeypatch, tmp_path, *options):
    monkeypatch.setattr(sys, "argv", [program.__name__, *options, "--threads", "1", "--out", str(tmp_path)])
    program.main()


def test_all_libraries_compute_the_same_attention(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("x_transformers")
    run(attention, monkeypatch, tmp_path, "--lengths", "5", "--tokens", "15", "--rounds", "1", "--warmup", "0")
    for name in ("attention", "attention_without_projections"):
        report = json.loads((tmp_path / f"{name}.json").read_text())
        assert [(row["length"], row["batch"], row["what"]) for row in report["rows"]] == [
            (5, 3, "forward"),
            (5, 3, "forward + backward"),
        ]
        assert all(row["to HF RoFormer"]["median"] > 0 and row["fairseq_rope, ms"]["low"] > 0 for row in report["rows"])
        assert (tmp_path / f"{name}.md").read_text().count("Seconds of forward + backward at length 5") == 1

    # Where one differs, the program ends instead of timing it.
    rotation = attention.rotation_of(5, 3, "cpu")
    rotation.turns = rotation.turns.conj_physical()
    monkeypatch.setattr(attention, "rotation_of", lambda *_: rotation)
    with pytest.raises(SystemExit, match="HF RoFormer differs from fairseq_rope by 0"):
        run(attention, monkeypatch, tmp_path, "--lengths", "5", "--tokens", "15", "--rounds", "1")


def test_memory_grows_linearly_where_no_weights_are_asked_for(monkeypatch, tmp_path):
    """A width at which a (length, length) tensor, even of one byte an entry, would be the largest by far."""
    for module, name, value in (
        (attention, "WIDTH", 64),
        (attention, "HEAD_DIM", 16),
        (attention, "HEADS", 4),
        (length, "WIDTH", 64),
    ):
        monkeypatch.setattr(module, name, value)
    options = ("--lengths", "2048", "512", "1024", "--weights-up-to", "1024", "--rounds", "1", "--warmup", "0")
    run(length, monkeypatch, tmp_path, *options)
    rows = json.loads((tmp_path / "length.json").read_text())["rows"]
    assert len(rows) == 2 * (3 * 3 + 2)
    for fit in length.fits(rows):
        power = fit["memory grows with length to the"]
        assert power < 1.1 if fit["case"] in CASES else power > 1.8, fit
    for row in rows:
        if row["length"] == 2048:
            assert row["largest allocation, MB"] < 0.3 * row["length², MB"], row
    assert (tmp_path / "length.png").read_bytes().startswith(b"\x89PNG")


def test_exponent_of_a_power():
    assert length.exponent([10, 20, 80], [3 * x**1.5 for x in (10, 20, 80)]) == pytest.approx(1.5)
    assert length.exponent([10], [1.0]) is None


def test_a_device_that_is_not_there_is_one_line(monkeypatch, tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit):
        run(length, monkeypatch, tmp_path, "--device", "cuda")
    assert "torch finds no GPU here" in capsys.readouterr().err and not list(tmp_path.iterdir())
