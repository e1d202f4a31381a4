"""Finds out how a checkpoint's text is prepared: from the command line, and from what lies by its data folder."""

import os
import re
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import NamedTuple

from fairseq_rope.deploy.text import SEPARATOR, SPACE, TOKENIZERS, TextSettings, check_codes, load_sentencepiece
from fairseq_rope.errors import UserError

# Names of subword files as the recipes and fairseq-rope-prepare write them, and in exported folders.
CODES = ("codes", "bpe.codes")
MODELS = ("sentencepiece.model", "*.model")
# A dictionary made with the given subwords has next to no symbol that they cannot make.
MOST_FOREIGN = 0.1


class TextChoice(NamedTuple):
    """What :func:`settings_for` settled: the settings, the subword file or None, and sentences for the user."""

    settings: TextSettings
    subword_file: Path | None
    found: list[str]
    warnings: list[str]


def add_text_options(parser: ArgumentParser):
    """Add the options that say how text is prepared; what is not given is found out from the data folder."""
    group = parser.add_argument_group("text (found out from the data folder where it is not given)")
    group.add_argument("-s", "--source-lang", metavar="CODE", help="source language, such as en")
    group.add_argument("-t", "--target-lang", metavar="CODE", help="target language, such as de")
    group.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        help="moses, or none: words as they are typed (default: moses; none with a sentencepiece model)",
    )
    group.add_argument(
        "--no-normalize",
        dest="normalize",
        action="store_false",
        help="leave out Moses' normalisation of punctuation, which the recipes' training data went through",
    )
    subwords = group.add_mutually_exclusive_group()
    subwords.add_argument(
        "--bpe-codes", metavar="FILE", help="codes of subword-nmt (default: found by the data folder)"
    )
    subwords.add_argument(
        "--sentencepiece-model", metavar="FILE", help="model of sentencepiece (default: found by the data folder)"
    )
    subwords.add_argument("--no-subwords", action="store_true", help="the model's symbols are whole words")


def given_text_options(options: Namespace) -> list[str]:
    """Names of the text options that a command line gives, such as ``--bpe-codes``."""
    names = ("source_lang", "target_lang", "tokenizer", "bpe_codes", "sentencepiece_model", "no_subwords")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    return given + ["--no-normalize"] * (not options.normalize)


def languages(options: Namespace, data: Path, recorded: tuple[str | None, str | None] = (None, None)):
    """Source and target language: the options', else what the checkpoint recorded, else from the files' names.

    Args:
        options: as :func:`add_text_options` reads them.
        data: the folder that fairseq-preprocess wrote.
        recorded: languages of the checkpoint's task, each None if it has none.

    Returns:
        tuple of two codes for which ``data`` has dictionaries.

    Raises:
        UserError: no such folder, languages that cannot be told, or without a dictionary; those there are named.
    """
    data = Path(data)
    if not data.is_dir():
        raise UserError(f"there is no data folder {data}")
    there = sorted(path.name[len("dict.") : -len(".txt")] for path in data.glob("dict.*.txt"))
    if not there:
        raise UserError(f"{data} is no data folder: it has no dictionary dict.LANGUAGE.txt")
    source, target = (
        getattr(options, name) or known for name, known in zip(("source_lang", "target_lang"), recorded, strict=True)
    )
    if not (source and target):
        pairs = {tuple(match[1].split("-")) for path in data.iterdir() if (match := _PAIR.match(path.name))}
        fitting = [pair for pair in sorted(pairs) if source in (None, pair[0]) and target in (None, pair[1])]
        if len(fitting) != 1:
            raise UserError(
                f"which languages {data} is for cannot be told from its files: give --source-lang and --target-lang "
                f"(dictionaries there: {', '.join(there)})"
            )
        source, target = fitting[0]
    for code in (source, target):
        if code not in there:
            raise UserError(
                f"{data} has no dictionary of the language {code!r} (dict.{code}.txt); it has: {', '.join(there)}"
            )
    return source, target


_PAIR = re.compile(r"[^.]+\.([^.-]+-[^.-]+)\.")


def settings_for(options: Namespace, data: Path, source_lang: str, target_lang: str) -> TextChoice:
    """Settle how text is prepared for a model with the dictionaries of ``data``.

    Args:
        options: as :func:`add_text_options` reads them.
        data: the folder that fairseq-preprocess wrote.
        source_lang, target_lang: as :func:`languages` gives them.

    Raises:
        UserError: no subwords given or found, a file that is none of subwords, or one of another kind than the
            dictionary's.
    """
    symbols = read_symbols(Path(data) / f"dict.{source_lang}.txt")
    kind = _kind_of(symbols)
    found, warnings = [], []
    if options.no_subwords:
        subwords, path = "none", None
        if kind:
            warnings.append(
                f"--no-subwords, but the dictionary dict.{source_lang}.txt has subwords ({_MARKS[kind]!r}): the text "
                "has to be in subwords already"
            )
    elif options.bpe_codes or options.sentencepiece_model:
        path = Path(options.bpe_codes or options.sentencepiece_model)
        subwords = "subword_nmt" if options.bpe_codes else "sentencepiece"
    else:
        path = find_subwords(data, kind)
        if path is None:
            looked = ", ".join(str(folder) for folder in _folders(data))
            names = ", ".join([*(CODES if kind != "sentencepiece" else ()), *(MODELS if kind != "subword_nmt" else ())])
            advice = "" if kind else "; the dictionary has no subwords, so that --no-subwords is likely right"
            raise UserError(
                f"no subwords found: give --bpe-codes, --sentencepiece-model or --no-subwords (looked for {names} in "
                f"{looked}){advice}"
            )
        subwords = "sentencepiece" if path.suffix == ".model" else "subword_nmt"
        found.append(f"subwords: {path} ({'BPE codes' if subwords == 'subword_nmt' else 'sentencepiece model'})")
    if path is not None:
        warnings += check_belonging(subwords, path, symbols, f"dict.{source_lang}.txt")
    tokenizer = options.tokenizer or ("none" if subwords == "sentencepiece" else "moses")
    return TextChoice(
        TextSettings(source_lang, target_lang, options.normalize, tokenizer, subwords), path, found, warnings
    )


