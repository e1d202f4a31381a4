"""The recipes of WMT'14: their stages with stand-ins for the programs, and end to end on a tiny mirror of the data."""

import contextlib
import functools
import http.server
import importlib.util
import io
import json
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time

import helpers
import pytest
import runs

pytestmark = pytest.mark.real_programs

EXAMPLES = helpers.ROOT / "examples"


def spawn(pair, *args, **env):
    """Start a recipe."""
    script = EXAMPLES / f"wmt14_{pair.replace('-', '_')}" / "run.sh"
    return helpers.spawn_script(script, *args, PROGRESS_SECONDS="30", **env)


def run(pair, *args, code=0, **env):
    return helpers.finish(spawn(pair, *args, **env), code)


def load(path):
    """An example's Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- Stages, with stand-ins

PROGRAMS = {
    # the interpreter: where its programs are, what it can import and sees, common.sh's script, and the count of updates
    "python": 'case "$1:$2" in -c:*sysconfig*) dirname "$0" ;; -c:*fairscale*) [ -n "$FAIRSCALE" ] ;;\n'
    "-c:*torch*) echo 2 ;; -:*) cat >/dev/null ;; *updates_per_epoch.py:*) note; echo 7 ;; *) exit 9 ;; esac",
    "fairseq-rope-prepare": "note; mkdir -p data; touch data/manifest.json",
    "fairseq-train": "note; mkdir -p checkpoints; cd checkpoints; touch checkpoint_last.pt $MAKES; exit ${CODE:-0}",
    "torchrun": "note; mkdir -p checkpoints; touch checkpoints/checkpoint_last.pt",
    "fairseq-rope-average": "note; touch average.tmp.pt",
    "fairseq-generate": "note; echo H-0",
    "fairseq-rope-score": "note; echo '{}' >scores.json; echo a table",
}


@pytest.fixture
def stand_ins(tmp_path):
    """(environment, OUT, calls): programs that note their calls and leave the files that the next stage needs."""
    programs, record = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        note = f'note() {{ printf "%s\\n" "{name} $*" >>"{record}"; }}'.replace("$*", "$ARGUMENTS")
        (programs / name).write_text(f'#!/bin/bash\nARGUMENTS="$*"\n{note}\n{text}\n', encoding="utf-8")
        (programs / name).chmod(0o755)

    def calls():
        lines = record.read_text().splitlines() if record.exists() else []
        record.unlink(missing_ok=True)
        return [shlex.split(line) for line in lines]

    env = {"FAIRSEQ_ROPE_PYTHON": str(programs / "python"), "OUT": str(tmp_path / "out"), "CUDA_VISIBLE_DEVICES": ""}
    return env, tmp_path / "out", calls


def test_stages_run_once_and_keep_the_schedule(stand_ins):
    env, out, calls = stand_ins
    env = {**env, "PRESET": "realformer"}
    text = run("en-de", **env, MAKES="checkpoint1.pt checkpoint2.pt checkpoint_1_3.pt")
    made = calls()
    assert [call[0] for call in made] == [
        "fairseq-rope-prepare", "python", "fairseq-train", "fairseq-rope-average", "fairseq-generate",
        "fairseq-rope-score",
    ]  # fmt: skip
    assert [f"[{number}/5] {name}\n" in text for number, name in enumerate(
        ("prepare", "train", "average", "generate", "score"), 1
    )] == [True] * 5  # fmt: skip
    assert "1 CPU process x 8,192 tokens x 4 batches accumulated" in text
    assert "linear decay to 0 in 350 updates (7 an epoch)" in text
    assert made[2][made[2].index("--total-num-update") + 1] == "350"
    assert "note: the preset averages the last 25 epoch checkpoints, but there are only 2\n" in text
    assert made[3][1:5] == ["--inputs", "checkpoints", "--num-epoch-checkpoints", "2"]
    assert "\na table\n" in text and (out / "score.txt").read_text() == "a table\n"

    text = run("en-de", **env)
    assert text.count("finished earlier, reused") == 5 and calls() == [] and "\na table\n" in text

    text = run("en-de", **env, GENERATE_ARGS="--beam 1")  # only what depends on it is made again
    assert [call[0] for call in calls()] == ["fairseq-generate", "fairseq-rope-score"]
    assert "translating and scoring again" in text

    (out / "train.done").unlink()  # resumed on other machines: other batches, the same schedule
    text = run("en-de", "train", **env, PROCESSES="3")
    ((program, *words),) = calls()
    assert program == "torchrun" and words[words.index("--total-num-update") + 1] == "350"
    assert "3 CPU processes x 5,461 tokens x 2 batches accumulated = 32,766 tokens" in text

    text = run("en-de", **env, MAX_EPOCH="9", code=1)
    assert "before: max_epoch=50" in " ".join(text.split()) and calls() == []


def test_a_stage_without_its_input_names_the_stage_that_makes_it(stand_ins):
    env, out, calls = stand_ins
    for stage, missing, maker in (
        ("train", "data/manifest.json", "prepare"),
        ("average", "train.done", "train"),
        ("generate", "average.pt", "average"),
        ("score", "test.gen", "generate"),
    ):
        text = run("en-fr", stage, **env, code=1)
        assert text.endswith(f"there is no {out / missing}: the stage '{maker}' makes it, and has to finish first\n")
    assert calls() == []


def test_short_and_failed_trainings(stand_ins):
    env, out, calls = stand_ins
    text = run("en-fr", "prepare", "train", **env, MAX_UPDATE="3", CODE="1", code=1)
    assert "training failed with exit code 1" in text and not (out / "train.done").exists()
    calls()
    text = run("en-fr", "prepare", "train", "average", **env, MAX_UPDATE="3")
    train, average = calls()
    assert train[train.index("--max-update") + 1] == "3"
    assert "shorter than the preset's first update checkpoint: the last state alone is used" in text
    assert average[1:] == ["--inputs", "checkpoints/checkpoint_last.pt", "--output", "average.tmp.pt"]
    (out / "average.pt").unlink()
    for update in range(1, 8):
        (out / "checkpoints" / f"checkpoint_1_{update}.pt").touch()
    text = run("en-fr", "average", **env, MAX_UPDATE="3")
    assert "note" not in text and calls()[0][1:5] == ["--inputs", "checkpoints", "--num-update-checkpoints", "5"]


def test_other_machines_only_train(stand_ins):
    env, out, calls = stand_ins
    machines = {"NODES": "2", "MASTER": "127.0.0.1:29500", **env}
    assert "machine 0 has not begun this run" in run("en-de", "train", **machines, NODE_RANK="1", code=1)
    assert not out.exists()
    run("en-de", "prepare", **machines)
    calls()
    text = run("en-de", **machines, NODE_RANK="1")
    ((program, *words),) = calls()
    assert program == "torchrun" and "--node-rank 1 --rdzv-backend static" in " ".join(words)
    assert text.count("runs on machine 0 only") == 4 and "[2/5] train (machine 1 of 2)" in text
    assert (out / "train.machine1.log").exists() and not (out / "train.done").exists()
    text = run("en-de", "train", **machines, NODE_RANK="1", SEED="2", code=1)
    assert "seed=1 there;seed=2 here" in text and calls() == []


def test_shared_data_are_checked_by_every_run(stand_ins, tmp_path):
    """fairseq-rope-prepare itself refuses data of another recipe, so it is asked although its result is there."""
    env, _, calls = stand_ins
    data = tmp_path / "shared data"
    for seed in ("1", "2"):
        (data / "data").mkdir(parents=True, exist_ok=True)
        (data / "manifest.json").touch()
        run("en-de", "prepare", "train", **{**env, "OUT": f"{env['OUT']} {seed}", "DATA": str(data), "SEED": seed})
        prepare, train = calls()
        assert prepare[prepare.index("--out") :][1:3] == str(data).split() and train[1:3] == f"{data}/data-bin".split()


def test_gpus_and_fairscale_are_checked_before_the_training(stand_ins):
    env, out, calls = stand_ins
    text = run("en-de", **env, GPUS="8", FSDP="1", code=1)
    assert "FSDP=1 needs the package fairscale" in text and text.count("\n") == 1 and not out.exists()
    text = run("en-de", **env, GPUS="8", FSDP="1", FAIRSCALE="yes", code=1)
    assert "GPUS=8, but torch sees 2 on this machine" in text
    assert [call[0] for call in calls()] == ["fairseq-rope-prepare"]
    run("en-de", "train", **env, GPUS="2", FSDP="1", FAIRSCALE="yes")
    ((_, *words),) = calls()
    assert words[words.index("--ddp-backend") + 1] == "fully_sharded" and "--fp16" in words


def test_torchrun_numbers_the_ranks_of_two_machines(tmp_path):
    """The recipe's launcher with the real torchrun, both machines being this one: ranks follow the machine's number."""
    program = tmp_path / "fairseq-train"
    program.write_text('#!/bin/bash\n>"$RANKS/$NODE.$LOCAL_RANK.$RANK.$WORLD_SIZE.$LOCAL_WORLD_SIZE"\n')
    program.chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "ranks").mkdir()
    machines = []
    for node in (1, 0):
        env = {"NODES": "2", "NODE_RANK": str(node), "MASTER": f"127.0.0.1:{port}", "GPUS": "0", "PROCESSES": "2"}
        text = run("en-de", "--dry-run", "train", **env)
        words = shlex.split(text, comments=True)
        words = words[words.index("torchrun") :]
        env = helpers.environment(
            PATH=f"{tmp_path}:{os.environ['PATH']}", RANKS=str(tmp_path / "ranks"), NODE=str(node)
        )
        machines.append(subprocess.Popen([helpers.script("torchrun"), *words[1:]], env=env, stderr=subprocess.DEVNULL))
    assert [machine.wait(120) for machine in machines] == [0, 0]
    assert sorted(path.name for path in (tmp_path / "ranks").iterdir()) == [
        "0.0.0.4.2",
        "0.1.1.4.2",
        "1.0.2.4.2",
        "1.1.3.4.2",
    ]


# ---- Updates an epoch


@pytest.mark.parametrize("seed", [1, 5])
def test_updates_per_epoch_are_those_of_a_training(digits, tmp_path, seed):
    count = functools.partial(
        load(EXAMPLES / "updates_per_epoch.py").updates_per_epoch, digits, "en", "de", 90, seed=seed
    )
    flags = ["--max-tokens", 90, "--max-epoch", 1, "--seed", seed, "--disable-validation"]
    trained = {}
    for update_freq in (1, 4):
        runs.train(
            digits, tmp_path / f"{update_freq}", "roformer_tiny", *flags, "--update-freq", update_freq, updates=999
        )
        trained[update_freq] = runs.checkpoint(tmp_path / f"{update_freq}")["optimizer_history"][-1]["num_updates"]
        assert count(update_freq=update_freq) == trained[update_freq]
    batches = trained[1]
    assert batches % 3 and batches > 8  # the last update has fewer batches, and shards are unequal
    for processes in (2, 3, 5):
        for update_freq in (1, 2, 7):
            shard = math.ceil(batches / processes)
            assert count(processes=processes, update_freq=update_freq) == math.ceil(shard / update_freq)


@pytest.mark.parametrize(
    "args, message",
    [
        (["--max-tokens", "0"], "must be a whole number of at least 1, not '0'"),
        (["--max-tokens", "90", "--processes", "x"], "must be a whole number of at least 1, not 'x'"),
        (["--max-tokens", "90", "-s", "xx"], "updates_per_epoch.py: "),
    ],
)
def test_updates_per_epoch_refuses(digits, args, message, capsys):
    with pytest.raises(SystemExit) as refused:
        load(EXAMPLES / "updates_per_epoch.py").main([str(digits), "-s", "en", "-t", "de", *args])
    assert message in str(refused.value.code) + capsys.readouterr().err


# ---- End to end


@pytest.fixture
def mirror(real_data):
    return real_data / "wmt-layout" / "mirror"


# The genuine newstest2014, 3,003 sentences, with an untrained model: as short as translations can be.
QUICK = "--beam 1 --max-len-a 0 --max-len-b 3 --max-tokens 16000"


def wait_for(path, text, process, timeout=200):
    """Until ``text`` stands in the file ``path`` that ``process`` writes."""
    deadline = time.time() + timeout
    while not (path.exists() and text in path.read_text(encoding="utf-8", errors="replace")):
        assert process.poll() is None and time.time() < deadline, text
        time.sleep(0.05)


def interrupt(process):
    os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C sends
    assert "the same command goes on from here" in helpers.finish(process, 130)


def test_en_de_from_a_folder_in_two_processes_interrupted(mirror, tmp_path):
    out = tmp_path / "out"
    env = {
        "FAIRSEQ_ROPE_PYTHON": sys.executable, "OUT": str(out), "MIRROR": str(mirror), "LIMIT": "100", "WORKERS": "1",
        "ARCH": "roformer_tiny", "MAX_TOKENS": "600", "MAX_EPOCH": "3", "CUDA_VISIBLE_DEVICES": "", "PROCESSES": "2",
        "GENERATE_ARGS": QUICK,
    }  # fmt: skip
    process = spawn("en-de", **env)
    wait_for(out / "train.log", "Saved checkpoint", process)
    interrupt(process)
    assert not (out / "train.done").exists()

    process = spawn("en-de", **env)
    wait_for(out / "test.gen.tmp", "fairseq-generate", process)
    interrupt(process)
    assert not (out / "test.gen").exists()
    log = (out / "train.log").read_text(encoding="utf-8")
    assert "Loaded checkpoint checkpoints/checkpoint_last.pt" in log and "distributed_world_size': 2" in log
    count = load(EXAMPLES / "updates_per_epoch.py").updates_per_epoch
    updates = count(out / "data" / "data-bin", "en", "de", 585, processes=2, update_freq=28)
    assert runs.checkpoint(out / "checkpoints")["optimizer_history"][-1]["num_updates"] == 3 * updates

    text = run("en-de", **env)
    assert text.count("finished earlier, reused") == 3 and "sacreBLEU" in text
    scores = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    assert scores["sentences"] == 3003
    assert len((out / "newstest2014.de").read_text(encoding="utf-8").splitlines()) == 3003


def capture(function, *args):
    """What ``function`` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        function(*args)
    return out.getvalue()


