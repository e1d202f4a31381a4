"""What a translation says on standard error: what was found, progress, warnings by line, and a summary."""

import os
import stat
import sys
import time

from fairseq_rope.prepare.progress import LINE_SECONDS, bar

MOST_WARNINGS = 50  # that are shown; further ones are counted


class TranslationLog:
    """Progress and messages of one run.

    Args:
        prog: name of the program.
        quiet: show warnings only.
    """

    def __init__(self, prog: str, quiet: bool):
        self.prog, self.quiet = prog, quiet
        self.lines = self.sentences = self.warnings = 0
        self._bar, self._size, self._shown, self._typed = None, None, 0, False
        self._start = time.monotonic()

    def opened(self, opened):
        """Say what was found by itself (an :class:`~fairseq_rope.deploy.translator.Opened`)."""
        for sentence in [] if self.quiet else opened.found:
            self._say(sentence)
        for sentence in opened.warnings:
            self._say(f"warning: {sentence}")

    def started(self, stream):
        """Begin to count; ``stream`` is the input, whose size is the bar's total if it is a regular file."""
        self._start = time.monotonic()
        try:
            status, self._typed = os.fstat(stream.fileno()), stream.isatty()
            self._size = status.st_size if stat.S_ISREG(status.st_mode) else None
        except (AttributeError, OSError):
            self._size, self._typed = None, False
        if self._typed and not self.quiet:
            self._say("type a line of text and press return; Ctrl-D ends")

    def working(self, running, handed):
        """Show that of the oldest window ``running``, which ends at byte ``handed``, a part is done."""
        if self._wanted():
            self._advance(running.done() * len(running.lines), handed if running.done() == 1 else None)

    def finished(self, results, sentences, handed):
        """Count a window of translations that was written, and show its warnings."""
        self.lines += len(results)
        self.sentences += sentences
        for translation in results:
            for sentence in translation.warnings:
                self.warnings += 1
                if self.warnings <= MOST_WARNINGS:
                    self._say(f"warning: line {translation.line:,}: {sentence}")
                elif self.warnings == MOST_WARNINGS + 1:
                    self._say("warning: further warnings are only counted")
        if self._wanted():
            self._advance(0, handed)

    def stopped(self, output):
        """Say that a signal came, and where the lines so far are (``output`` is None before there was one)."""
        self.close()
        lines = 0 if output is None else output.sources
        where = f"; they are in {output.part}" if lines and output.part else ""
        self._say(f"stopped after {counted(lines, 'line')}{where}")

    def summary(self, output):
        """Say what was done."""
        self.close()
        if not self.quiet and not self._typed:
            seconds = time.monotonic() - self._start
            rate = self.sentences / seconds if seconds else 0.0
            where = "" if output.path == "-" else f" into {output.path}"
            warnings = f", {counted(self.warnings, 'warning')}" * (self.warnings > 0)
            lines = counted(self.lines, "line")
            self._say(f"translated {lines}{where} in {seconds:.1f} s ({rate:.1f} sentences/s){warnings}")

    def close(self):
        """Leave the bar; later calls do nothing."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _wanted(self):
        """Whether there is a bar, or it is time for one: at once on a terminal, else for what takes long."""
        if self._bar is None and not self.quiet and not self._typed:
            if not sys.stderr.isatty() and time.monotonic() - self._start < LINE_SECONDS:
                return False
            if self._size:
                self._bar = bar("translating", self._size, "bytes")
            else:
                self._bar = bar("translating", None, "lines")
        return self._bar is not None

    def _advance(self, more_lines, handed):
        lines = self.lines + int(more_lines)
        if self._size:
            rate = lines / max(time.monotonic() - self._start, 1e-9)
            self._bar.set_postfix_str(f"{lines:,} lines, {rate:.1f} lines/s", refresh=False)
            position = self._bar.n if handed is None else min(handed, self._size)
        else:
            position = lines
        self._bar.update(max(0, position - self._bar.n))

    def _say(self, sentence):
        if self._bar is not None:
            self._bar.clear()
        print(f"{self.prog}: {sentence}", file=sys.stderr, flush=True)


def counted(number: int, noun: str) -> str:
    """A number and what it counts, such as "1,234 lines"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
