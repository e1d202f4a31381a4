"""Buckets of relative distance: the tables of T5's formula, the formula in exact integers, and what is refused."""

import models
import pytest
import torch

from fairseq_rope.errors import UserError
from fairseq_rope.positions import check_buckets
from fairseq_rope.positions.relative import relative_bucket

# key - query -> bucket, with 32 buckets up to a distance of 128.
BIDIRECTIONAL = {
    0: 0,
    -1: 1,
    -7: 7,
    -8: 8,
    -11: 8,
    -12: 9,
    -16: 10,
    -23: 11,
    -32: 12,
    -46: 13,
    -64: 14,
    -90: 14,
    -91: 15,
    -128: 15,
    -100_000: 15,
    1: 17,
    7: 23,
    8: 24,
    16: 26,
    128: 31,
    100_000: 31,
}
UNIDIRECTIONAL = {
    0: 0,
    -1: 1,
    -15: 15,
    -16: 16,
    -21: 18,
    -32: 21,
    -64: 26,
    -112: 30,
    -113: 31,
    -128: 31,
    -100_000: 31,
    1: 0,
    128: 0,
    100_000: 0,
}


def exact_bucket(distance, buckets, max_distance, bidirectional):
    """T5's bucket in integers: floor(s·log(n/e) / log(m/e)) ≥ k says n^s·e^k ≥ m^k·e^s."""
    offset = 0
    if bidirectional:
        buckets //= 2
        offset = buckets if distance > 0 else 0
    n = abs(distance) if bidirectional else max(-distance, 0)
    exact = buckets // 2
    if n < exact:
        return offset + n
    steps = buckets - exact
    reached = [k for k in range(steps) if n**steps * exact**k >= max_distance**k * exact**steps]
    return offset + exact + max(reached)


@pytest.mark.parametrize("bidirectional, table", [(True, BIDIRECTIONAL), (False, UNIDIRECTIONAL)])
def test_reference_table(bidirectional, table):
    got = relative_bucket(torch.tensor(list(table)), 32, 128, bidirectional)
    assert dict(zip(table, got.tolist(), strict=True)) == table


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    "buckets, max_distance",
    [(4, 3), (6, 4), (8, 6), (10, 100), (18, 128), (32, 17), (32, 128), (36, 32), (54, 125), (64, 256)],
)
def test_every_distance_has_the_bucket_of_exact_arithmetic(buckets, max_distance, bidirectional):
    """Distances on a boundary too, of which logarithms fall short: with 18 buckets up to 128 even in float64."""
    distances = list(range(-300, 301))
    got = relative_bucket(torch.tensor(distances), buckets, max_distance, bidirectional).tolist()
    assert got == [exact_bucket(distance, buckets, max_distance, bidirectional) for distance in distances]


def test_every_bucket_but_the_first_of_the_upper_half_is_used():
    distances = torch.arange(-5000, 5001)
    bidirectional = relative_bucket(distances, 32, 128, True)
    assert set(bidirectional.tolist()) == set(range(32)) - {16}
    assert set(relative_bucket(distances, 32, 128, False).tolist()) == set(range(32))


def test_shape_is_kept_and_input_is_not_written_to():
    distances = torch.arange(24).view(2, 3, 4) - 12
    before = distances.clone()
    assert relative_bucket(distances, 32, 128, True).shape == (2, 3, 4)
    assert torch.equal(distances, before)
    assert relative_bucket(torch.empty(0, dtype=torch.long), 32, 128, True).shape == (0,)


@pytest.mark.parametrize("buckets", [-4, 0, 1, 2, 3, 5, 33])
def test_number_of_buckets_that_cannot_be_halved_is_refused(buckets):
    with pytest.raises(UserError, match=rf"--relative-buckets must be even and at least 4, not {buckets}$"):
        check_buckets(buckets, 1000)


@pytest.mark.parametrize("buckets, max_distance", [(32, 16), (32, 0), (32, -128), (4, 2)])
def test_distance_within_the_exact_buckets_is_refused(buckets, max_distance):
    with pytest.raises(UserError, match=rf"above half of --relative-buckets {buckets}.*, not {max_distance}$"):
        check_buckets(buckets, max_distance)


@pytest.mark.parametrize("buckets, max_distance", [(4, 3), (6, 4), (32, 17), (32, 128)])
def test_smallest_allowed_values_pass(buckets, max_distance):
    check_buckets(buckets, max_distance)


def test_refused_when_the_model_is_built():
    with pytest.raises(UserError, match="--relative-buckets must be even and at least 4, not 7"):
        models.build("tupe_r_tiny", relative_buckets=7)
    with pytest.raises(UserError, match="--relative-max-distance must be above half"):
        models.build("tupe_r_tiny", relative_max_distance=16)
    with pytest.raises(UserError, match="--relative-buckets 16 has no effect with --position-encoding tupe-a"):
        models.build("tupe_a_tiny", relative_buckets=16)
