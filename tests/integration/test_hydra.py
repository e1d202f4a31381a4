"""fairseq-hydra-train reaches the architectures as files, and they resolve to what --arch resolves to."""

import importlib.util
import os
from dataclasses import asdict
from pathlib import Path

import fairseq
import helpers
import pytest
import runs
import torch

import fairseq_rope  # registers the architectures
from fairseq_rope.config import RopeTransformerConfig
from fairseq_rope.models import ARCHITECTURES

CONFIG = Path(fairseq_rope.__file__).parent / "config"
TASK = ["task=translation", "criterion=label_smoothed_cross_entropy", "optimizer=adam", "lr_scheduler=fixed"]


def compose(*overrides, task=TASK):
    """What `fairseq-hydra-train --config-dir fairseq_rope/config OVERRIDES` works with."""
    from fairseq.dataclass.initialize import add_defaults, hydra_init
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    hydra_init("config")
    folder = os.path.join(os.path.dirname(fairseq.__file__), "config")
    with initialize_config_dir(folder):  # no version_base, as fairseq: another one would stay for the whole process
        cfg = compose("config", overrides=[f"hydra.searchpath=[file://{CONFIG}]", *task, *overrides])
    add_defaults(cfg)
    return OmegaConf.create(OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))


def by_flags(data, *flags):
    """What `fairseq-train FLAGS` works with."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    args = ["--user-dir", helpers.USER_DIR, "--task", "translation", *map(str, flags)]
    parsed = options.parse_args_and_arch(options.get_training_parser(), [str(data), *args])
    return convert_namespace_to_omegaconf(parsed)


def built(cfg, data):
    """The model's parameters ({name: shape}, without memory) and its resolved configuration."""
    from fairseq import models
    from fairseq.tasks.translation import TranslationConfig, TranslationTask
    from omegaconf import OmegaConf

    task = TranslationTask.setup_task(OmegaConf.structured(TranslationConfig(data=str(data))))
    with torch.device("meta"):
        model = models.build_model(cfg, task)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    resolved = asdict(RopeTransformerConfig.from_model_config(cfg))
    return shapes, model.encoder.embed_positions.extra_repr(), resolved


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_file_and_the_flag_are_one_architecture(digits, name):
    from omegaconf import OmegaConf

    file = OmegaConf.load(CONFIG / "model" / f"{name}.yaml")
    task = {"max_source_positions": 1024, "max_target_positions": 1024}
    of_file = OmegaConf.create({"model": file, "task": task})
    OmegaConf.resolve(of_file)
    assert built(of_file.model, digits) == built(by_flags(digits, "--arch", name).model, digits)


def test_files_are_those_of_the_generator():
    path = helpers.ROOT / "scripts" / "generate_hydra_config.py"
    spec = importlib.util.spec_from_file_location("generate_hydra_config", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    files = {file.stem: file.read_text(encoding="utf-8") for file in (CONFIG / "model").glob("*")}
    assert files == {name: script.render(name) for name in ARCHITECTURES}


@pytest.mark.parametrize(
    ("overrides", "flags"),
    [
        (["model=roformer_tiny"], ["--arch", "roformer_tiny"]),
        (  # widths that follow, limits of the task, an own flag
            [
                "model=baseline_tiny", "model.encoder_embed_dim=32", "model.position_encoding=learned",
                "task.max_source_positions=77",
            ],
            [
                "--arch", "baseline_tiny", "--encoder-embed-dim", 32, "--position-encoding", "learned",
                "--max-source-positions", 77,
            ],
        ),
        (["+model._name=roformer_tiny"], ["--arch", "roformer_tiny"]),  # the name alone applies the preset
        (
            ["+model._name=roformer_wmt", "+model.encoder_layers=1", "+model.decoder_layers=1", "+model.dropout=0.3"],
            ["--arch", "roformer_wmt", "--encoder-layers", 1, "--decoder-layers", 1, "--dropout", 0.3],
        ),
    ],
)  # fmt: skip
def test_hydra_s_options_are_the_flags(digits, overrides, flags):
    assert built(compose(*overrides).model, digits) == built(by_flags(digits, *flags).model, digits)


@pytest.mark.real_programs
def test_train_by_hydra_and_generate(digits, tmp_path):
    """The real program, from another folder; its checkpoint is that of the same run by flags, and translates."""
    settings = {
        "model": "roformer_tiny", "common.user_dir": helpers.USER_DIR, "common.cpu": "true", "common.seed": 1,
        "task.data": digits, "checkpoint.save_dir": tmp_path / "hydra", "checkpoint.no_epoch_checkpoints": "true",
        "dataset.max_tokens": 400, "dataset.num_workers": 0, "optimization.max_update": 2, "optimization.lr": "[0.005]",
        "criterion.label_smoothing": 0.1, "hydra.run.dir": tmp_path / "run",
    }  # fmt: skip
    args = [f"{name}={value}" for name, value in settings.items()]
    helpers.run_program("fairseq-hydra-train", "--config-dir", CONFIG, *TASK, *args, cwd=tmp_path)
    runs.train(digits, tmp_path / "flags", "roformer_tiny")
    runs.assert_close(runs.parameters(tmp_path / "hydra"), runs.parameters(tmp_path / "flags"))
    by_hydra, flags = (runs.generate(digits, tmp_path / name) for name in ("hydra", "flags"))
    assert len(helpers.hypotheses(by_hydra.out)) == 20
    runs.assert_same_lines(by_hydra.out, flags.out)


def test_radam_by_file():
    """`optimizer=radam` has the defaults of `--optimizer radam`, and takes options as other optimisers do."""
    from fairseq_rope.optim.radam import RAdamConfig, parse_betas

    task = [option for option in TASK if option != "optimizer=adam"]
    cfg = compose(
        "model=admin_tiny", "optimizer=radam", "optimizer.adam_betas=[0.9,0.98]", "optimization.lr=[0.001]", task=task
    )
    assert cfg.optimizer == {
        "_name": "radam", "adam_betas": [0.9, 0.98], "adam_eps": 1e-8, "weight_decay": 0.0, "lr": [0.001],
    }  # fmt: skip
    given = compose("model=admin_tiny", "optimizer=radam", task=task).optimizer
    defaults = asdict(RAdamConfig())
    assert set(given) == {"_name", *defaults}
    assert tuple(given["adam_betas"]) == parse_betas(defaults["adam_betas"])
    assert (given["adam_eps"], given["weight_decay"]) == (defaults["adam_eps"], defaults["weight_decay"])