def test_en_fr_from_a_server_by_the_commands_of_a_dry_run(mirror, tmp_path, monkeypatch):
    """The printed commands are what works; a linear decay counted from the data ends at 0 with the last update."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(mirror))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *args: None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        text = run(
            "en-fr", "--dry-run", PRESET="realformer", OUT=str(tmp_path), LIMIT="60", WORKERS="1", GPUS="0",
            MIRROR=f"http://127.0.0.1:{server.server_address[1]}", ARCH="roformer_tiny", MAX_TOKENS="600",
            MAX_EPOCH="2", TRAIN_ARGS="--warmup-updates 1", GENERATE_ARGS=QUICK,
        )  # fmt: skip
        monkeypatch.chdir(tmp_path)
        results = {}
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            output = words[words.index(">") + 1] if ">" in words else None
            if not words or words[0] == "mkdir":
                continue
            if words[0] == "mv":
                os.replace(*words[1:])
            elif words[0] == "python":
                assert words[1] == str(EXAMPLES / "updates_per_epoch.py")
                counted = int(capture(load(EXAMPLES / "updates_per_epoch.py").main, words[2:]))
            else:
                words = words[: words.index(">")] if output else words
                if words[0] == "fairseq-train":
                    words[words.index("<updates per epoch x 2>")] = str(2 * counted)
                results[words[0]] = helpers.run(*words)
            if output:
                (tmp_path / output).write_text(results[words[0]].out, encoding="utf-8")
    finally:
        server.shutdown()
        server.server_close()

    updates, rate = re.findall(r"num_updates (\d+) \| lr (\S+) \|", results["fairseq-train"].log)[-1]
    assert int(updates) == 2 * counted and float(rate) == 0

    ids = [
        int(line.split("\t")[0][2:]) for line in (tmp_path / "test.gen").read_text().splitlines() if line[:2] == "H-"
    ]
    assert sorted(ids) == list(range(3003)) and ids != sorted(ids)
    scores = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    theirs = helpers.run_program(
        "sacrebleu", tmp_path / "data" / "raw" / "newstest2014.fr", "-i", tmp_path / "newstest2014.fr", "-b", "-w", "4"
    )
    assert theirs.out.strip().splitlines()[-1] == f"{scores['bleu']:.4f}"
