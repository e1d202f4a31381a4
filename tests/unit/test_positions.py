"""Learned and sinusoidal tables: limits, padding, and what a stack's encoding reports."""

import models
import pytest
import torch

from fairseq_rope.errors import UserError
from fairseq_rope.positions import LearnedPositions, NoPositions, SinusoidalPositions
from fairseq_rope.positions.base import positions_of_last
from fairseq_rope.positions.sinusoidal import sinusoidal_table


def learned(rows, width=8):
    return LearnedPositions(torch.nn.Parameter(torch.arange(float((rows + 2) * width)).view(rows + 2, width)), 1)


def test_learned_rows_follow_the_non_pad_rank():
    positions = learned(4)
    tokens = torch.tensor([[1, 1, 7, 8], [7, 8, 1, 1]])
    got = positions.embed(tokens, 4)
    table = positions.weight
    assert torch.equal(got[0, 2:], table[2:4]) and torch.equal(got[1, :2], table[2:4])
    assert torch.equal(positions.embed(tokens, 1)[0, 0], table[3])


def test_learned_refuses_longer_input_and_names_both_lengths():
    positions = learned(4)
    assert positions.max_positions() == 4
    with pytest.raises(UserError, match=r"5 tokens is longer than the 4 learned positions"):
        positions.check_length(torch.full((1, 5), 7))
    # pads do not count
    assert positions.embed(torch.tensor([[1, 1, 7, 7, 7, 7]]), 6).shape == (1, 6, 8)


def test_learned_refuses_a_step_beyond_its_table():
    model = models.build("baseline_tiny", position_encoding="learned", max_target_positions=5)
    source = models.batch([4])
    encoder_out, state = model.encoder(source, None), {}
    tokens = models.batch([6], bos=2, left=False)
    for step in range(1, 6):
        model.decoder(tokens[:, :step], encoder_out=encoder_out, incremental_state=state)
    with pytest.raises(UserError, match="6 tokens is longer than the 5 learned positions"):
        model.decoder(tokens, encoder_out=encoder_out, incremental_state=state)


def test_sinusoids_grow_with_the_input_and_keep_their_rows():
    positions = SinusoidalPositions(16, 1, 1024)
    short = positions.embed(torch.full((1, 10), 5), 10)
    long = positions.embed(torch.full((1, 3000), 5), 3000)
    assert torch.equal(long[:, :10], short)
    assert torch.equal(positions.embed(torch.full((1, 10), 5), 10), short)
    assert torch.equal(positions.embed(torch.tensor([[1, 5]]), 2)[0, 0], torch.zeros(16))


@pytest.mark.parametrize("width", [4, 5, 7, 64])
def test_sinusoids_equal_stock(width):
    from fairseq.modules import SinusoidalPositionalEmbedding

    tokens = models.batch([9, 3, 12])
    stock = SinusoidalPositionalEmbedding(width, 1, init_size=64)(tokens)
    assert torch.equal(SinusoidalPositions(width, 1, 1024).embed(tokens, 12), stock)


def test_positions_of_a_step_are_fairseq_s():
    from fairseq.utils import make_positions

    tokens = torch.tensor([[7, 8, 9, 4], [1, 1, 5, 2], [5, 1, 1, 1], [1, 1, 1, 1], [5, 1, 6, 1]])
    for end in range(1, 5):
        for queries in range(1, end + 1):
            got = positions_of_last(tokens[:, :end], queries, 1)
            assert torch.equal(got, make_positions(tokens[:, :end], 1)[:, -queries:]) and got.dtype == torch.long


def test_sinusoids_do_not_make_a_table_each_step(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "fairseq_rope.positions.sinusoidal.sinusoidal_table",
        lambda *size: calls.append(size[0]) or sinusoidal_table(*size),
    )
    positions, tokens = SinusoidalPositions(8, 1, 1024), torch.full((2, 700), 5)
    for end in range(1, 701):
        step = positions.embed(tokens[:, :end], 1)
    assert calls == [256, 512, 768]
    assert torch.equal(step, SinusoidalPositions(8, 1, 1024).embed(tokens, 700)[:, -1:])


def test_sinusoids_refuse_a_width_without_frequencies():
    with pytest.raises(UserError, match="at least 4, not 3"):
        SinusoidalPositions(3, 1, 10)


def test_reported_limits():
    assert models.variant("baseline").max_positions() == (1024, 1024)
    assert models.build("baseline_tiny", max_source_positions=7, max_target_positions=9).max_positions() == (7, 9)
    assert models.variant("learned", max_source_positions=7).max_positions() == (7, 1024)
    assert models.variant("roformer", max_source_positions=7).max_positions() == (10**9, 10**9)
    assert NoPositions().max_positions() == 10**9