def find_subwords(data: Path, kind: str | None = None) -> Path | None:
    """The subword file that lies by a data folder, or None.

    Args:
        data: the folder that fairseq-preprocess wrote.
        kind: ``"subword_nmt"`` or ``"sentencepiece"`` to look for these only.

    Raises:
        UserError: several sentencepiece models in one folder, so that one has to be named.
    """
    for folder in _folders(data):
        for name in (*(CODES if kind != "sentencepiece" else ()), *(MODELS if kind != "subword_nmt" else ())):
            files = sorted(path for path in folder.glob(name) if path.is_file())
            if len(files) > 1:
                raise UserError(
                    f"{folder} has several sentencepiece models ({', '.join(path.name for path in files[:4])}): say "
                    "which by --sentencepiece-model"
                )
            if files:
                return files[0]
    return None


def _folders(data) -> list[Path]:
    """The data folder, the one around it and its ``subwords``; also around what ``data`` links to."""
    folders = [Path(data)]
    for around in (os.path.dirname(os.path.abspath(data)), os.path.dirname(os.path.realpath(data))):
        folders += [Path(around), Path(around) / "subwords"]
    return list(dict.fromkeys(folders))


def read_symbols(path: Path) -> list[str]:
    """Symbols of a fairseq dictionary file in its order, without the special ones that the file does not hold.

    Raises:
        UserError: the file cannot be read, or is no dictionary.
    """
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            rows = [line.rstrip().removesuffix(" #fairseq:overwrite").rpartition(" ") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the dictionary {path}: {getattr(error, 'strerror', None) or error}") from error
    for number, (symbol, _, count) in enumerate(rows, 1):
        if not symbol or not count.lstrip("-").isdecimal():
            raise UserError(f"{path} is no dictionary of fairseq's: line {number} is not a symbol and its number")
    return [symbol for symbol, _, _ in rows]


_MARKS = {"subword_nmt": SEPARATOR, "sentencepiece": SPACE}


def _kind_of(symbols) -> str | None:
    """Which subwords a dictionary is made of, by its symbols' marks."""
    if any(symbol.startswith(SPACE) for symbol in symbols):
        return "sentencepiece"
    return "subword_nmt" if any(symbol.endswith(SEPARATOR) for symbol in symbols) else None


def check_belonging(subwords: str, path: Path, symbols: list[str], name: str) -> list[str]:
    """Look whether a subword file and a dictionary were made for each other.

    Args:
        subwords: ``"subword_nmt"`` or ``"sentencepiece"``.
        path: its codes or model.
        symbols: of the source dictionary.
        name: what messages call the dictionary.

    Returns:
        list of warnings: none, or that many symbols of the dictionary do not come from these subwords.

    Raises:
        UserError: the file is of the other kind, or no such file.
    """
    kind = _kind_of(symbols)
    if kind and kind != subwords:
        right = "--bpe-codes" if kind == "subword_nmt" else "--sentencepiece-model"
        raise UserError(
            f"{path} does not belong to this model: its dictionary {name} has the subwords of "
            f"{'subword-nmt' if kind == 'subword_nmt' else 'sentencepiece'} ({_MARKS[kind]!r}); give {right}"
        )
    if subwords == "subword_nmt":
        made = {first + second for first, second in check_codes(path)}
        foreign = [symbol for symbol in symbols if len(symbol) > 1 and not _can_make(symbol, made)]
    else:
        processor = load_sentencepiece(path)
        made = {processor.id_to_piece(number) for number in range(len(processor))}
        foreign = [symbol for symbol in symbols if len(symbol) > 1 and symbol not in made]
    foreign = [symbol for symbol in foreign if not symbol.startswith("madeupword")]
    if len(foreign) <= MOST_FOREIGN * len(symbols):
        return []
    return [
        f"{path} may not be the subwords that this model was trained with: they cannot make {len(foreign):,} of "
        f"{len(symbols):,} symbols of its dictionary {name}, such as {', '.join(map(repr, foreign[:3]))}"
    ]


def _can_make(symbol, made):
    """Whether BPE whose merges give the strings ``made`` can have a symbol: single characters it always can."""
    stem = symbol.removesuffix(SEPARATOR)
    return len(stem) == 1 or (stem if stem != symbol else stem + "</w>") in made
