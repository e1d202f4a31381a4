"""Writes whole lines, whatever stops the program: to standard output, or to a file that appears when it is complete."""

import contextlib
import io
import os
import signal
import stat
import sys
import threading
from pathlib import Path

from fairseq_rope.errors import UserError
from fairseq_rope.files import check_writable


class Stopped(BaseException):
    """A signal that ends the program came; ``number`` is the signal's."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


class StopSignals:
    """Within, SIGINT and SIGTERM raise :class:`Stopped`, but never inside :meth:`held`: only after it."""

    def __init__(self):
        self._before, self._held, self._pending = {}, False, None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup and the like set it: so it stays
                    self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *exception):
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _stop(self, number, frame):
        if not self._held:
            raise Stopped(number)
        self._pending = number

    @contextlib.contextmanager
    def held(self):
        """Within, a signal waits."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._pending is not None:
            raise Stopped(self._pending)


class LineOutput:
    """A destination of lines.

    A file is written beside its place as ``FILE.part`` and gets its name by :meth:`complete`; until then an older file
    stays. What is no regular file (a device, a named pipe) is written directly.

    Args:
        path: the file, or ``"-"`` for standard output.
        signals: holds signals back while lines are written.

    Raises:
        UserError: it cannot be written.
    """

    def __init__(self, path: str, signals: StopSignals):
        self.path, self.signals = path, signals
        self.sources = 0
        self.part = self._target = self._file = self._text = None
        self._written = 0
        if path == "-":
            self._open_stdout()
            return
        check_output(path)
        self._target = target = Path(os.path.realpath(path))
        if not _is_special(target):
            self.part = target.with_name(target.name + ".part")
        try:
            self._file = open(self.part or target, "wb", buffering=0)  # noqa: SIM115  closed by close()
        except OSError as error:
            raise UserError(f"cannot write {self.part or path}: {error.strerror or error}") from error

    def _open_stdout(self):
        if sys.stdout is None:
            raise UserError("standard output is closed")
        try:
            sys.stdout.flush()
            self._file = open(sys.stdout.fileno(), "wb", buffering=0, closefd=False)  # noqa: SIM115
        except (AttributeError, io.UnsupportedOperation):  # a program that calls this one has put something else there
            self._text = sys.stdout

    def write(self, lines: list[str], sources: int):
        """Write whole lines, at once for whoever reads; they are the output of ``sources`` lines of input.

        Raises:
            BrokenPipeError: nobody reads any more.
            UserError: they cannot be written, such as on a full disk.
        """
        data = "".join([line + "\n" for line in lines])
        with self.signals.held():
            if self._text is not None:
                self._text.write(data)
            else:
                self._write(memoryview(data.encode("utf-8", "replace")))
            self.sources += sources

    def _write(self, data):
        size = len(data)
        try:
            while data:
                data = data[self._file.write(data) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            if self.part:
                with contextlib.suppress(OSError):
                    self._file.truncate(self._written)  # to the last whole lines
            name = "standard output" if self.path == "-" else self.part or self.path
            raise UserError(f"cannot write {name}: {error.strerror or error}") from error
        self._written += size

    def complete(self):
        """Give the file its name."""
        with self.signals.held():
            if self.part:
                try:
                    os.fsync(self._file.fileno())
                    os.replace(self.part, self._target)
                except OSError as error:
                    raise UserError(f"cannot write {self.path}: {error.strerror or error}") from error
                self.part = None
            self.close()

    def close(self):
        """Close the file, and remove the unfinished one if it has no line; later calls do nothing."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
            if self.part and not self._written:
                with contextlib.suppress(OSError):
                    self.part.unlink()
                self.part = None


def check_output(path: str):
    """Raise a UserError unless :class:`LineOutput` could write at ``path``; nothing is created."""
    if path == "-":
        return
    if not path:
        raise UserError("--output needs the name of a file, or - for standard output")
    target = Path(os.path.realpath(path))
    if not _is_special(target):
        check_writable(target)
        check_writable(target.with_name(target.name + ".part"))
    elif not os.access(target, os.W_OK):
        raise UserError(f"cannot write {path}: no permission")


def _is_special(path):
    """Whether there is something else than a regular file or a folder."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
