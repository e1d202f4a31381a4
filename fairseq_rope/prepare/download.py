"""Complete local copies of published archives: from an earlier run, from mirrors, or from the original host."""

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from fairseq_rope.errors import UserError
from fairseq_rope.files import write_json
from fairseq_rope.prepare.progress import bar
from fairseq_rope.prepare.transfer import (
    CHUNK,
    Failed,
    discard,
    disk_error,
    download,
    note,
    read_json,
    resumable,
)


@dataclass(frozen=True)
class Archive:
    """A published archive: where it comes from and what is known of its bytes (None: not known).

    Args:
        url: original address, http or https, without a query.
        size: bytes.
        sha256, md5: lower-case hexadecimal digests.
    """

    url: str
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None

    def __post_init__(self):
        if not re.match(r"https?://[^/]+/", self.url) or self.name in ("", ".."):
            raise ValueError(f"not the http address of a file: {self.url}")

    @property
    def name(self):
        """File name: the address's last part."""
        return PurePosixPath(urlsplit(self.url).path).name

    @property
    def host_path(self):
        """Address without its scheme, such as ``host/folder/name``: the path below a mirror."""
        return self.url.partition("://")[2]


@dataclass(frozen=True)
class Fetched:
    """A complete local file.

    Args:
        path: the file, in the download folder or, used in place, in a mirror that is a folder.
        source: the address it came from, kept for later runs; the path of a file that was there already.
        size, sha256: of this file.
        published: whether all that is known of the published archive agrees; None where nothing is known.
        difference: in words where it does not agree, else empty.
    """

    path: Path
    source: str
    size: int
    sha256: str
    published: bool | None
    difference: str = ""


def fetch(archive, folder, mirrors=(), strict=True, progress=True):
    """Find or download ``archive``; what a killed run left is resumed.

    Places are tried in this order: ``folder/NAME``; each mirror (a folder: ``MIRROR/HOST/PATH`` or ``MIRROR/NAME``,
    used in place; an address: ``MIRROR/HOST/PATH``); the original address, and by https where that is http. A
    download is ``NAME.part`` with ``NAME.part.json`` until it is complete and checked. ``NAME.json`` keeps digests,
    so that gigabytes are hashed once. Only one run at a time may use ``folder``.

    Args:
        archive: the :class:`Archive`.
        folder: where downloads are kept; made if missing.
        mirrors: folders and http(s) addresses.
        strict: refuse a file whose size or digest is not the published one and try the next place.
        progress: show bars on standard error.

    Returns:
        :class:`Fetched`.

    Raises:
        UserError: no place has it (each is named with its reason), the disk is full, or ``folder`` is not writable.
    """
    folder = Path(folder)
    own = folder / archive.name
    if own.is_dir():
        raise UserError(f"{own} is a folder: the archive {archive.name} cannot be kept there")
    tried = []
    for place in [own, *_places(archive, mirrors)]:
        try:
            if isinstance(place, Path):
                return _local(place, archive, folder, strict, progress)
            return _remote(place, archive, folder, strict, progress)
        except Failed as error:
            tried.append(f"{place}: {error}")
    raise UserError(
        f"cannot get {archive.name} ({'; '.join(tried)}): give a --mirror (a folder or an address) that has it, "
        f"or put the file into {folder} by hand"
    )


def _places(archive, mirrors):
    """Paths and addresses to try after the download folder, in order."""
    places = []
    for mirror in map(str, mirrors):
        if re.match(r"https?://", mirror):
            places.append(f"{mirror.rstrip('/')}/{archive.host_path}")
        elif "://" in mirror:
            raise UserError(f"mirror {mirror}: must be a folder or an address that starts with http:// or https://")
        else:
            base = Path(mirror).expanduser()
            places += [base / archive.host_path, base / archive.name]
    places.append(archive.url)
    parts = urlsplit(archive.url)
    if parts.scheme == "http" and parts.port is None:
        places.append(parts._replace(scheme="https").geturl())
    return places


# What is known of a file


def _difference(archive, size, sha256, md5):
    """Say where a file is not the published one; empty if nothing differs."""
    for what, expected, got in (
        ("size", archive.size, size),
        ("SHA-256", archive.sha256, sha256),
        ("MD5", archive.md5, md5),
    ):
        if expected is not None and got is not None and expected != got:
            unit = " bytes" if what == "size" else ""
            return f"wrong {what}: expected {expected}{unit}, got {got}{unit}"
    return ""


