"""Progress of long stages on standard error: a tqdm bar with the time left, or a line now and then in a log file."""

import contextlib
import sys
import time

from tqdm import tqdm

tqdm.monitor_interval = 0  # its thread would be alive while worker processes are forked
LINE_SECONDS = 10


def bar(title, total, unit="pairs", initial=0, show=True):
    """A tqdm bar with rate and time left; use it as a context manager and call ``update``.

    Standard error that is no terminal gets a line at most every ten seconds in place of a moving bar.

    Args:
        title: what it says before its figures.
        total: units in all, None if not known.
        unit: ``"bytes"``, or what is counted.
        initial: units that were done before.
        show: False for a bar that prints nothing.
    """
    options = {"desc": title, "total": total, "initial": initial, "unit_scale": True, "disable": not show}
    options |= {"unit": "B", "unit_divisor": 1024} if unit == "bytes" else {"unit": f" {unit}"}
    if sys.stderr.isatty():
        return tqdm(**options, dynamic_ncols=True)
    return tqdm(**options, file=_Lines(sys.stderr), ncols=100, ascii=True, miniters=1, mininterval=LINE_SECONDS)


@contextlib.contextmanager
def library_bars(title):
    """Within, bars that a library draws on standard error get a title, and come as lines where that is no terminal."""
    if sys.stderr.isatty():
        with contextlib.redirect_stderr(_Titled(sys.stderr, title)):
            yield
        return
    lines = _Seldom(sys.stderr, title)
    try:
        with contextlib.redirect_stderr(lines):
            yield
    finally:
        lines.finish()


class _Lines:
    """A stream that is no terminal: each state of a bar becomes a line of its own."""

    def __init__(self, stream):
        self.stream, self.state = stream, ""

    def write(self, text):
        text = text.strip()
        state = text.partition("|")[0]
        if text and not (state == self.state and "100%" in state):  # tqdm says the end twice
            self.stream.write(f"{text}\n")
        self.state = state or self.state

    def flush(self):
        self.stream.flush()


class _Seldom(_Lines):
    """As above, but of the states only one every ten seconds, and the last."""

    def __init__(self, stream, title):
        super().__init__(stream)
        self.title, self.written, self.pending = title, time.monotonic(), ""

    def write(self, text):
        self.pending = text.strip() or self.pending
        if text.endswith("\n") or time.monotonic() - self.written >= LINE_SECONDS:
            self.finish()

    def finish(self):
        if self.pending:
            super().write(f"{self.title}: {self.pending}")
        self.written, self.pending = time.monotonic(), ""


class _Titled:
    """A terminal, with a title before each state of a bar that begins with a carriage return."""

    def __init__(self, stream, title):
        self.stream, self.title = stream, title

    def write(self, text):
        self.stream.write(f"\r{self.title}: {text[1:]}" if text.startswith("\r") else text)

    def __getattr__(self, name):
        return getattr(self.stream, name)
