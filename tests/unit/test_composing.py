"""tests/composing.py hands fairseq's programs what hydra itself would."""

import composing
import helpers
import pytest
from fairseq import options
from fairseq.dataclass import utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException

TRAIN = ["--cpu", "--lr", 0.1, "--save-dir", "a folder, with 'signs' = {x: [1]}", "--adam-betas", "(0.9, 0.98)"]


def parsed(parser, *args):
    return options.parse_args_and_arch(parser(), ["data", "--user-dir", helpers.USER_DIR, *map(str, args)])


def by_hydra(args, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(utils, "compose", composing.stock)
        patch.setattr(utils, "initialize", composing.stock_initialize)
        return convert_namespace_to_omegaconf(args)


def cases():
    training = options.get_training_parser
    stock = ["--arch", "transformer", "--optimizer", "adam", "--source-lang", "null", "--bf16"]
    yield parsed(training, *stock, *TRAIN, "--update-freq", "3,2", "--lr", "1,2")
    yield parsed(training, "--arch", "admin_tiny", *TRAIN, "--optimizer", "radam", "--rope-base", 5)
    yield parsed(training, "--arch", "lstm", "--optimizer", "sgd", "--momentum", 0.5, "--criterion", "adaptive_loss")
    generation = ["--path", "a.pt:b.pt", "--model-overrides", "{'x': 'y'}", "--bpe", "subword_nmt"]
    yield parsed(options.get_generation_parser, *generation)
    yield parsed(options.get_interactive_generation_parser, "--path", "a.pt", "--buffer-size", 7)


def test_the_same_options_as_hydra_s(monkeypatch):
    """Twice each, so that what is kept serves too."""
    seen = []
    for args in cases():
        want = by_hydra(args, monkeypatch)
        for _ in range(2):
            got = convert_namespace_to_omegaconf(args)
            assert got == want and repr(got) == repr(want)
        seen.append(repr(want))
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("bad", ["common.seed=one", "common.sed=1", "common.seed=[", "task=nothing", "sed=1"])
def test_what_hydra_refuses_is_refused(bad):
    overrides, refusals = ["task=translation", "common.cpu=True", bad], []
    for compose in (composing.stock, composing.compose):
        with composing.initialize("../config"), pytest.raises(HydraException) as refused:
            compose("config", overrides=overrides, strict=False)
        refusals.append((type(refused.value), str(refused.value)))
    assert refusals[0] == refusals[1]


def test_a_replaced_choice_is_composed_anew(monkeypatch):
    group = ConfigStore.instance().repo["lr_scheduler"]
    with composing.initialize("../config"):
        before = composing.compose("config", ["lr_scheduler=fixed"], strict=False)
        monkeypatch.setitem(group, "fixed.yaml", group["polynomial_decay.yaml"])
        after = composing.compose("config", ["lr_scheduler=fixed"], strict=False)
    assert "total_num_update" not in before.lr_scheduler and "total_num_update" in after.lr_scheduler


def test_values_do_not_stay():
    with composing.initialize("../config"):
        given = composing.compose("config", ["task=translation", "common.seed=7"], strict=False)
        given.common.cpu = True
        plain = composing.compose("config", ["task=translation"], strict=False).common
    assert (given.common.seed, plain.seed, plain.cpu) == (7, 1, False)
