"""The real program, with an engine that copies: flat memory, pipes, signals, readers that leave, full disks."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import helpers
import pytest

pytestmark = pytest.mark.real_programs

# The program with an engine that answers at once, or after a moment for "slow"; it starts as fast as an exported model.
PROGRAM = """
import sys, time
sys.argv[0] = "fairseq-rope-translate"
from fairseq_rope.cli import translate
from fairseq_rope.deploy.engines import Hypothesis
from fairseq_rope.deploy.text import TextPipeline, TextSettings
from fairseq_rope.deploy.translator import Opened

class Copying:
    source_limit = target_limit = None
    def start(self, sentences, search):
        return Done(sentences)

class Done:
    def __init__(self, sentences):
        self.sentences = sentences
        slow = any("slow" in sentence for sentence in sentences)
        self.at = time.monotonic() + (0.02 if slow else 0)
    def ready(self):
        return time.monotonic() >= self.at
    def done(self):
        return len(self.sentences) * self.ready()
    def result(self):
        return [[Hypothesis(sentence, -1.0)] for sentence in self.sentences]

words = TextPipeline(TextSettings("en", "de", False, "none", "none"), None)
translate.open_model = lambda *arguments, **options: Opened(Copying(), words, [], [])
translate.main()
"""

# Its largest memory in kB, at the end.
MEASURED = (
    PROGRAM
    + """
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""
)


def start(
    *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, program=PROGRAM, **options
):
    return subprocess.Popen(
        [sys.executable, "-c", program, "model", *map(str, arguments)],
        stdin=stdin, stdout=stdout, stderr=stderr, env=helpers.environment(), **options,
    )  # fmt: skip


def finish(process, data=None):
    try:
        out, err = process.communicate(data, timeout=60)
    finally:
        process.kill()
    return process.returncode, out, (err or b"").decode()


def test_memory_does_not_grow_with_the_input(tmp_path):
    peaks = {}
    for lines in (3_000, 300_000):
        (tmp_path / "in").write_bytes(b"".join(b"line %d of a text\n" % number for number in range(lines)))
        code, out, _ = finish(
            start("--input", tmp_path / "in", "--output", tmp_path / "out", "--quiet", program=MEASURED)
        )
        peaks[lines] = int(out) / 1024
        assert code == 0
        assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()
    assert peaks[300_000] < peaks[3_000] + 10, peaks


def test_a_slow_pipe_is_answered_line_by_line():
    process = start("--quiet", stdin=subprocess.PIPE, bufsize=0)
    for line in (b"one\n", b"two three\n", b"\n", b"four\n"):
        process.stdin.write(line)
        assert process.stdout.readline() == line
    process.stdin.write(b"half a line")
    assert finish(process) == (0, b"half a line\n", "")


def test_a_named_pipe_is_read_to_its_end(tmp_path):
    os.mkfifo(tmp_path / "in")
    process = start("--input", tmp_path / "in", "--json")
    with open(tmp_path / "in", "wb") as pipe:
        pipe.write(b"one\ntwo")
    code, out, err = finish(process)
    assert code == 0 and [json.loads(line)["translation"] for line in out.splitlines()] == ["one", "two"]
    assert "translated 2 lines in" in err


def test_a_reader_that_leaves_is_no_error(tmp_path):
    (tmp_path / "in").write_bytes(b"a line of text\n" * 100_000)
    command = '"$0" -c "$1" model --quiet --input "$2" | head -3; echo "${PIPESTATUS[0]}"'
    result = subprocess.run(
        ["bash", "-c", command, sys.executable, PROGRAM, str(tmp_path / "in")],
        env=helpers.environment(), capture_output=True, timeout=60,
    )  # fmt: skip
    assert result.stdout == b"a line of text\n" * 3 + b"141\n"
    assert result.stderr == b""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_leave_whole_lines(tmp_path, number, code):
    (tmp_path / "in").write_bytes(b"".join(b"slow line %d\n" % number for number in range(200_000)))
    (tmp_path / "out").write_bytes(b"older\n")
    process = start("--input", tmp_path / "in", "--output", tmp_path / "out")
    part = tmp_path / "out.part"
    wait_for(lambda: part.exists() and part.stat().st_size > 30_000)
    begin = time.monotonic()
    process.send_signal(number)
    found, _, err = finish(process)
    assert found == code and time.monotonic() - begin < 5
    text = part.read_bytes()
    assert text.endswith(b"\n") and (tmp_path / "in").read_bytes().startswith(text)
    lines = text.count(b"\n")
    assert err == f"fairseq-rope-translate: stopped after {lines:,} lines; they are in {part}\n"
    assert (tmp_path / "out").read_bytes() == b"older\n"


def test_a_signal_leaves_whole_lines_in_a_pipe(tmp_path):
    (tmp_path / "in").write_bytes(b"".join(b"slow line %d\n" % number for number in range(200_000)))
    process = start("--input", tmp_path / "in", "--quiet")
    first = process.stdout.read1(1000)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130 and (first + out).endswith(b"\n") and "stopped after" in err
    assert (tmp_path / "in").read_bytes().startswith(first + out)


def test_a_signal_before_the_first_line_leaves_nothing(tmp_path):
    process = start("--output", tmp_path / "out", stdin=subprocess.PIPE)
    wait_for((tmp_path / "out.part").exists)
    process.send_signal(signal.SIGTERM)
    assert finish(process) == (143, b"", "fairseq-rope-translate: stopped after 0 lines\n")
    assert list(tmp_path.iterdir()) == []


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_full_disks_and_closed_streams_are_one_line(tmp_path):
    (tmp_path / "in").write_bytes(b"a line of text\n" * 3000)
    with open("/dev/full", "wb") as full:
        found = finish(start("--quiet", "--input", tmp_path / "in", stdout=full))
    message = "fairseq-rope-translate: error: cannot write {}: {}\n"
    assert found == (1, None, message.format("standard output", "No space left on device"))

    limit = 20_001  # bytes of a file: within a line
    process = start(
        "--quiet", "--input", tmp_path / "in", "--output", tmp_path / "out",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    code, _, err = finish(process)
    part = tmp_path / "out.part"
    assert (
        code == 1 and err.count("\n") == 1 and f"cannot write {part}: File too large; 1,024 lines so far are in" in err
    )
    assert part.read_bytes() == b"a line of text\n" * 1024 and not (tmp_path / "out").exists()


def test_an_exported_model_starts_in_less_than_a_second_without_torch(tmp_path):
    """Of the imports only: what the model itself takes depends on its size."""
    code = (
        "import sys; sys.argv[0] = 'fairseq-rope-translate'; from fairseq_rope.cli import translate; "
        "from fairseq_rope.prepare.moses import Tokenizer; import subword_nmt.apply_bpe, ctranslate2; "
        "print('torch' in sys.modules, 'fairseq' in sys.modules)"
    )
    pytest.importorskip("ctranslate2")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False False\n"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2  # seconds of processor, on a slow machine
