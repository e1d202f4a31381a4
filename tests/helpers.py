"""Runs fairseq's programs for the tests: in this process where possible, since importing fairseq takes seconds."""

import contextlib
import importlib
import io
import logging
import os
import random
import signal
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
USER_DIR = str(ROOT / "fairseq_rope")
DATA = Path(os.environ.get("FAIRSEQ_ROPE_DATA", ROOT.parent / "shared" / "data"))

# program -> module whose cli_main (or main) the console script calls
MODULES = {
    "fairseq-preprocess": "fairseq_cli.preprocess",
    "fairseq-train": "fairseq_cli.train",
    "fairseq-generate": "fairseq_cli.generate",
    "fairseq-interactive": "fairseq_cli.interactive",
    "fairseq-validate": "fairseq_cli.validate",
    "fairseq-rope-average": "fairseq_rope.cli.average",
    "fairseq-rope-doctor": "fairseq_rope.cli.doctor",
    "fairseq-rope-fold": "fairseq_rope.cli.fold",
    "fairseq-rope-plot": "fairseq_rope.cli.plot",
    "fairseq-rope-prepare": "fairseq_rope.cli.prepare",
    "fairseq-rope-score": "fairseq_rope.cli.score",
}
READ_BATCHES = ["fairseq-train", "fairseq-generate", "fairseq-validate"]


@dataclass
class Result:
    """What a program left: exit code (0 if it returned), standard output, and log records with standard error."""

    code: int
    out: str
    log: str
    error: BaseException | None = None

    @property
    def text(self):
        return self.out + self.log


class _Collect(logging.Handler):
    def __init__(self, stream):
        super().__init__()
        self.stream = stream

    def emit(self, record):
        self.stream.write(f"{record.levelname} | {record.name} | {record.getMessage()}\n")


def run(program, *args, stdin="", check=True):
    """Call ``program`` in this process with ``args``; raises what it raised unless ``check`` is False.

    Batches are made in this process too, unless ``args`` say otherwise: the end of a data worker can take seconds.
    """
    from fairseq import checkpoint_utils  # here, so that fairseq_rope is imported first and quietens it

    module = importlib.import_module(MODULES[program])
    entry = getattr(module, "cli_main", None) or module.main
    vars(checkpoint_utils.save_checkpoint).pop("best", None)  # fairseq keeps a run's best score on the function
    out, log = io.StringIO(), io.StringIO()
    root = logging.getLogger()
    handler = _Collect(log)
    level, handlers = root.level, root.handlers[:]
    argv, stdin_before, environ = sys.argv, sys.stdin, dict(os.environ)
    workers = ["--num-workers", "0"] if program in READ_BATCHES and "--num-workers" not in args else []
    sys.argv, sys.stdin = [program, *map(str, args), *workers], io.StringIO(stdin)
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    code, error = 0, None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(log):
            returned = entry()
            code = returned if isinstance(returned, int) and not isinstance(returned, bool) else 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        error = stop if code else None
        if isinstance(stop.code, str):
            log.write(stop.code + "\n")
    except Exception as caught:
        code, error = 1, caught
        log.write(f"{type(caught).__name__}: {caught}\n")
    finally:
        sys.argv, sys.stdin = argv, stdin_before
        root.handlers = handlers
        root.setLevel(level)
        os.environ.clear()
        os.environ.update(environ)
    if check and error is not None:
        raise AssertionError(
            f"{program} failed ({error!r}):\n{out.getvalue()[-3000:]}{log.getvalue()[-3000:]}"
        ) from error
    return Result(code, out.getvalue(), log.getvalue(), error)


def environment(**extra):
    """Environment for a real program: this checkout importable, one thread a process."""
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    env.update(extra)
    return env


def script(name):
    """Path of an installed console script (``fairseq-train``, ``torchrun``, …)."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def spawn(program, *args, cwd=None, **env):
    """Start the real console script ``program``; returns the Popen object, stdout and stderr joined."""
    return subprocess.Popen(
        [script(program), *map(str, args)],
        cwd=cwd,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def spawn_script(path, *args, cwd=None, **env):
    """Start a shell script in a session of its own, as from a terminal; stdout and stderr joined."""
    return subprocess.Popen(
        ["bash", str(path), *map(str, args)],
        cwd=cwd,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process, code=0, timeout=600):
    """Output of a started script that has to end with exit status ``code``."""
    try:
        out, _ = process.communicate(timeout=timeout)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code, out
    return out


def run_program(program, *args, cwd=None, timeout=240, check=True, **env):
    """Run the real console script to its end; the joined output is in ``.out``."""
    process = spawn(program, *args, cwd=cwd, **env)
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        raise AssertionError(f"{program} ran longer than {timeout} s:\n{out[-3000:]}") from None
    if check and process.returncode:
        raise AssertionError(f"{program} exited {process.returncode}:\n{out[-3000:]}")
    return Result(process.returncode, out, "")


def write_digits(folder, splits=(("train", 200), ("valid", 20), ("test", 20)), seed=1):
    """Write a toy corpus: source = digits as words, target = the same sequence reversed, in other words."""
    rng = random.Random(seed)
    source_words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    target_words = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for split, lines in splits:
        rows = [[rng.randrange(10) for _ in range(rng.randint(1, 9))] for _ in range(lines)]
        source = "".join(" ".join(source_words[d] for d in row) + "\n" for row in rows)
        target = "".join(" ".join(target_words[d] for d in reversed(row)) + "\n" for row in rows)
        (folder / f"{split}.en").write_text(source, encoding="utf-8")
        (folder / f"{split}.de").write_text(target, encoding="utf-8")
    return folder


def binarize(text, out, joined=True, splits=("train", "valid", "test"), extra=()):
    """fairseq-preprocess of a folder made by :func:`write_digits`; returns ``out``."""
    prefixes = [f"--{split}pref={Path(text) / split}" for split in splits]
    options = ["--joined-dictionary"] if joined else []
    run("fairseq-preprocess", "-s", "en", "-t", "de", *prefixes, "--destdir", out, *options, *extra)
    return Path(out)


def train_args(data, save_dir, arch, *extra, updates=2):
    """Arguments of a short, deterministic CPU training run."""
    return [
        data, "--user-dir", USER_DIR, "--arch", arch, "--cpu", "--seed", "1", "--save-dir", save_dir,
        "--task", "translation", "--optimizer", "adam", "--lr", "0.005", "--criterion", "label_smoothed_cross_entropy",
        "--label-smoothing", "0.1", "--max-tokens", "400", "--max-update", updates, "--no-progress-bar",
        "--log-interval", "1", "--no-epoch-checkpoints", *extra,
    ]  # fmt: skip


def hypotheses(text):
    """{sentence id: best hypothesis} from fairseq-generate's output (H lines)."""
    rows = [line.split("\t") for line in text.splitlines() if line.startswith("H-")]
    return {int(row[0][2:]): row[2] for row in rows}


def hypothesis_scores(text):
    """{sentence id: score} from fairseq-generate's output (H lines)."""
    rows = [line.split("\t") for line in text.splitlines() if line.startswith("H-")]
    return {int(row[0][2:]): float(row[1]) for row in rows}
