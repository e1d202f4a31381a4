"""A step of decoding and the same row of a full forward pass compute the same, for every position encoding."""

import models
import pytest
import torch

from fairseq_rope.decoder import log_softmax_

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


def expanded(model, source, beam):
    """The encoder's output with each sentence ``beam`` times, as beam search asks for it."""
    with torch.no_grad():
        encoder_out = model.encoder(source, source.ne(1).sum(1))
        return model.encoder.reorder_encoder_out(encoder_out, torch.arange(source.size(0)).repeat_interleave(beam))


BEAM_ORDERS = {
    2: torch.tensor([1, 0, 0, 3, 5, 4, 8, 8, 6, 9, 9, 9]),
    3: torch.tensor([2, 2, 2, 5, 4, 3, 6, 7, 8, 11, 10, 9]),
    4: torch.tensor([0, 2, 1, 7, 6, 8, 9, 10, 11]),  # the second sentence is finished: its place stays
    6: torch.tensor([5, 3, 4, 8, 8, 6]),  # and the first: packed
    8: torch.tensor([3, 4, 4]),
}


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", models.VARIANTS)
def test_beam_search_equals_full_pass(name, ragged):
    """Hypotheses move within their sentences and sentences finish; a common prefix, with pads before it or not."""
    model, beam = models.variant(name), 3
    source = models.batch([4, 11, 7, 2])
    target = models.batch([10] * 12, bos=2, left=False, seed=5)
    target[:, 1] = target[::beam, 1].repeat_interleave(beam)
    if ragged:
        prefix = target[:, :3].clone()
        target[3:9] = torch.cat((torch.ones(6, 2, dtype=torch.long), target[3:9, :-2]), dim=1)
        target[9:12, 2] = prefix[9:12, 0]
    encoder_out = expanded(model, source, beam)
    rows = torch.arange(12)
    for order in BEAM_ORDERS.values():
        rows = rows[order]
    step, after = steps(model, source, target, encoder_out, BEAM_ORDERS)
    full = models.logits(model, source.repeat_interleave(beam, 0)[rows], after)
    ok, difference = models.close(step[after.ne(1)], full[after.ne(1)])
    assert ok, difference


@pytest.mark.parametrize("first", [1, 4])
@pytest.mark.parametrize("name", ["baseline", "roformer", "rope-dynamic-ntk", "tupe-r-first-joint", "realformer"])
def test_any_order_of_grouped_rows(name, first):
    """Orders that beam search never asks for: hypotheses of different sentences mixed, sentences doubled or swapped."""
    model, beam = models.variant(name), 2
    source = models.batch([4, 11, 7])
    generator = torch.Generator().manual_seed(first)
    for mixed in (
        torch.tensor([4, 5, 0, 1, 2, 3]),  # sentences swapped
        torch.tensor([2, 3, 2, 3, 0, 1, 4, 4]),  # and doubled
        torch.tensor([0, 3, 1, 2, 5, 4]),  # mixed
        torch.tensor([5, 1, 0]),  # no whole number of groups
    ):
        target = models.batch([8] * 6, bos=2, left=False, seed=5)
        orders = {first: mixed}
        for step in (first + 1, first + 2):
            orders[step] = torch.randint(mixed.numel(), (mixed.numel(),), generator=generator)
        rows = torch.arange(6)
        for order in orders.values():
            rows = rows[order]
        step, after = steps(model, source, target, expanded(model, source, beam), orders)
        full = models.logits(model, source.repeat_interleave(beam, 0)[rows], after)
        ok, difference = models.close(step, full)
        assert ok, (mixed, difference)


def test_rows_are_mixed_after_a_sentence_has_finished():
    """Its place is still in the pools when each row gets a place of its own."""
    for name in ("roformer", "tupe-r-first-joint", "realformer"):
        model = models.variant(name)
        source, target = models.batch([4, 11, 7, 5]), models.batch([8] * 8, bos=2, left=False, seed=5)
        orders = {2: torch.tensor([1, 0, 4, 5, 7, 6]), 4: torch.tensor([0, 3, 2, 5, 1])}
        rows = torch.arange(8)
        for order in orders.values():
            rows = rows[order]
        step, after = steps(model, source, target, expanded(model, source, 2), orders)
        full = models.logits(model, source.repeat_interleave(2, 0)[rows], after)
        ok, difference = models.close(step, full)
        assert ok, (name, difference)


def state_of(decoder, incremental_state):
    return decoder.get_incremental_state(incremental_state, "decoding")


