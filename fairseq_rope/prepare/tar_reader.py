"""Reads a tar archive once, forwards, and says in one line what is wrong with its bytes."""

import contextlib
import gzip
import io
import tarfile
import zlib

from fairseq_rope.errors import UserError
from fairseq_rope.prepare.progress import bar

CHUNK = 1 << 20  # bytes of a member that are in memory at once
LARGEST_READ = 1 << 20  # more than that tarfile wants only for a header that lies about its size
_GZIP = b"\x1f\x8b"
# What a damaged archive makes tarfile, gzip and zlib raise: headers hold numbers and names of any kind.
_DAMAGE = (EOFError, OSError, zlib.error, tarfile.TarError, ValueError, ArithmeticError, RecursionError)


def plain_name(name):
    """A member's path without the ``./`` that some tars begin each with."""
    while name.startswith("./"):
        name = name[2:]
    return name


class TarReader:
    """An open archive; whatever is wrong with its bytes becomes a :class:`UserError` that names it."""

    def __init__(self, path, progress):
        self.path = path
        self._open = contextlib.ExitStack()
        try:
            self._raw = self._open.enter_context(_Watched(path))
            start = self._raw.read(64)
            self._raw.seek(0)
            size = path.stat().st_size
        except OSError as error:
            self._open.close()
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error
        if not start:
            self._open.close()
            raise UserError(f"{path} is empty: no archive")
        self._start, self._gzipped = start, start.startswith(_GZIP)
        self._raw.bar = self._open.enter_context(bar(f"unpacking {path.name}", size, "bytes", 0, progress))
        unzipped = self._open.enter_context(gzip.GzipFile(fileobj=self._raw)) if self._gzipped else self._raw
        self._stream = _Forward(unzipped)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._open.close()

    def members(self, wanted):
        """Yield ``(TarInfo, open content or None)``; content only for regular files whose name is in ``wanted``."""
        tar = None
        while True:
            with self._damage():
                if tar is None:
                    tar = tarfile.TarFile(fileobj=self._stream, mode="r", tarinfo=_Header)
                info = tar.next()
                content = None
                if info is not None and info.isreg() and plain_name(info.name) in wanted:
                    content = tar.extractfile(info)
            if info is None:
                return
            yield info, content

    def content(self, name, file):
        """Yield blocks of a member's bytes, gunzipped if its name ends in ``.gz``."""
        if not name.endswith(".gz"):
            while block := self._read(file):
                yield block
            return
        with gzip.GzipFile(fileobj=_Outer(file, self._read)) as inner:
            while True:
                try:
                    block = inner.read(CHUNK)
                except EOFError as error:
                    raise UserError(f"{self.path}: its member {name!r} is a truncated gzip file") from error
                except (OSError, zlib.error) as error:
                    raise UserError(f"{self.path}: its member {name!r} is no intact gzip file ({error})") from error
                if not block:
                    return
                yield block

    def check_end(self):
        """Read what follows the last member; its end mark and, of a gzipped archive, the checksum."""
        with self._damage():
            # tarfile has read one of the two zero blocks that end an archive.
            if self._stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise EOFError
            while self._stream.read(CHUNK):
                pass

    def _read(self, file, size=CHUNK):
        with self._damage():
            return file.read(size)

    @contextlib.contextmanager
    def _damage(self):
        try:
            yield
        except _NoTar as error:
            raise UserError(f"{self.path} is no tar archive: {self._describe()}") from error
        except (EOFError, _CutOff) as error:
            raise UserError(f"{self.path} is truncated: remove it and fetch it again") from error
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.errno is not None:  # gzip's own errors have no number
                raise UserError(f"cannot read {self.path}: {error.strerror or error}") from error
            if "unexpected end of data" in str(error):
                raise UserError(f"{self.path} is truncated: remove it and fetch it again") from error
            raise UserError(f"{self.path} is damaged ({error}): remove it and fetch it again") from error

    def _describe(self):
        """What the file starts with instead."""
        if not self._gzipped:
            return f"it starts with {_readable(self._start)}"
        with open(self.path, "rb") as file, gzip.GzipFile(fileobj=file) as unzipped:
            return f"gunzipped, it starts with {_readable(unzipped.read(64))}"


def _readable(start):
    try:
        text = start.decode("utf-8", "ignore" if start.isascii() else "strict")
        return repr(text[:40]) if text[:40].replace("\n", " ").isprintable() else repr(start[:16])
    except UnicodeDecodeError:
        return repr(start[:16])


class _Watched(io.FileIO):
    """An unbuffered file that moves a bar along."""

    bar = None

    def read(self, size=-1):
        block = super().read(size)
        if self.bar is not None:
            self.bar.update(self.tell() - self.bar.n)
        return block


class _Outer:
    """The bytes of a member as gzip reads them: damage of the outer archive is reported as the archive's."""

    def __init__(self, file, read):
        self._file, self._read = file, read

    def read(self, size):
        return self._read(self._file, size)


class _Forward:
    """What tarfile needs of a file, only ever reading on: a gzip file would begin again to go back.

    Larger reads are refused, so that a damaged header that claims terabytes of names costs no memory.
    """

    def __init__(self, file):
        self._file, self._at = file, 0

    def tell(self):
        return self._at

    def read(self, size):
        if not 0 <= size <= LARGEST_READ:
            raise tarfile.ReadError(f"a header of {size} bytes")
        blocks = []
        while size and (block := self._file.read(size)):
            blocks.append(block)
            size -= len(block)
            self._at += len(block)
        return b"".join(blocks)

    def seek(self, position):
        if position < self._at:
            raise tarfile.ReadError("a header that points backwards")
        if isinstance(self._file, _Watched):
            self._at = self._file.seek(position)
            return
        while self._at < position:
            if not self.read(min(CHUNK, position - self._at)):
                raise EOFError


class _NoTar(tarfile.ReadError):
    """The first header is none."""


class _CutOff(tarfile.ReadError):
    """The file ends where a header should be."""


class _Header(tarfile.TarInfo):
    """Reports each bad header; tarfile itself takes one after the first for the archive's end."""

    @classmethod
    def fromtarfile(cls, tar):
        first = tar.fileobj.tell() == 0
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:
            raise
        except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError) as error:
            raise (_NoTar if first else _CutOff)(str(error)) from error
        except tarfile.HeaderError as error:
            raise (_NoTar if first else tarfile.ReadError)(str(error)) from error
