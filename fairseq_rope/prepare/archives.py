"""Named members out of tar archives, written whole or not at all, and the segments of WMT's sgm files."""

import contextlib
import re
import shutil
from pathlib import Path, PurePosixPath

from fairseq_rope.errors import UserError
from fairseq_rope.files import DISK_FULL, replacing
from fairseq_rope.prepare.tar_reader import TarReader, plain_name

MOST_NAMED = 5  # members that an error names


def unpack(path, members, out, progress=True, limit=None, to_end=False):
    """Write the named members of a tar archive, plain or gzipped, in one pass.

    Without ``limit`` (or with ``to_end``) the archive is read to its end, so that a truncation or a wrong checksum
    anywhere is noticed before any file appears. Members of other names are never written, whatever they are. Files
    that are all there already are not written again.

    Args:
        path: the archive; its bytes, not its name, tell whether it is gzipped.
        members: paths in the archive, without a leading ``./``. One that ends in ``.gz`` is gunzipped on the way.
        out: folder to write in, made if missing; the file has the last part of the member's path as its name,
            without ``.gz``.
        progress: show a bar of the bytes read.
        limit: write only the first ``limit`` lines of each member and stop reading when all are written.
        to_end: with ``limit`` too, read on to the end, as for an archive whose checksum nobody knows.

    Returns:
        dict from member to the :class:`~pathlib.Path` written.

    Raises:
        UserError: the archive is unreadable, truncated, damaged or no archive; a member is missing, there twice, not
            a plain file, or would leave ``out``; the disk is full. Nothing is left in ``out`` then.
    """
    path, out = Path(path), Path(out)
    targets = _targets(members, out)
    if all(target.is_file() for target in targets.values()):
        return targets
    _make_folder(out, targets.values())
    written = []
    try:
        with contextlib.ExitStack() as files:
            with TarReader(path, progress) as source:
                _write_members(source, targets, files, limit, to_end)
            files.callback(written.extend, targets.values())  # the files take their names after this
    except BaseException:
        for target in written:  # one of the renames failed
            target.unlink(missing_ok=True)
        raise
    return targets


def _targets(members, out):
    """{member: file to write}; refuses names that leave ``out`` or meet in one file."""
    targets = {}
    for member in members:
        name = PurePosixPath(member).name.removesuffix(".gz")
        if member.startswith("/") or ".." in PurePosixPath(member).parts or not name:
            raise UserError(f"member {member!r}: must be a relative path without '..'")
        if out / name in targets.values():
            raise UserError(f"member {member!r}: another member is written to {out / name} too")
        targets[member] = out / name
    return targets


def _make_folder(out, targets):
    try:
        out.mkdir(parents=True, exist_ok=True)
        for target in targets:
            if target.is_symlink():  # files.replacing would follow it
                raise UserError(f"cannot write {target}: it is a link, which could lead out of the folder")
            for left in out.iterdir():  # by a killed run
                if left.name.startswith(f".{target.name}.") and left.name.endswith(".tmp"):
                    left.unlink()
    except OSError as error:
        raise UserError(f"cannot write in the folder {out}: {error.strerror or error}") from error


def _write_members(source, targets, files, limit, to_end):
    """Write each member as it comes by; ``files`` gives them their names later, all together."""
    open_members = dict(targets)
    names = []  # of other members, for the message about a missing one
    for info, content in source.members(open_members):
        name = plain_name(info.name)
        if name not in targets:
            _refuse_escape(source, info, targets)
            if len(names) < MOST_NAMED:
                names.append(name)
            continue
        if name not in open_members:
            raise UserError(f"{source.path}: the member {name!r} is there twice")
        if not info.isreg():
            raise UserError(f"{source.path}: the member {name!r} is {_kind(info)}, not a plain file")
        target = open_members.pop(name)
        _check_space(source, info, target, limit)
        file = files.enter_context(replacing(target, "wb"))
        lines = _first_lines(source.content(name, content), limit)
        for block in lines:
            try:
                file.write(block)
            except OSError as error:
                raise _write_error(error, source, target) from error
        if limit is not None and not open_members and not to_end:
            return
    if open_members:
        there = f"it has {', '.join(map(repr, names))}, …" if names else "it has no other members"
        raise UserError(f"{source.path} lacks {', '.join(map(repr, open_members))}: {there}")
    source.check_end()


def _refuse_escape(source, info, targets):
    """A path out of the folder is nobody's business unless it poses as a member that is wanted."""
    path = PurePosixPath(plain_name(info.name))
    if (path.is_absolute() or ".." in path.parts) and path.name in {PurePosixPath(member).name for member in targets}:
        raise UserError(f"{source.path}: the member {info.name!r} would be written outside the folder")


def _kind(info):
    kinds = {"issym": "a symbolic link", "islnk": "a hard link", "isdir": "a folder", "isfifo": "a fifo"}
    return next((text for test, text in kinds.items() if getattr(info, test)()), "a device or of unknown type")


def _check_space(source, info, target, limit):
    free = shutil.disk_usage(target.parent).free
    if limit is None and free < info.size:
        raise UserError(
            f"cannot unpack {source.path}: {target.name} needs {info.size} bytes or more, "
            f"the disk of {target.parent} has {free} free"
        )


def _write_error(error, source, target):
    if error.errno in DISK_FULL:
        return UserError(
            f"cannot unpack {source.path}: the disk is full, {target} needs more room; make some and retry"
        )
    return UserError(f"cannot write {target}: {error.strerror or error}")


def _first_lines(blocks, limit):
    """Blocks of bytes up to and including the ``limit``-th line feed; all of them if ``limit`` is None."""
    if limit is None:
        yield from blocks
        return
    if limit < 1:
        return
    for block in blocks:
        number = block.count(b"\n")
        if number >= limit:
            end = -1
            for _ in range(limit):
                end = block.index(b"\n", end + 1)
            yield block[: end + 1]
            return
        limit -= number
        yield block


# Segments


def sgm_segments(path):
    """Texts of an sgm file's segments, one a line, as sacreBLEU extracts them.

    Entities such as ``&amp;`` stay; white space at the ends goes and inside becomes one space each.

    Args:
        path: UTF-8 file of ``<seg id="N">…</seg>`` lines; ids run 1, 2, … within each ``<doc>``.

    Returns:
        list of str, in the file's order; an empty segment is an empty string.

    Raises:
        UserError: unreadable, not UTF-8, no segments, a segment that is not one line, ids out of order, or a document
            without its end (a truncated file).
    """
    segments, last, opened, closed = [], 0, 0, 0
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if "<seg " in line:
                    identity, text = _segment(path, number, line)
                    if identity != last + 1:
                        raise UserError(f"{path}, line {number}: segment {identity} follows segment {last}")
                    last = identity
                    segments.append(text)
                elif line.startswith("<doc "):
                    opened, last = opened + 1, 0
                elif line.startswith("</doc>"):
                    closed += 1
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.object[error.start]:#04x} ({error.reason})") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if not segments:
        raise UserError(f'{path} has no segments: lines of the form <seg id="1">…</seg> are wanted')
    if opened != closed:
        raise UserError(f"{path} is cut off: {opened} documents begin and {closed} end")
    return segments


def _segment(path, number, line):
    match = re.fullmatch(r'<seg [^>]*?\bid="([0-9]+)"[^>]*>(.*)</seg>\s*', line)
    if not match or "<seg " in match[2] or "</seg>" in match[2]:
        raise UserError(f'{path}, line {number}: must be one segment, <seg id="N">…</seg>, and nothing else')
    return int(match[1]), re.sub(r"\s+", " ", match[2].strip())
