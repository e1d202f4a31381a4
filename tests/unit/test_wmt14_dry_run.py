"""The recipes of WMT'14 by their dry runs: presets, batch arithmetic, launch, refusals; SLURM's part with stand-ins."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess

import helpers
import pytest
from fairseq import options

from fairseq_rope.cli import average

EXAMPLES = helpers.ROOT / "examples"
PAIRS = ("en-de", "en-fr")
PRESETS = ("roformer", "admin", "realformer", "big")


def bash(script, *args, cwd=None, **env):
    """Run a recipe of ``examples/`` on an environment of ``env`` alone; the finished process, outputs joined."""
    return subprocess.run(
        ["bash", str(script), *args],
        env={"PATH": os.environ["PATH"], **env},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def recipe(pair):
    return EXAMPLES / f"wmt14_{pair.replace('-', '_')}" / "run.sh"


def dry_run(pair="en-de", *stages, **env):
    """Text of a dry run that has to succeed. Its interpreter does not exist: a dry run needs none."""
    done = bash(recipe(pair), "--dry-run", *stages, FAIRSEQ_ROPE_PYTHON="/nonexistent", **{"GPUS": "1", **env})
    assert done.returncode == 0, done.stdout
    return done.stdout


def refusal(pair="en-de", *stages, **env):
    """The one line of a run that has to be refused."""
    done = bash(recipe(pair), *stages, FAIRSEQ_ROPE_PYTHON="/nonexistent", **env)
    assert done.returncode == 2 and done.stdout.count("\n") == 1, done.stdout
    return done.stdout


def commands(text):
    """{program: its words} of a dry run, launchers left out."""
    found = {}
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        while words and not words[0].startswith("fairseq"):
            words = words[1:]
        if words:
            found[words[0]] = words[1 : words.index(">") if ">" in words else None]
    return found


def option(words, name):
    assert words.count(name) == 1, (name, words)
    return words[words.index(name) + 1]


# What makes a preset, by the tables of the papers and logs (examples/wmt14_*/run.sh names them), for one GPU.
EXPECTED = {
    ("en-de", "roformer"): "roformer_wmt adam 5e-4 4000 32768 max-update=100000 update-checkpoints=5",
    ("en-de", "admin"): "admin_wmt radam 1e-3 8000 32768 max-update=500000 max-epoch=100 epoch-checkpoints=10",
    ("en-de", "realformer"): "realformer_admin_wmt radam 5e-4 8000 32768 max-epoch=50 epoch-checkpoints=25",
    ("en-de", "big"): "roformer_wmt_big adam 1e-3 4000 458752 max-update=24000 epoch-checkpoints=10 dropout=0.3",
    ("en-fr", "roformer"): "roformer_wmt adam 5e-4 4000 32768 max-update=100000 update-checkpoints=5",
    ("en-fr", "admin"): "admin_wmt radam 7e-4 8000 640000 max-epoch=50 epoch-checkpoints=10",
    ("en-fr", "realformer"): "realformer_admin_wmt radam 1.2e-3 8000 640000 max-epoch=50 epoch-checkpoints=25",
    ("en-fr", "big"): "roformer_wmt_big adam 7e-4 4000 655360 max-update=80000 epoch-checkpoints=10 dropout=0.1",
}
GPU_TOKENS = {
    "en-de": {"roformer": 4096, "admin": 8192, "realformer": 8192, "big": 3584},
    "en-fr": {"roformer": 4096, "admin": 8000, "realformer": 8000, "big": 5120},
}


@pytest.mark.parametrize("machines, gpus", [(1, 1), (1, 8), (2, 8)])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("pair", PAIRS)
def test_a_preset_on_1_8_and_16_gpus(pair, preset, machines, gpus):
    text = dry_run(pair, PRESET=preset, GPUS=str(gpus), NODES=str(machines))
    found = commands(text)
    train, generate = found["fairseq-train"], found["fairseq-generate"]
    arch, optimiser, rate, warmup, tokens, *others = EXPECTED[pair, preset].split()
    processes = machines * gpus

    assert option(train, "--arch") == arch and option(train, "--optimizer") == optimiser
    assert option(train, "--lr") == rate and option(train, "--warmup-updates") == warmup
    others = dict(word.split("=") for word in others)
    for name in ("max-update", "max-epoch", "dropout"):
        assert name not in others or option(train, f"--{name}") == others[name]
        assert name in others or f"--{name}" not in train or name == "dropout"
    batch, accumulated = int(option(train, "--max-tokens")), int(option(train, "--update-freq"))
    assert batch <= GPU_TOKENS[pair][preset]
    assert batch * accumulated * processes == int(tokens)  # 8 and 16 divide all presets' tokens
    assert f"{int(tokens):,} tokens an update (the preset's: {int(tokens):,})\n" in text
    if preset == "realformer":
        assert option(train, "--lr-scheduler") == "polynomial_decay" and option(train, "--power") == "1"
        assert option(train, "--total-num-update") == "<updates per epoch x 50>" and "--warmup-init-lr" not in train
        assert f"--processes {processes} --update-freq {accumulated}" in text
    else:
        assert option(train, "--lr-scheduler") == "inverse_sqrt" and option(train, "--warmup-init-lr") == "1e-7"
    assert ("--threshold-loss-scale" in train) == (preset in ("admin", "realformer"))
    assert "--fp16" in train and "--fp16" in generate and "--cpu" not in train

    (name, number) = next((name, value) for name, value in others.items() if name.endswith("checkpoints"))
    assert option(found["fairseq-rope-average"], f"--num-{name}") == number
    if name == "epoch-checkpoints":
        assert option(train, "--keep-last-epochs") == number and "--no-epoch-checkpoints" not in train
    else:
        assert option(train, "--keep-interval-updates") == number and "--no-epoch-checkpoints" in train
        assert int(option(train, "--max-update")) % int(option(train, "--save-interval-updates")) == 0
    assert [option(generate, word) for word in ("--beam", "--lenpen")] == (
        ["4", "0.6"] if pair == "en-de" else ["5", "0.8"]
    )
    assert option(found["fairseq-rope-score"], "--pair") == pair

    prepare = " ".join(found["fairseq-rope-prepare"])
    if pair == "en-fr":
        assert "--recipe fairseq --out" in prepare
    elif preset in ("roformer", "big"):
        assert "--recipe fairseq --news-commentary v9 --bpe-merges 37000 --vocab-size 37000 --out" in prepare
    else:
        assert "--recipe admin --out" in prepare

    if processes == 1:
        assert "torchrun" not in text and option(train, "--distributed-world-size") == "1"
    elif machines == 1:
        assert f"torchrun --no-python --nproc-per-node {gpus} --standalone fairseq-train" in text
    else:
        rendezvous = "--nnodes 2 --node-rank 0 --rdzv-backend static --rdzv-endpoint MASTER:PORT"
        assert f"torchrun --no-python --nproc-per-node {gpus} {rendezvous} fairseq-train" in text


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("preset", PRESETS)
def test_the_programs_read_these_commands(pair, preset):
    found = commands(dry_run(pair, PRESET=preset))
    train = [word.replace("<updates per epoch x 50>", "1000") for word in found["fairseq-train"]]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=train)
    assert args.share_all_embeddings and args.label_smoothing == 0.1 and args.clip_norm == 0.0
    assert args.dropout == (0.3 if (pair, preset) == ("en-de", "big") else 0.1)
    assert args.attention_dropout == args.activation_dropout == (0.1 if preset in ("admin", "realformer") else 0.0)
    options.parse_args_and_arch(options.get_generation_parser(), input_args=found["fairseq-generate"])
    average.parser().parse_args(found["fairseq-rope-average"])


def test_a_dry_run_is_a_shell_script_and_writes_nothing(tmp_path):
    out = tmp_path / "no such folder" / "it's"
    env = {"GPUS": "1", "OUT": str(out), "PRESET": "realformer", "TRAIN_ARGS": "--tensorboard-logdir a;b"}
    done = bash(recipe("en-de"), "--dry-run", cwd=tmp_path, **env)
    assert [re.search(r"\[(\d)/5\] (\w+)", line)[0] for line in done.stdout.splitlines() if "/5]" in line] == [
        "[1/5] prepare", "[2/5] train", "[3/5] average", "[4/5] generate", "[5/5] score",
    ]  # fmt: skip
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True).returncode == 0
    assert shlex.split(done.stdout.splitlines()[1]) == ["mkdir", "-p", str(out), "&&", "cd", str(out)]
    assert commands(done.stdout)["fairseq-train"][-1] == "a;b"
    assert list(tmp_path.iterdir()) == []


def test_stages_by_name():
    text = dry_run("en-fr", "score", "average")
    assert "[3/5] average" in text and "[5/5] score" in text and "train" not in commands(text)
    assert set(commands(text)) == {"fairseq-rope-average", "fairseq-rope-score"}


def test_options_reach_the_commands(tmp_path):
    text = dry_run(
        LIMIT="1500", WORKERS="2", MIRROR="http://127.0.0.1:1/m /a/folder", DOWNLOADS="/d", SEED="7", MAX_UPDATE="9",
        MAX_EPOCH="3", DATA="/shared/data", GENERATE_ARGS="--beam 9", TRAIN_ARGS="--bf16 --dropout 0.2",
    )  # fmt: skip
    found = commands(text)
    prepare, train, generate = (found[f"fairseq-{name}"] for name in ("rope-prepare", "train", "generate"))
    assert " ".join(prepare).endswith(
        "--out /shared/data --mirror http://127.0.0.1:1/m --mirror /a/folder --downloads /d --limit 1500 --workers 2"
    )
    assert train[0] == generate[0] == "/shared/data/data-bin"
    assert option(found["fairseq-rope-score"], "--ref") == "/shared/data/raw/newstest2014.de"
    assert [option(train, name) for name in ("--seed", "--max-update", "--max-epoch")] == ["7", "9", "3"]
    assert train[-3:] == ["--bf16", "--dropout", "0.2"] and "--fp16" not in train
    assert generate[-2:] == ["--beam", "9"]


@pytest.mark.parametrize(
    "preset, arch, full, deep",
    [
        ("roformer", "tupe_r", "tupe_r_wmt", False),
        ("big", "admin", "admin_wmt_big", False),
        ("big", "realformer_wmt", "realformer_wmt", False),
        ("admin", "realformer_admin_wmt_18l", "realformer_admin_wmt_18l", True),
        ("realformer", "admin_wmt_60l_12l", "admin_wmt_60l_12l", True),
        ("roformer", "realformer_wmt_12l", "realformer_wmt_12l", True),
        ("roformer", "roformer_tiny", "roformer_tiny", False),
        ("admin", "transformer_wmt_en_de", "transformer_wmt_en_de", False),
    ],
)
def test_architectures(preset, arch, full, deep):
    train = commands(dry_run("en-fr", "train", PRESET=preset, ARCH=arch))["fairseq-train"]
    assert option(train, "--arch") == full
    assert ("--checkpoint-activations" in train) == deep
    if full.endswith("_60l_12l"):  # 16 GPUs x 5000 x 16
        assert [option(train, name) for name in ("--max-tokens", "--update-freq")] == ["5000", "256"]


def arithmetic(text):
    """(processes, tokens of a batch, batches, tokens an update, the preset's) of a dry run's sentence."""
    (line,) = [line for line in text.splitlines() if "the preset's" in line]
    number = r"([\d,]+)"
    match = re.fullmatch(
        rf"# {number} \D+?(?: \(\d+ machines x \d+\))? x {number} tokens x {number} batch(?:es)? accumulated = "
        rf"{number} tokens an update \(the preset's: {number}\)(?:, {number} fewer since a batch is a whole .*)?",
        line,
    )
    processes, batch, accumulated, reached, wanted = (int(text.replace(",", "")) for text in match.groups()[:5])
    assert processes * batch * accumulated == reached == wanted - int(match[6] or 0)
    return processes, batch, accumulated, reached, wanted


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    "env", [{"GPUS": "3"}, {"GPUS": "7"}, {"GPUS": "7", "NODES": "3"}, {"GPUS": "5", "MAX_TOKENS": "1111"}]
)
def test_batch_arithmetic_of_odd_counts(preset, env):
    processes, batch, accumulated, reached, wanted = arithmetic(dry_run("en-de", "train", PRESET=preset, **env))
    limit = int(env.get("MAX_TOKENS", GPU_TOKENS["en-de"][preset]))
    assert processes == int(env["GPUS"]) * int(env.get("NODES", 1))
    assert batch <= limit and wanted - reached < accumulated * processes  # no more is lost than rounding asks for
    assert (accumulated - 1) * limit * processes < wanted  # one batch fewer would not hold the preset's tokens


def test_the_arithmetic_is_a_sentence():
    assert (
        "# 1 GPU x 4,096 tokens x 8 batches accumulated = 32,768 tokens an update (the preset's: 32,768)\n" in dry_run()
    )
    assert (
        "# 16 GPUs (2 machines x 8) x 2,048 tokens x 1 batch accumulated = 32,768 tokens an update "
        "(the preset's: 32,768)\n"
    ) in dry_run(GPUS="8", NODES="2")
    assert (
        "# 3 GPUs x 3,640 tokens x 3 batches accumulated = 32,760 tokens an update (the preset's: 32,768), "
        "8 fewer since a batch is a whole number of tokens\n"
    ) in dry_run(GPUS="3")
    text = dry_run(GPUS="0", PROCESSES="2")
    assert "# 2 CPU processes x 4,096 tokens x 4 batches accumulated" in text
    train = commands(text)["fairseq-train"]
    assert "--cpu" in train and "--fp16" not in train and "torchrun --no-python --nproc-per-node 2 --standalone" in text


def test_gpus_are_found():
    assert "# 1 CPU process x" in dry_run(GPUS="", CUDA_VISIBLE_DEVICES="")
    assert "# 3 GPUs x" in dry_run(GPUS="", CUDA_VISIBLE_DEVICES="0,2,GPU-7a")
    assert "# 2 GPUs x" in dry_run(GPUS="2", CUDA_VISIBLE_DEVICES="0,1,2,3")


@pytest.mark.parametrize(
    "stages, env, message",
    [
        (["trian"], {}, "no stage 'trian'; there are: prepare train average generate score"),
        ([], {"PRESET": "small"}, "no PRESET 'small'; there are: roformer admin realformer big"),
        ([], {"ARCH": "roformer_wmt_60l_12l"}, "no architecture 'roformer_wmt_60l_12l'; there are: admin_iwslt"),
        ([], {"ARCH": "transformer_lm_gpt"}, "transformer_lm_gpt is a language model"),
        ([], {"MAX_UPDATE": "1e5"}, "MAX_UPDATE must be a whole number of at least 1, not '1e5'"),
        ([], {"MAX_EPOCH": "0"}, "MAX_EPOCH must be a whole number of at least 1, not '0'"),
        ([], {"LIMIT": "all"}, "LIMIT must be a whole number"),
        ([], {"SEED": "-1"}, "SEED must be a whole number"),
        ([], {"GPUS": "eight"}, "GPUS must be a whole number"),
        ([], {"GPUS": "0", "PROCESSES": "0"}, "PROCESSES must be a whole number"),
        ([], {"GPUS": "2", "PROCESSES": "2"}, "PROCESSES=2 is for machines without GPUs: here GPUS=2"),
        ([], {"MAX_TOKENS": "250"}, "MAX_TOKENS=250 is too few: the longest training sentences have 251 tokens"),
        ([], {"GPUS": "8", "NODES": "17", "MASTER": "h:1"}, "each would get 240"),
        ([], {"NODES": "2"}, "NODES=2 needs MASTER=HOST:PORT"),
        ([], {"NODES": "2", "MASTER": "host"}, "MASTER must be HOST:PORT, not 'host'"),
        ([], {"NODES": "2", "MASTER": "host:29x0"}, "MASTER must be HOST:PORT, not 'host:29x0'"),
        ([], {"NODES": "2", "MASTER": "host:"}, "MASTER must be HOST:PORT, not 'host:'"),
        ([], {"MAX_TOKENS": "99999999999999999999"}, "is too large"),
        ([], {"NODES": "2", "MASTER": "h:1", "NODE_RANK": "2"}, "with NODES=2 it must be from 0 to 1"),
        ([], {"NODE_RANK": "1"}, "NODE_RANK=1: with NODES=1 it must be from 0 to 0"),
        ([], {"FSDP": "1", "GPUS": "0"}, "FSDP=1 needs GPUs"),
        ([], {"FSDP": "yes", "GPUS": "1"}, "FSDP must be 1 or not set, not 'yes'"),
        ([], {"TRAIN_ARGS": "--update-freq 3"}, "TRAIN_ARGS: --update-freq is worked out by this recipe"),
        ([], {"TRAIN_ARGS": "--save-dir=x"}, "TRAIN_ARGS: --save-dir is worked out by this recipe"),
        ([], {"TRAIN_ARGS": "--lr 1 --arch x"}, "TRAIN_ARGS: --arch is worked out by this recipe"),
    ],
)  # fmt: skip
def test_refusals(stages, env, message, tmp_path):
    env = {"OUT": str(tmp_path / "out"), "CUDA_VISIBLE_DEVICES": "", **env}
    for pair in PAIRS:
        assert message in refusal(pair, *stages, **env)
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_variable():
    text = bash(recipe("en-fr"), "--help").stdout
    assert "examples/wmt14_en_fr/run.sh [--dry-run] [STAGE...]" in text
    known = set(re.findall(r"\b[A-Z][A-Z_]{2,}\b", text))
    assert known >= {
        "PRESET", "ARCH", "OUT", "DATA", "MIRROR", "LIMIT", "DOWNLOADS", "WORKERS", "SEED", "MAX_UPDATE", "MAX_EPOCH",
        "MAX_TOKENS", "GPUS", "PROCESSES", "NODES", "NODE_RANK", "MASTER", "FSDP", "TRAIN_ARGS", "GENERATE_ARGS",
        "FAIRSEQ_ROPE_PYTHON", "PROGRESS_SECONDS",
    }  # fmt: skip


def test_shell_syntax():
    scripts = [recipe(pair) for pair in PAIRS] + sorted(EXAMPLES.glob("wmt14_*/slurm.sbatch"))
    assert len(scripts) == 4
    for script in [*scripts, *EXAMPLES.glob("wmt14*.sh")]:
        assert bash("-n", str(script)).stdout == ""
    if shutil.which("shellcheck"):
        done = subprocess.run(
            ["shellcheck", "-x", *map(str, scripts)], cwd=helpers.ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


# ---- What the READMEs say


@pytest.fixture(scope="module")
def estimate():
    """benchmarks/estimate.py as a module."""
    spec = importlib.util.spec_from_file_location("estimate", helpers.ROOT / "benchmarks" / "estimate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("pair", PAIRS)
def test_the_readme_says_what_the_recipe_does(pair, estimate):
    readme = (recipe(pair).parent / "README.md").read_text(encoding="utf-8")
    for preset in PRESETS:
        cells = []
        for gpus in ("1", "4", "8", "16"):
            _, batch, accumulated, _, wanted = arithmetic(dry_run(pair, "train", PRESET=preset, GPUS=gpus))
            cells.append(f"{batch:,} x {accumulated}")
        assert f"| `{preset}` | {wanted:,} | {' | '.join(cells)} |\n" in readme
    assert estimate.report(pair) in readme


def test_estimates_scale_as_they_should(estimate):
    run = estimate.read_recipe("en-fr", "realformer", "realformer_admin_wmt_60l_12l")
    assert (run.tokens, run.batch, run.epochs, run.updates, run.checkpointing) == (1_280_000, 5000, 50, None, True)
    deep = estimate.Estimate("en-fr", run)
    # 60 x (4 d^2 + 2 d f) + 12 x (8 d^2 + 2 d f) weights and the shared embeddings; the rest is biases and norms
    weights = 60 * (4 * 512**2 + 2 * 512 * 2048) + 12 * (8 * 512**2 + 2 * 512 * 2048) + 512 * 44_500
    assert weights < deep.parameters < 1.002 * weights + 72 * 20 * 512
    assert deep.hours("V100", 4) == pytest.approx(2 * deep.hours("V100", 8)) and deep.hours("H100") < deep.hours("A100")
    assert deep.utilisation("A100", 16, deep.hours("A100", 16)) == pytest.approx(estimate.UTILISATION[512])
    shallow = estimate.Estimate("en-fr", estimate.read_recipe("en-fr", "admin", "admin_wmt"))
    # 6 FLOP a weight and token are the bulk; attention at 33 tokens is a few per cent
    assert shallow.flops == pytest.approx(50 * 36e6 * 33 * 6 * shallow.parameters, rel=0.05)
    assert 0 < deep.tokens_within(16) < deep.tokens_within(80) == run.batch and deep.tokens_within(2) == 0
