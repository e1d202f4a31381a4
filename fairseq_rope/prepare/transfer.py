"""One file over HTTP, resumed where an earlier try or a killed run stopped."""

import http.client
import json
import re
import shutil
import sys
import time
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

from fairseq_rope.errors import UserError
from fairseq_rope.files import DISK_FULL, write_json
from fairseq_rope.prepare.progress import bar

CHUNK = 1 << 20
TIMEOUT = 60  # seconds, for connecting and for each read
PAUSES = (1, 2, 4, 8)  # seconds before each new try; a try that gets further than any before starts the list again
MARGIN = 64 << 20  # bytes that a download leaves free


class Failed(Exception):
    """A place cannot give the archive; the message says why."""

    def __init__(self, reason, code=None):
        super().__init__(reason)
        self.code = code


class Unreachable(Failed):
    """No connection: final at first, worth another try once this host has sent something."""


class Dropped(Exception):
    """A transfer ended early; another try may go on from there."""


def download(url, part, name, size=None, progress=True):
    """Fill ``part`` from ``url``, beginning where an earlier try from the same address ended.

    It is gone on from only if the server has an ETag or a date for the file, still has that version, and answers
    with just the bytes that are missing; otherwise all of it is asked for again. ``note(part)`` holds the address,
    the size and that ETag or date.

    Args:
        url: http or https address.
        part: the file to fill, in a folder that exists.
        name: what bars and messages call it.
        size: bytes that the file must have, None for any number.
        progress: show a bar.

    Raises:
        Failed: this address cannot give the file; the last of several tries in a row got no further.
        UserError: too little room on the disk, before anything is written.
        OSError: writing failed, see :func:`disk_error`; what had arrived is kept.
    """
    furthest = resumable(url, part)
    received, failures = False, 0
    while True:
        try:
            return _try(url, part, name, size, progress)
        except (Dropped, Unreachable) as error:
            reached = part.stat().st_size if part.exists() else 0
            if reached > furthest:
                furthest, received, failures = reached, True, 0
            if isinstance(error, Unreachable) and not received:
                raise
            if failures == len(PAUSES):
                raise Failed(f"{error} ({failures + 1} tries)") from error
            pause = PAUSES[failures]
            failures += 1
            if progress:
                tqdm.write(f"{name}: {error}; trying again in {pause} s", file=sys.stderr)
            time.sleep(pause)


def _try(url, part, name, size, progress):
    """One request: the rest of ``part`` where the server allows it, else all of the file."""
    offset, state = resumable(url, part), read_json(note(part))
    headers = {"User-Agent": "fairseq-rope-prepare", "Accept-Encoding": "identity"}
    if offset and offset == state.get("size"):
        return  # complete: the run was killed before the check
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": state["validator"]}
    try:
        response = _open(url, headers)
    except Failed as error:
        if offset and error.code == 416:
            discard(part)
            return _try(url, part, name, size, progress)
        raise
    with response:
        if response.status == 206 and offset:
            total = _continues(response.headers, offset, state)
            if total is None:
                discard(part)
                return _try(url, part, name, size, progress)
        elif response.status == 200:
            offset, total = 0, _content_length(response.headers)
        else:
            raise Failed(f"unexpected answer HTTP {response.status}")
        if total == 0:
            raise Failed("an empty file")
        if total is not None and size not in (None, total):
            raise Failed(f"wrong size: expected {size} bytes, got {total} bytes")
        if not offset:
            discard(part)  # not earlier: a part from another address outlives an answer that is refused
        _check_space(part, total, offset, name)
        if not offset:  # first the note, then the bytes: a part without its note is never resumed
            write_json(note(part), {"source": url, "size": total, "validator": _validator(response.headers)})
        _receive(response, part, offset, total, name, progress)


def _receive(response, part, offset, total, name, progress):
    """Append the answer's body to ``part``; unbuffered, so that a killed run loses nothing that had arrived."""
    got = offset
    with (
        open(part, "ab" if offset else "wb", buffering=0) as file,
        bar(name, total, "bytes", offset, progress) as shown,
    ):
        while total is None or got < total:
            try:
                # read1 gives what has arrived; read would lose it when the connection breaks.
                chunk = response.read1(CHUNK if total is None else min(CHUNK, total - got))
            except (OSError, http.client.HTTPException) as error:
                raise Dropped(f"connection lost after {got} bytes: {_reason(error)}") from error
            if not chunk:
                break
            got += len(chunk)
            view = memoryview(chunk)
            while view:
                view = view[file.write(view) :]
            shown.update(len(chunk))
    if total is not None and got < total:
        raise Dropped(f"connection closed after {got} of {total} bytes")
    if got == 0:
        raise Failed("an empty file")


