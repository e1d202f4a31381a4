"""``fairseq-rope-translate``: raw text in, translated raw text out, line by line."""

import json
import os
import re
import stat
import sys
import time
from collections import deque
from contextlib import nullcontext

from fairseq_rope.cli.program import Parser, one_line_errors
from fairseq_rope.deploy.engines import BATCH_TOKENS, DEVICES, Search
from fairseq_rope.deploy.lines import LineReader
from fairseq_rope.deploy.output import LineOutput, Stopped, StopSignals, check_output
from fairseq_rope.deploy.text_options import add_text_options
from fairseq_rope.deploy.translation_log import TranslationLog, counted
from fairseq_rope.deploy.translator import IN_FLIGHT, MAX_SOURCE, LineTranslator, Translation, open_model
from fairseq_rope.errors import UserError
from fairseq_rope.files import same_file
from fairseq_rope.prepare.workers import cores

PROG = "fairseq-rope-translate"
TICK = 0.005  # seconds between two looks whether input or translations have come
BROKEN_PIPE = 141  # what a shell reports for a program whose reader has gone
_LINE_ENDS_IN_JSON = re.compile("[\x85\u2028\u2029]")


def parser():
    """Return the argument parser."""
    p = Parser(
        prog=PROG,
        description="Translate plain text, one line of output for each line of input, in order. Only a line feed ends "
        "a line; lines without text stay empty. A line that is too long for the model is translated in parts, with a "
        "warning. Results come window by window, from a pipe or terminal as they are typed.",
    )
    p.add_argument(
        "model",
        metavar="MODEL",
        help="a folder made by fairseq-rope-export, or a checkpoint with --data; several checkpoints joined by ':' are "
        "an ensemble",
    )
    p.add_argument("--data", metavar="DIR", help="data folder of the checkpoint, with its dictionaries")
    p.add_argument("--input", default="-", metavar="FILE", help="text to translate (default: standard input)")
    p.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="where to (default: standard output); written as FILE.part, which is renamed at the end",
    )
    p.add_argument("--beam", type=int, default=4, metavar="N", help="width of the beam search (default: %(default)s)")
    p.add_argument("--lenpen", type=float, default=0.6, metavar="X", help="length penalty (default: %(default)s)")
    p.add_argument(
        "--max-len-a", type=float, default=0.0, metavar="A", help="a translation has at most A x + B subwords, where x"
    )
    p.add_argument(
        "--max-len-b", type=int, default=200, metavar="B", help="is the source's length (default: A 0, B 200)"
    )
    p.add_argument(
        "--max-source",
        type=int,
        default=MAX_SOURCE,
        metavar="N",
        help="translate lines of more than N subwords sentence by sentence (0: never; default: %(default)s)",
    )
    p.add_argument(
        "--batch-tokens", type=int, default=BATCH_TOKENS, metavar="N", help="subwords a batch (default: %(default)s)"
    )
    p.add_argument(
        "--threads", type=int, default=cores(), metavar="N", help="default: the cores there are, %(default)s"
    )
    p.add_argument("--device", choices=DEVICES, default="cpu", help="default: %(default)s")
    p.add_argument(
        "--n-best",
        type=int,
        metavar="N",
        help="N lines a source line: its number, score and translation, separated by tabs; of a line in several parts, "
        "number n joins the parts' number n and its score is their sum",
    )
    p.add_argument(
        "--scores",
        action="store_true",
        help="a score and a tab before each translation: as fairseq prints it (log-probability to base 2, divided "
        "by length to the power of --lenpen)",
    )
    p.add_argument(
        "--json", action="store_true", help="one JSON object a line: line, source, translation, score, nbest, warnings"
    )
    p.add_argument("--quiet", action="store_true", help="no progress and no summary, only warnings and errors")
    add_text_options(p)
    return p


def formatted(translation: Translation, options) -> list[str]:
    """The lines of output of one line of input, without line ends."""
    many = options.n_best is not None and options.n_best > 1
    if options.json:
        content = {
            "line": translation.line,
            "source": translation.source,
            "translation": translation.text,
            "score": translation.score,
        }
        if options.n_best is not None:
            content["nbest"] = [{"translation": text, "score": score} for text, score in translation.nbest]
        content["warnings"] = translation.warnings
        text = json.dumps(content, ensure_ascii=False)
        return [_LINE_ENDS_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)]
    if many:
        return [f"{translation.line}\t{score:.6f}\t{text}" for text, score in translation.nbest]
    return [f"{translation.score:.6f}\t{translation.text}"] if options.scores else [translation.text]