def test_a_beam_search_keeps_keys_once_a_sentence_and_copies_no_cache():
    """What makes it fast: one row of the first step, pools by sentence that are not moved, finished ones left in."""
    model, beam = models.build("roformer_tiny"), 3
    source = models.batch([4, 11, 7, 2])
    target = models.batch([6] * 12, bos=2, left=False, seed=5)
    encoder_out, state = expanded(model, source, beam), {}
    computed = []
    model.decoder.layers[0].fc1.register_forward_hook(lambda module, args, out: computed.append(out.size(0)))

    def step(length):
        with torch.no_grad():
            model.decoder(target[:, :length], encoder_out=encoder_out, incremental_state=state)
        return state_of(model.decoder, state)

    step(1)
    decoding = step(2)
    assert computed == [4, 12]
    cross = decoding.pool(model.decoder.layers[0].encoder_attn)
    own = decoding.pool(model.decoder.layers[0].self_attn)
    assert cross.keys.shape[:3] == (4, 4, 11)
    assert own.keys.shape[:2] == (4, 4) and own.length == 1 + beam
    blocks = [own.keys.data_ptr(), cross.keys.data_ptr()]
    order = torch.tensor([1, 0, 0, 3, 5, 4, 8, 8, 6, 9, 9, 9])
    assert model.encoder.reorder_encoder_out(encoder_out, order) is encoder_out
    model.decoder.reorder_incremental_state_scripting(state, order)
    step(3)
    finished = torch.tensor([0, 1, 2, 6, 7, 8, 9, 10, 11])  # a quarter of the places: left in
    model.decoder.reorder_incremental_state_scripting(state, finished)
    encoder_out, target = model.encoder.reorder_encoder_out(encoder_out, finished), target[finished]
    step(4)
    assert blocks == [own.keys.data_ptr(), cross.keys.data_ptr()]
    assert decoding.places == 4 and decoding.active.tolist() == [0, 2, 3]
    finished = torch.tensor([3, 4, 5, 6, 7, 8])  # half of them: packed
    model.decoder.reorder_incremental_state_scripting(state, finished)
    encoder_out, target = model.encoder.reorder_encoder_out(encoder_out, finished), target[finished]
    step(5)
    assert decoding.places == 2 and decoding.active is None
    assert cross.keys.size(0) == own.keys.size(0) == 2


def test_rows_are_grouped_only_where_their_sources_are_equal():
    """What set_beam_size said last may be stale: fairseq tells no model that a beam is 1 again."""
    model = models.build("baseline_tiny")
    source = models.batch([7, 7, 7, 7])
    target = models.batch([5] * 4, bos=2, left=False)
    model.decoder.set_beam_size(2)
    for rows, group in ((source, 1), (source[[0, 0, 1, 1]], 2), (source[[0, 1, 1, 0]], 1), (source[[0, 0, 1]], 1)):
        with torch.no_grad():
            encoder_out, state = model.encoder(rows), {}
            # Bit for bit the same source, as a caller that repeats the encoder's output has it.
            kept = encoder_out["encoder_out"][0]
            for row in range(1, len(rows)):
                if rows[row].equal(rows[row - 1]):
                    kept[:, row] = kept[:, row - 1]
            model.decoder(target[: len(rows), :1], encoder_out=encoder_out, incremental_state=state)
        assert state_of(model.decoder, state).group == group
        step, _ = steps(model, rows, target[: len(rows)], encoder_out)
        assert models.close(step, models.logits(model, rows, target[: len(rows)]))[0]


def test_dropout_that_is_kept_gives_each_hypothesis_its_own():
    model = models.build("baseline_tiny", dropout=0.5)
    for module in model.modules():
        if hasattr(module, "apply_during_inference"):
            module.apply_during_inference = True
    encoder_out = expanded(model, models.batch([5]), 4)
    with torch.no_grad():
        rows = model.decoder(torch.full((4, 1), 2), encoder_out=encoder_out, incremental_state={})[0][:, 0]
    assert len(rows.unique(dim=0)) == 4


def test_gradients_flow_through_steps():
    """In-place pools would spoil them: with gradients, steps are joined out of place."""
    model = models.build("roformer_tiny")
    source, target = models.batch([5, 3]), models.batch([6, 6], bos=2, left=False)
    model.decoder.zero_grad()
    state, encoder_out, total = {}, model.encoder(source), 0
    for step in range(1, 7):
        out = model.decoder(target[:, :step], encoder_out=encoder_out, incremental_state=state)[0]
        total = total + out.sin().sum()
    total.backward()
    stepwise = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model(source, None, target)[0].sin().sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(stepwise[name], parameter.grad, rtol=1e-4, atol=1e-4), name


def test_a_step_that_does_not_continue_the_state_is_an_error():
    model = models.build("baseline_tiny")
    encoder_out, state = model.encoder(models.batch([5, 3])), {}
    target = models.batch([6, 6], bos=2, left=False)
    model.decoder(target[:, :1], encoder_out=encoder_out, incremental_state=state)
    for tokens in (target[:, :3], target[:, :1], target[:1, :2]):
        with pytest.raises(ValueError, match="needs the 2 x 2 tokens"):
            model.decoder(tokens, encoder_out=encoder_out, incremental_state=state)


@pytest.mark.parametrize("block", [1, 100, 2**20])
def test_log_softmax_in_place(block):
    logits = torch.randn(7, 1, 33, generator=torch.Generator().manual_seed(1)) * 20
    expected = torch.log_softmax(logits.double(), -1)
    result = log_softmax_(logits, block)
    assert result is logits
    assert (result.double() - expected).abs().max() < 1e-5


def test_only_scores_of_a_step_are_normalised_in_place():
    model = models.build("baseline_tiny")
    source, target = models.batch([5, 3]), models.batch([6, 6], bos=2, left=False)
    with torch.no_grad():
        full = model(source, None, target)
        before = full[0].clone()
        expected = model.get_normalized_probs(full, log_probs=True)
        assert torch.equal(full[0], before)
        for bare in ((full[0], None), (full[0],)):  # stock reads the scores alone
            assert torch.equal(model.get_normalized_probs(bare, log_probs=True), expected)
        step = model.decoder(target[:, :1], encoder_out=model.encoder(source), incremental_state={})
        assert model.get_normalized_probs(step, log_probs=False).sum(-1).allclose(torch.ones(2, 1))
        normalised = model.get_normalized_probs(step, log_probs=True)
    assert normalised.data_ptr() == step[0].data_ptr()
    assert torch.allclose(normalised[:, 0], expected[:, 0], atol=1e-5)


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
