"""Mend (b): every sentence comes into a batch, whatever the batch size."""

import itertools

import helpers
import numpy as np
import pytest
from fairseq.data import data_utils
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_rope.errors import UserError


def batches(lengths, **options):
    indices = np.argsort(lengths, kind="stable")
    made = data_utils.batch_by_size(indices, lambda i: lengths[i], num_tokens_vec=lengths[indices], **options)
    return indices, [list(batch) for batch in made]


LIMITS = [{"max_sentences": 1}, {"max_sentences": 7}, {"max_sentences": 64}, {"max_tokens": 90}]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("multiple", [1, 2, 8])
@pytest.mark.parametrize("size", [0, 1, 5, 7, 8, 9, 100])
def test_no_sentence_is_dropped(size, multiple, limit):
    lengths = np.random.RandomState(size).randint(1, 30, size=size).astype(np.int64)
    indices, made = batches(lengths, required_batch_size_multiple=multiple, **limit)
    assert list(itertools.chain(*made)) == list(indices)
    for batch in made:
        assert 0 < len(batch) <= limit.get("max_sentences", size)
        assert max(lengths[batch]) * len(batch) <= limit.get("max_tokens", 10**9)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), max_size=70),
    multiple=st.integers(1, 9),
    sentences=st.one_of(st.none(), st.integers(1, 70)),
    tokens=st.one_of(st.none(), st.integers(40, 400)),
)
def test_batches_partition_any_set(lengths, multiple, sentences, tokens):
    lengths = np.array(lengths, dtype=np.int64)
    limits = {"max_sentences": sentences, "max_tokens": tokens, "required_batch_size_multiple": multiple}
    indices, made = batches(lengths, **limits)
    assert list(itertools.chain(*made)) == list(indices)


def test_full_batches_stay_as_stock_makes_them():
    # the mend adds what stock has cut off and changes nothing before it
    lengths = np.full(100, 5, dtype=np.int64)
    _, made = batches(lengths, max_sentences=64, required_batch_size_multiple=8)
    assert [len(batch) for batch in made] == [64, 32, 4]


def test_lists_and_fixed_shapes_pass_through():
    made = data_utils.batch_by_size([2, 0, 1], lambda i: 3, max_sentences=2, required_batch_size_multiple=8)
    assert [list(batch) for batch in made] == [[2, 0], [1]]
    made = data_utils.batch_by_size([0, 1, 2], lambda i: 3, fixed_shapes=[(2, 4)])
    assert sorted(itertools.chain(*map(list, made))) == [0, 1, 2]


@pytest.fixture(scope="module")
def model(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    helpers.run("fairseq-train", *helpers.train_args(digits, folder, "transformer_tiny", updates=1))
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def small_sets(digits, tmp_path_factory):
    """Test sets of 0, 1, 5 and 100 sentences, with the dictionary of ``digits``."""
    folder = tmp_path_factory.mktemp("small")
    sizes = (0, 1, 5, 100)
    text = helpers.write_digits(folder / "text", splits=[(f"test{n}", n) for n in sizes])
    words = digits / "dict.en.txt"
    for n in sizes:
        options = ["--testpref", text / f"test{n}", "--destdir", folder / str(n), "--srcdict", words]
        helpers.run("fairseq-preprocess", "-s", "en", "-t", "de", *options, "--tgtdict", words)
    return {n: folder / str(n) for n in sizes}


def generate(model, data, *batch, check=True):
    args = [data, "--user-dir", helpers.USER_DIR, "--path", model, "--cpu", "--beam", "1", "--max-len-b", "5"]
    return helpers.run("fairseq-generate", *args, *batch, check=check)


@pytest.mark.parametrize(
    "size, batch",
    [(1, 64), (5, 1), (5, 64), (100, 1), (100, 7), (100, 64), (100, None)],
    ids=lambda value: str(value or "max-tokens"),
)
def test_generate_translates_every_sentence(model, small_sets, size, batch):
    limit = ["--max-tokens", 90] if batch is None else ["--batch-size", batch]
    result = generate(model, small_sets[size], *limit)
    assert sorted(helpers.hypotheses(result.out)) == list(range(size))


@pytest.mark.parametrize("multiple", [1, 8])
def test_empty_set_is_refused_in_words(model, small_sets, multiple):
    result = generate(model, small_sets[0], "--required-batch-size-multiple", multiple, check=False)
    assert isinstance(result.error, UserError)
    assert "the set 'test' of" in str(result.error) and "has no sentences" in str(result.error)


def test_set_of_too_long_sentences_is_refused_in_words(model, small_sets):
    limits = ["--max-source-positions", 1, "--skip-invalid-size-inputs-valid-test"]
    result = generate(model, small_sets[5], *limits, check=False)
    assert isinstance(result.error, UserError)
    assert "none of the 5 sentences of the set 'test'" in str(result.error)


def test_interactive_leaves_out_what_it_was_told_to_skip(model, digits):
    options = ["--max-source-positions", 3, "--skip-invalid-size-inputs-valid-test", "--cpu", "--beam", "1"]
    args = [digits, "--path", model, "-s", "en", "-t", "de", *options]
    result = helpers.run("fairseq-interactive", *args, stdin="one two three four\none two\n")
    assert list(helpers.hypotheses(result.out)) == [1]