def check_options(options):
    """Refuse what can be told to be wrong before a model is loaded.

    Raises:
        UserError: a value or file that is not possible.
    """
    if options.threads < 1:
        raise UserError(f"--threads {options.threads} is not possible: it has to be at least 1")
    if options.max_source < 0:
        raise UserError(f"--max-source {options.max_source} is not possible: it is a number of subwords, or 0 for any")
    if options.input != "-":
        if os.path.isdir(options.input):
            raise UserError(f"cannot read {options.input}: it is a folder, give a file")
        if not os.path.exists(options.input):
            raise UserError(f"cannot read {options.input}: there is no such file")
    check_output(options.output)
    if "-" not in (options.input, options.output) and not _is_device(options.input):
        for written in (options.output, options.output + ".part"):
            if same_file(options.input, written):
                raise UserError(f"--output {options.output} would overwrite the input: choose another name")


def _is_device(path):
    return stat.S_ISCHR(os.stat(path).st_mode)


def open_input(path: str):
    """The input as a binary stream, a context manager.

    Raises:
        UserError: it cannot be read.
    """
    if path != "-":
        try:
            return open(path, "rb", buffering=0)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if sys.stdin is None:
        raise UserError("standard input is closed: give --input FILE")
    return nullcontext(getattr(sys.stdin, "buffer", sys.stdin))


def translate(reader, translator: LineTranslator, output: LineOutput, options, log: TranslationLog, under_way: deque):
    """Translate all lines of ``reader`` into ``output``, at most two windows of them in memory.

    Args:
        reader: a :class:`~fairseq_rope.deploy.lines.LineReader`.
        translator, output, options, log: what its lines go through.
        under_way: empty; holds the windows that the engine works on.
    """
    while under_way or not reader.exhausted:
        room = len(under_way) < IN_FLIGHT and not reader.exhausted
        if room and (not under_way or reader.ready()):
            window = reader.window()
            if window:
                under_way.append((translator.start(window), reader.handed))
        elif under_way[0][0].ready():
            running, handed = under_way.popleft()
            results = running.result()
            lines = [line for translation in results for line in formatted(translation, options)]
            output.write(lines, len(results))
            log.finished(results, running.sentences, handed)
        else:
            log.working(under_way[0][0], under_way[0][1])
            time.sleep(TICK)


def run(options, under_way: deque) -> int:
    """Translate as ``options`` say; returns the exit code. ``under_way`` is as for :func:`translate`."""
    search = Search(
        options.beam,
        options.lenpen,
        1 if options.n_best is None else options.n_best,
        options.max_len_a,
        options.max_len_b,
        options.batch_tokens,
    )
    check_options(options)
    log = TranslationLog(PROG, options.quiet)
    output = None
    with StopSignals() as signals:
        try:
            opened = open_model(options.model, options.data, options, options.threads, options.device)
            log.opened(opened)
            translator = LineTranslator(opened.engine, opened.text, search, options.max_source)
            output = LineOutput(options.output, signals)
            with open_input(options.input) as stream:
                reader = LineReader(stream)
                log.started(stream)
                translate(reader, translator, output, options, log, under_way)
            output.complete()
        except Stopped as stop:
            log.stopped(output)
            return 128 + stop.number
        except BrokenPipeError:
            return BROKEN_PIPE
        except UserError as error:
            if output is None or not (output.part and output.sources):
                raise
            raise UserError(f"{error}; {counted(output.sources, 'line')} so far are in {output.part}") from error
        finally:
            log.close()
            if output is not None:
                output.close()
    log.summary(output)
    return 0


def main(argv=None, leave=os._exit):
    """Entry point of ``fairseq-rope-translate``.

    Args:
        argv: arguments; defaults to the command line.
        leave: ends the program at once, where it stops with batches under way: their threads would be waited for.
    """
    options = parser().parse_args(argv)
    under_way = deque()
    try:
        with one_line_errors(PROG):
            code = run(options, under_way)
    except SystemExit as stop:
        code = stop.code
    if code and under_way:
        sys.stderr.flush()
        leave(code)
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    main()