def _open(url, headers):
    """The answer to a GET; errors become :class:`Failed`, :class:`Unreachable` or :class:`Dropped`."""
    try:
        return urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        text = f"HTTP {error.code} {error.reason}".strip()
        if error.code in (408, 429) or error.code >= 500:
            raise Dropped(text) from error
        raise Failed(text, error.code) from error
    except URLError as error:
        broken = isinstance(error.reason, ConnectionResetError | ConnectionAbortedError | BrokenPipeError)
        raise (Dropped if broken else Unreachable)(_reason(error.reason)) from error
    except TimeoutError as error:
        raise Unreachable(_reason(error)) from error
    except (http.client.InvalidURL, ValueError) as error:
        raise Failed(f"not a valid address: {error}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Dropped(_reason(error)) from error


def _reason(error):
    if isinstance(error, TimeoutError):
        return f"timed out ({TIMEOUT} s)"
    if isinstance(error, http.client.IncompleteRead):
        return "the answer is cut off"
    return " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__


# Resuming


def read_json(path):
    """A small JSON file's dict; empty where it is missing or damaged, which costs only time."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def note(part):
    """Path of what is known of the unfinished file ``part``: address, size, version."""
    return part.with_name(f"{part.name}.json")


def discard(part):
    """Remove an unfinished file and its note."""
    part.unlink(missing_ok=True)  # first: a note without its part does no harm
    note(part).unlink(missing_ok=True)


def resumable(url, part):
    """Bytes of ``part`` that a request to ``url`` can go on from; 0 where it has to begin again."""
    state = read_json(note(part))
    # Without a validator nobody can tell whether the server still has the same file.
    if state.get("source") != url or not isinstance(state.get("validator"), str) or not part.is_file():
        return 0
    size, total = part.stat().st_size, state.get("size")
    return size if total is None or (isinstance(total, int) and size <= total) else 0


def _validator(headers):
    """What identifies a version of the file in If-Range: a strong ETag, else the date; None without either."""
    etag = headers.get("ETag")
    value = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
    return value if value and value.isascii() and value.isprintable() else None


def _content_length(headers):
    length = headers.get("Content-Length", "")
    # With chunks http.client finds the end itself and a length must be ignored (RFC 9112, 6.3).
    return int(length) if re.fullmatch(r"[0-9]+", length) and not headers.get("Transfer-Encoding") else None


def _continues(headers, offset, state):
    """Size of the whole file if a 206 answer goes on exactly where ``part`` ends, else None.

    Where the range ends does not matter: what is still missing afterwards is asked for again.
    """
    match = re.fullmatch(r"bytes ([0-9]+)-[0-9]+/([0-9]+)", headers.get("Content-Range", "").strip())
    if not match:
        return None
    first, total = int(match[1]), int(match[2])
    same_file = state.get("size") in (None, total) and _validator(headers) in (None, state["validator"])
    return total if first == offset and same_file else None


def _check_space(part, total, offset, name):
    missing = (total or 0) - offset + MARGIN
    free = shutil.disk_usage(part.parent).free
    if free < missing:
        raise UserError(
            f"cannot download {name}: the disk of {part.parent} has {free} bytes free, {missing} are needed"
            + (f"; the {offset} bytes in {part.name} are kept and the next run goes on from there" if offset else "")
        )


def disk_error(error, name, part):
    """The :class:`UserError` for a failure to write in the download folder."""
    text = f"cannot write {part}: {error.strerror or error}"
    if error.errno in DISK_FULL:
        have = part.stat().st_size if part.exists() else 0
        total = read_json(note(part)).get("size")
        more = f"at least {total - have + MARGIN} more bytes" if isinstance(total, int) else "more space"
        text = (
            f"cannot download {name}: the disk of {part.parent} is full, {more} are needed; "
            f"the {have} bytes in {part.name} are kept: make room and start again"
        )
    return UserError(text)
