"""Bytes to lines, and lines to windows: as many at once as a file has, or as a pipe has now."""

import codecs
import io
import os
import select
from collections import deque
from typing import NamedTuple

WINDOW_LINES = 512
WINDOW_BYTES = 1 << 20
_CHUNK = 1 << 16


class Line(NamedTuple):
    """A line of input.

    Attributes:
        number: from 1.
        text: without its line end; bytes that are not UTF-8 are U+FFFD.
        damaged: whether there were such bytes.
    """

    number: int
    text: str
    damaged: bool = False


class LineReader:
    """Reads lines from a binary stream in windows of bounded size.

    Only line feeds end a line; a carriage return before one is dropped, and so is a byte order mark at the start. What
    follows the last line feed is a line too, if it is anything.

    Args:
        stream: a binary file object; one with a file descriptor is read from that, without a buffer between.
        lines, size: most lines of a window, and most bytes, unless one line is longer.
    """

    def __init__(self, stream, lines: int = WINDOW_LINES, size: int = WINDOW_BYTES):
        self.stream, self.lines, self.size = stream, lines, size
        self.handed = 0  # bytes of the lines handed out
        self.ended = False
        self._number = 0
        self._complete, self._partial = deque(), []
        try:
            self._fd = stream.fileno()
        except (AttributeError, io.UnsupportedOperation, OSError):
            self._fd = None
        self._poll = None
        if self._fd is not None:
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN | select.POLLHUP)

    def ready(self) -> bool:
        """Whether :meth:`window` would not wait for more input."""
        return bool(self._complete) or self.ended or self._available()

    def window(self) -> list[Line]:
        """The next lines: all that are there now, up to the limits; waits until there is something to read.

        Returns:
            list of lines; empty at the end (``ended`` is True then), or if what came was no whole line.
        """
        size = sum(map(len, self._complete))
        waited = bool(self._complete)
        while not self.ended and len(self._complete) < self.lines and size < self.size:
            if waited and not self._available():
                break
            before = len(self._complete)
            self._fill()
            size += sum(len(self._complete[i]) for i in range(before, len(self._complete)))
            waited = True
        window, size = [], 0
        while self._complete and len(window) < self.lines and (not window or size < self.size):
            raw = self._complete.popleft()
            size += len(raw)
            self.handed += len(raw) + 1
            window.append(self._line(raw))
        return window

    @property
    def exhausted(self) -> bool:
        """Whether all lines have been handed out."""
        return self.ended and not self._complete

    def _available(self):
        return self._fd is None or bool(self._poll.poll(0))

    def _fill(self):
        chunk = self.stream.read(_CHUNK) if self._fd is None else self._read()
        if not chunk:
            self.ended = True
            rest = b"".join(self._partial)
            self._partial = []
            if rest and not (self._number == 0 and not self._complete and rest == codecs.BOM_UTF8):
                self._complete.append(rest)
            return
        *whole, rest = chunk.split(b"\n")
        if whole:
            self._partial.append(whole[0])
            whole[0] = b"".join(self._partial)
            self._partial = []
            self._complete.extend(whole)
        if rest:
            self._partial.append(rest)

    def _read(self):
        while True:
            try:
                return os.read(self._fd, _CHUNK)
            except BlockingIOError:  # a pipe that whoever made it set to non-blocking
                self._poll.poll()

    def _line(self, raw):
        self._number += 1
        if self._number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        raw = raw.removesuffix(b"\r")
        try:
            return Line(self._number, raw.decode("utf-8"))
        except UnicodeDecodeError:
            return Line(self._number, raw.decode("utf-8", "replace"), True)
