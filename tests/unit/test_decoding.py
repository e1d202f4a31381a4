"""A step of decoding and the same row of a full forward pass compute the same, for every position encoding."""

import models
import pytest
import torch

LENGTHS = [9, 3, 12, 1]


def steps(model, source, target, encoder_out=None, reorder=None):
    """Logits of step-by-step decoding (batch, tgt_len, vocabulary); ``reorder`` maps a step to a new order of rows."""
    decoder = model.decoder
    with torch.no_grad():
        if encoder_out is None:
            encoder_out = model.encoder(source, source.ne(1).sum(1))
        state, out = {}, []
        for step in range(1, target.size(1) + 1):
            out.append(decoder(target[:, :step], encoder_out=encoder_out, incremental_state=state)[0][:, -1])
            if reorder and step in reorder:
                order = reorder[step]
                target = target[order]
                out = [row[order] for row in out]
                decoder.reorder_incremental_state_scripting(state, order)
                encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
    return torch.stack(out, 1), target


@pytest.mark.parametrize("name", models.VARIANTS)
@pytest.mark.parametrize("left_pad_target", [False, True])
def test_step_by_step_equals_full_pass(name, left_pad_target):
    model = models.variant(name)
    source = models.batch([4, 11, 7, 2])
    target = models.batch(LENGTHS, bos=2, left=left_pad_target, extra=2, seed=5)
    full = models.logits(model, source, target)
    step, _ = steps(model, source, target)
    real = target.ne(1)
    ok, difference = models.close(step[real], full[real])
    assert ok, difference


@pytest.mark.parametrize("name", models.VARIANTS)
def test_reordered_beams_equal_full_pass(name):
    """Rows are permuted, doubled and dropped on the way, as beam search does."""
    model = models.variant(name)
    source = models.batch([4, 11, 7, 2])
    target = models.batch([10, 10, 10, 10], bos=2, left=False, seed=5)
    encoder_out = model.encoder(source, source.ne(1).sum(1))
    reorder = {2: torch.tensor([1, 0, 3, 3]), 5: torch.tensor([0, 2, 3]), 8: torch.tensor([2, 0])}
    rows = torch.arange(4)
    for order in reorder.values():
        rows = rows[order]
    step, after = steps(model, source, target, encoder_out, reorder)
    assert torch.equal(after, target[rows])
    ok, difference = models.close(step, models.logits(model, source[rows], target[rows]))
    assert ok, difference


@pytest.mark.parametrize("name", ["baseline", "roformer", "rope-dynamic-ntk"])
def test_beam_batched_cross_attention(name):
    """After set_beam_size the source's keys are kept once a sentence; sentences finish on the way."""
    model, beam = models.variant(name), 3
    source = models.batch([4, 11, 7]).repeat_interleave(beam, dim=0)
    target = models.batch([8] * 9, bos=2, left=False, seed=5)
    reorder = {
        2: torch.tensor([1, 0, 0, 3, 5, 4, 8, 8, 6]),
        4: torch.tensor([0, 2, 1, 7, 6, 8]),  # the second sentence is finished
        6: torch.tensor([5, 3, 4]),  # and the first
    }
    rows = torch.arange(9)
    for order in reorder.values():
        rows = rows[order]
    model.decoder.set_beam_size(beam)
    step, after = steps(model, source, target, reorder=reorder)
    keys = model.decoder.layers[0].encoder_attn
    assert keys.beam_size == beam
    model.decoder.set_beam_size(1)
    ok, difference = models.close(step, models.logits(model, source[rows], after))
    assert ok, difference


@pytest.mark.parametrize("name", models.VARIANTS)
def test_padding_changes_nothing(name):
    """Left, right and no padding give one sentence the same logits."""
    model = models.variant(name)
    for length in (1, 5, 13):
        source, target = models.batch([length]), models.batch([length], bos=2, seed=5)
        alone = models.logits(model, source, target)
        for left_source in (False, True):
            for left_target in (False, True):
                padded_source = models.batch([length], left=left_source, extra=6)
                padded_target = models.batch([length], bos=2, left=left_target, extra=4, seed=5)
                padded = models.logits(model, padded_source, padded_target)
                assert torch.isfinite(padded).all()
                ok, difference = models.close(padded[padded_target.ne(1)], alone[0])
                assert ok, (length, left_source, left_target, difference)


@pytest.mark.parametrize("name", models.VARIANTS)
def test_a_sentence_does_not_depend_on_its_batch(name):
    model = models.variant(name)
    source = models.batch([4, 15, 7, 2])
    target = models.batch(LENGTHS, bos=2, left=False, seed=5)
    together = models.logits(model, source, target)
    for row in range(4):
        one_source = source[row][source[row].ne(1)][None]
        one_target = target[row][target[row].ne(1)][None]
        ok, difference = models.close(
            together[row, : one_target.size(1)], models.logits(model, one_source, one_target)[0]
        )
        assert ok, (row, difference)
