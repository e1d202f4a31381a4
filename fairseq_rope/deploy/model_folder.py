"""The folder that an exported model is: what lies in it, how it is written whole, and how it is read.

====================================================  ================================================================
``model.bin``, ``config.json``, ``*_vocabulary.json``  CTranslate2's: the folder opens in ``ctranslate2.Translator``
``bpe.codes`` or ``sentencepiece.model``               the subwords, if the model has some
``dict.SRC.txt``, ``dict.TGT.txt``                     fairseq's dictionaries
``fairseq_rope.json``                                  how text is prepared, where the model is from, length limits, and
                                                       the size of every other file
====================================================  ================================================================

Nothing here imports torch, fairseq or CTranslate2.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fairseq_rope.deploy.text import TextSettings
from fairseq_rope.errors import UserError

INFO = "fairseq_rope.json"
MODEL = "model.bin"
FORMAT = 1  # of INFO; another number is another, later program's
SUBWORD_FILES = {"subword_nmt": "bpe.codes", "sentencepiece": "sentencepiece.model"}
_OWN = re.compile(
    r"model\.bin|config\.json|(shared|source|target)_vocabulary\.json|bpe\.codes|sentencepiece\.model|"
    r"dict\.[^/]+\.txt|fairseq_rope\.json"
)


@dataclass(frozen=True)
class ModelFolder:
    """An exported model.

    Attributes:
        path: the folder.
        text: how its text is prepared.
        subword_file: BPE codes or sentencepiece model within the folder; None without subwords.
        info: everything that ``fairseq_rope.json`` says.
    """

    path: Path
    text: TextSettings
    subword_file: Path | None
    info: dict

    @property
    def source_limit(self) -> int | None:
        """Longest source in tokens, with its ``</s>``, that the model has positions for; None: any length (RoPE)."""
        return self.info["limits"]["source"]

    @property
    def target_limit(self) -> int | None:
        """Longest translation in tokens, with its ``</s>``; None: any length."""
        return self.info["limits"]["target"]


def is_model_folder(path) -> bool:
    """Whether ``path`` is a folder that an export wrote (it may be damaged since)."""
    return os.path.isfile(os.path.join(path, INFO))


def read_folder(path) -> ModelFolder:
    """Read what an exported folder says about itself, and look whether it is whole.

    Raises:
        UserError: it is no such folder, or one that is damaged or of a later version; the file is named.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"there is no folder {path}")
    if not is_model_folder(path):
        foreign = (path / MODEL).is_file()
        raise UserError(
            f"{path} is no model of fairseq-rope-export: it has no {INFO}"
            + (", so how its text is prepared is not known (a model of another of CTranslate2's converters?)" * foreign)
        )
    try:
        info = json.loads((path / INFO).read_bytes())
        if info["format"] != FORMAT:
            raise UserError(
                f"{path / INFO} is of format {info['format']}, and this program reads {FORMAT}: update fairseq_rope"
            )
        text, subwords, files = TextSettings.from_dict(info["text"]), info["subword_file"], info["files"]
        limits = [info["limits"][side] for side in ("source", "target")]
        sound = all(isinstance(size, int) and _OWN.fullmatch(name) for name, size in files.items())
        sound = sound and all(limit is None or isinstance(limit, int) for limit in limits)
        sound = sound and subwords == SUBWORD_FILES.get(text.subwords) and MODEL in files
    except OSError as error:
        raise UserError(f"cannot read {path / INFO}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path / INFO} is damaged ({type(error).__name__}: {error}); export the model again"
        ) from error
    if not sound or (subwords is not None and subwords not in files):
        raise UserError(f"{path / INFO} is damaged; export the model again")
    for name, size in files.items():
        file = path / name
        if not file.is_file():
            raise UserError(f"{path} is damaged: {name} is missing; export the model again")
        if file.stat().st_size != size:
            raise UserError(
                f"{path} is damaged: {name} has {file.stat().st_size:,} bytes instead of {size:,}; export the model "
                "again"
            )
    return ModelFolder(path, text, None if subwords is None else path / subwords, info)


def check_output(path, force: bool = False):
    """Raise a UserError unless an exported folder could be written at ``path``; nothing is created.

    Called before long work. An existing folder is in the way unless it is empty, or, with ``force``, an export that
    holds nothing else.
    """
    target = Path(os.path.realpath(path))
    if not os.fspath(path) or target == Path(os.path.realpath(os.curdir)):
        raise UserError("cannot write into the current folder: name the folder to make")
    if os.path.lexists(target) and not os.path.isdir(target):
        raise UserError(f"cannot write {path}: there is a file of this name; name a folder to make")
    if not os.path.isdir(target.parent):
        raise UserError(f"cannot write {path}: there is no folder {Path(path).parent}")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {path}: no permission to write in the folder {target.parent}")
    if not os.path.isdir(target):
        return
    try:
        there = sorted(os.listdir(target))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    if not there:
        return
    if not is_model_folder(target):
        raise UserError(f"cannot write {path}: this folder is not empty, and no exported model; choose another name")
    if not force:
        raise UserError(f"cannot write {path}: there is an exported model; choose another name, or --force replaces it")
    foreign = [name for name in there if not (_OWN.fullmatch(name) and os.path.isfile(target / name))]
    if foreign:
        raise UserError(
            f"cannot write {path}: beside an exported model this folder holds {foreign[0]}, which --force would "
            "delete; move it, or choose another name"
        )


@contextlib.contextmanager
def new_folder(path, force: bool = False) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` when the block ends without an error; else nothing is left of it.

    A link is followed. An older export that ``force`` replaces stays as it was until the new one is whole.

    Args:
        path, force: as for :func:`check_output`, which is asked once more before the older folder goes.

    Yields:
        the temporary folder, beside ``path``.

    Raises:
        UserError: something cannot be written; names the system's reason.
    """
    check_output(path, force)
    target = Path(os.path.realpath(path))
    # Beside it, because a rename works within one file system; made plainly, not by tempfile, whose folders nobody
    # else may read.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    older = target.with_name(f".{target.name}.{os.getpid()}.old")
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # of a killed process that had this one's number
        temporary.mkdir()
        yield temporary
        for file in temporary.iterdir():
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
        check_output(path, force)
        try:
            if os.path.isdir(target) and os.listdir(target):
                os.rename(target, older)
            os.rename(temporary, target)
        except BaseException:  # a signal between the two, too
            if os.path.isdir(older) and not os.path.isdir(target):
                os.rename(older, target)
            raise
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if os.path.isdir(target):  # else the older one could not be put back: it is kept where it is
            shutil.rmtree(older, ignore_errors=True)


def write_info(folder: Path, text: TextSettings, subword_file: str | None, info: dict):
    """Write ``fairseq_rope.json`` into a folder whose other files are all there.

    Args:
        folder: the folder.
        text: how text is prepared.
        subword_file: name of the subwords' file in the folder, or None.
        info: what else is recorded; ``limits`` has to be there (see :class:`ModelFolder`).
    """
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    content = {"format": FORMAT, "text": text.to_dict(), "subword_file": subword_file, **info, "files": files}
    with open(folder / INFO, "w", encoding="utf-8", newline="\n") as file:
        json.dump(content, file, indent=1, ensure_ascii=False)
        file.write("\n")


def size_of(folder: Path) -> int:
    """Bytes of all files of a folder."""
    return sum(file.stat().st_size for file in folder.iterdir())
