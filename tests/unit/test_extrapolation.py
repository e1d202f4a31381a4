"""The constants that SPECS section 6 lists for the scaling laws of RoPE."""

import pytest

from fairseq_rope.positions.extrapolation import critical_base, critical_dimension, reach


@pytest.mark.parametrize(
    "head_dim, length, channels",
    [(128, 4096, 92), (64, 512, 32), (64, 1024, 36), (64, 256, 26), (128, 2048, 82)],
)
def test_critical_dimension(head_dim, length, channels):
    assert critical_dimension(head_dim, length) == channels


def test_critical_dimension_is_at_most_the_head():
    assert critical_dimension(8, 10**9) == 8


@pytest.mark.parametrize("tune_length, base", [(8192, 26_784), (16384, 71_738), (32768, 192_144), (102400, 970_497)])
def test_critical_base(tune_length, base):
    assert critical_base(4096, tune_length) == pytest.approx(base, rel=1e-4)


@pytest.mark.parametrize(
    "base, length",
    [(80e3, 21_003), (160e3, 34_565), (400e3, 66_782), (600e3, 89_377), (1e6, 129_027), (2e6, 212_347)],
)
def test_reach_above_the_critical_base(base, length):
    assert reach(128, 4096, 16384, base) == pytest.approx(length, rel=1e-4)


@pytest.mark.parametrize("base, length", [(40e3, 12_762), (30e3, None)])
def test_reach_depends_on_the_tuning_length(base, length):
    assert reach(128, 4096, 16384, base) == 16384  # below the critical base of 16k
    if length:
        assert reach(128, 4096, 8192, base) == pytest.approx(length, rel=1e-4)


@pytest.mark.parametrize("call", [lambda: critical_dimension(64, 6), lambda: critical_dimension(64, 512, 1.0)])
def test_values_out_of_range(call):
    with pytest.raises(ValueError, match=r"2π tokens|above 1"):
        call()
