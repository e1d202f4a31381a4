"""Text files as lines, and files that are either written whole or not at all."""

import contextlib
import errno
import json
import os
from pathlib import Path

from fairseq_rope.errors import UserError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def read_lines(path):
    """Read a UTF-8 text file as a list of lines without their line ends.

    Only line feeds end a line, as for sacreBLEU; ``str.splitlines`` would also cut at characters that stand
    in real corpora, such as U+2028.

    Raises:
        UserError: the file is missing, unreadable or not UTF-8 (names the byte).
    """
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            return [line.rstrip("\r\n") for line in file]
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.object[error.start]:#04x} ({error.reason})") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def check_writable(path):
    """Raise :class:`UserError` unless a file could be written at ``path``; nothing is created.

    Called before long work, so that a typing error in the output's name does not cost the whole run.
    """
    path = Path(path)
    folder = path.parent
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder, give a file name")
    if not folder.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {path}: no permission to write in the folder {folder}")


def same_file(a, b):
    """Say whether two paths are one existing file, by links too."""
    return os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b)


@contextlib.contextmanager
def replacing(path, mode="w"):
    """Open a temporary file beside ``path`` that takes its place when the block ends without an error.

    Whatever stops the block (an exception, Ctrl-C, a signal turned into an exception), the temporary file is
    removed and an older file at ``path`` stays as it was. A link is followed, so that it stays a link.

    Args:
        path: the file to write.
        mode: ``"w"`` for UTF-8 text with plain line feeds, ``"wb"`` for bytes.

    Yields:
        the open file.

    Raises:
        UserError: the file cannot be written; names the file and the system's reason.
    """
    check_writable(path)
    target = Path(os.path.realpath(path))
    # The same folder, because a rename is atomic only within one file system; opened plainly rather than by
    # tempfile, whose files nobody else may read.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with open(temporary, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_json(path, content):
    """Write ``content`` as a JSON file that appears whole.

    Raises:
        UserError: as :func:`replacing`.
    """
    with replacing(path) as file:
        json.dump(content, file, indent=1, ensure_ascii=False)
        file.write("\n")