def _published(archive, difference):
    if archive.size is None and archive.sha256 is None and archive.md5 is None:
        return None
    return not difference


def _hash(path, archive, progress):
    """SHA-256 and, where the published one is known, MD5 (else None) of a file, and the file's first bytes."""
    sha256, start = hashlib.sha256(), b""
    md5 = hashlib.md5(usedforsecurity=False) if archive.md5 else None
    try:
        size = path.stat().st_size
        with open(path, "rb") as file, bar(f"checking {path.name}", size, "bytes", 0, progress) as shown:
            while chunk := file.read(CHUNK):
                start = start or chunk[:64]
                sha256.update(chunk)
                if md5:
                    md5.update(chunk)
                shown.update(len(chunk))
    except OSError as error:
        raise Failed(f"cannot read it: {error.strerror or error}") from error
    return sha256.hexdigest(), md5.hexdigest() if md5 else None, start


def _refuse_page(start):
    # Captive portals and misconfigured hosts answer 200 with a page; no archive starts like one.
    if start.lstrip().startswith(b"<"):
        raise Failed(f"not an archive but a web page: it starts with {start[:40].decode('utf-8', 'replace')!r}")


def _local(path, archive, folder, strict, progress):
    """Use a file that is there already."""
    try:
        stat = path.stat()
    except OSError as error:
        raise Failed("no such file" if isinstance(error, FileNotFoundError) else error.strerror) from error
    if not path.is_file():
        raise Failed("not a file")
    if stat.st_size == 0:
        raise Failed("an empty file")
    # Needs no hashing; where a wrong size is accepted the digest is still wanted for the manifest.
    difference = _difference(archive, stat.st_size, None, None)
    if difference and strict:
        raise Failed(difference)
    sidecar = folder / f"{archive.name}.json"
    known = read_json(sidecar)
    identity = {
        # By name in the download folder itself, which may be moved or mounted elsewhere.
        "path": path.name if path == folder / archive.name else os.path.abspath(path),
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
    }
    usable = {key: known.get(key) for key in identity} == identity and {"source", "sha256"} <= known.keys()
    if not usable or (archive.md5 and not known.get("md5")):
        source = known["source"] if usable else str(path)
        sha256, md5, start = _hash(path, archive, progress)
        _refuse_page(start)
        known = {**identity, "source": source, "sha256": sha256, "md5": md5}
        with contextlib.suppress(OSError, UserError):  # a read-only folder of archives serves too, just slower
            folder.mkdir(parents=True, exist_ok=True)
            write_json(sidecar, known)
    difference = _difference(archive, stat.st_size, known["sha256"], known.get("md5"))
    if difference and strict:
        raise Failed(difference)
    return Fetched(path, known["source"], stat.st_size, known["sha256"], _published(archive, difference), difference)


# Downloading


def _remote(url, archive, folder, strict, progress):
    """Download from one address, check, and put in place."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot download {archive.name}: no permission to write in the folder {folder}")
    part = folder / f"{archive.name}.part"
    try:
        resumed = resumable(url, part) > 0
        download(url, part, archive.name, archive.size if strict else None, progress)
        size = part.stat().st_size
        sha256, md5, start = _hash(part, archive, progress)
        difference = _difference(archive, size, sha256, md5)
        if difference and strict and resumed:
            # A machine that lost power may have left a damaged start; it deserves one download from nothing.
            discard(part)
            return _remote(url, archive, folder, strict, progress)
        try:
            _refuse_page(start)
            if difference and strict:
                raise Failed(difference)
        except Failed:
            discard(part)
            raise
        _put_in_place(url, part, folder / archive.name, {"size": size, "sha256": sha256, "md5": md5})
    except OSError as error:
        raise disk_error(error, archive.name, part) from error
    return Fetched(folder / archive.name, url, size, sha256, _published(archive, difference), difference)


def _put_in_place(url, part, own, digests):
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    if own.exists():  # only a file that was refused: its owner may want it back
        os.replace(own, own.with_name(f"{own.name}.wrong"))
    # Before the rename, which keeps the time stamp: a run killed between the two knows its source afterwards.
    known = {"path": own.name, "mtime_ns": part.stat().st_mtime_ns, "source": url, **digests}
    write_json(own.with_name(f"{own.name}.json"), known)
    os.replace(part, own)
    directory = os.open(own.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    note(part).unlink(missing_ok=True)
