"""The folder of one preparation: whose it is, which stages are finished, and that only one run works in it."""

import contextlib
import fcntl
import json
import os
import shutil
from pathlib import Path

from fairseq_rope.errors import UserError
from fairseq_rope.files import write_json

OPTIONS = "options.json"
MANIFEST = "manifest.json"
WORK = "work"
_OWN = {OPTIONS, "download"}  # what may be there before the first run: archives fetched by other means


def damaged(out, what):
    """The :class:`UserError` for a folder that somebody has changed."""
    return UserError(f"{what}: remove {out} (its folder download may stay) and start again, or choose another --out")


def read_json(out, path):
    """The dict in a JSON file of the preparation in ``out``; :class:`UserError` if it is no longer one."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise damaged(out, f"{path} is damaged") from error
    if not isinstance(content, dict):
        raise damaged(out, f"{path} is damaged")
    return content


def check_finished(out):
    """Raise :class:`UserError` unless everything that the manifest names is there."""
    names = read_json(out, Path(out) / MANIFEST).get("sha256", {})
    missing = [name for name in names if not (Path(out) / name).is_file()]
    if missing or not names:
        raise damaged(out, f"{MANIFEST} names files that are missing ({', '.join(missing[:3]) or 'none at all'})")


def make_folder(path):
    """Make a folder and those above it.

    Raises:
        UserError: it cannot be made or written in.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {path}: {error.strerror or error}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise UserError(f"cannot write in the folder {path}: no permission")


@contextlib.contextmanager
def locked(folder, wait=False, say=print):
    """Hold the only run's lock on ``folder`` (flock: gone with the process, whatever ends it).

    Args:
        folder: an existing folder.
        wait: wait for another run to finish instead of failing.
        say: called with a line before a wait.

    Raises:
        UserError: another run is at work in ``folder``.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if not wait:
                raise UserError(f"another run is at work in {folder}") from error
            say(f"waiting for another run that is at work in {folder}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Stages:
    """Runs numbered stages once each: a finished one has a record, ``work/NAME.json``.

    Args:
        out: the preparation's folder.
        count: how many stages there will be.
        say: called with the line that announces each.
    """

    def __init__(self, out, count, say=print):
        self.out, self.count, self.say, self.number = Path(out), count, say, 0

    def run(self, name, title, function):
        """Return the record of stage ``name``: from an earlier run, else of ``function()``, a JSON-able dict."""
        self.number += 1
        path = self.out / WORK / f"{name}.json"
        if path.exists():
            record = read_json(self.out, path)
            self.say(f"[{self.number}/{self.count}] {title}: finished earlier, reused")
            return record
        self.say(f"[{self.number}/{self.count}] {title}")
        record = function()
        write_json(path, record)
        return json.loads(json.dumps(record))


def claim(out, options):
    """Make ``out`` the folder of a preparation with these options, or check that it is.

    Args:
        out: the folder; made if missing.
        options: JSON-able dict of all that decides on the result.

    Raises:
        UserError: the folder belongs to other options (each is named with both values) or holds something else.
    """
    out = Path(out)
    make_folder(out)
    path = out / OPTIONS
    if path.exists():
        before = read_json(out, path)
        differing = [key for key in {**before, **options} if before.get(key) != options.get(key)]
        if differing:
            both = "; ".join(
                f"{key.replace('_', '-')} was {before.get(key)}, is now {options.get(key)}" for key in differing
            )
            raise UserError(f"{out} holds a preparation with other options ({both}): choose another --out")
    else:
        foreign = sorted(entry.name for entry in out.iterdir() if entry.name not in _OWN and entry.name[0] != ".")
        if foreign:
            raise UserError(
                f"{out} holds files of something else ({', '.join(foreign[:3])}): choose a new or empty --out"
            )
        write_json(path, options)
    (out / WORK).mkdir(exist_ok=True)


def remove(path):
    """Remove a file or folder of an earlier stage, if it is there."""
    path = Path(path)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_temporary(folder):
    """Remove what a killed run was writing (no other run is at work: the lock is held)."""
    for path in Path(folder).rglob(".*.tmp"):
        remove(path)


def need_space(folder, size, purpose):
    """Raise :class:`UserError` unless ``folder``'s file system has ``size`` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise UserError(f"{purpose} needs about {size / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free")
