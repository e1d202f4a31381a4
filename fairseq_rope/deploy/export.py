"""From fairseq checkpoints to a folder that translates without fairseq: averaged, folded, converted, quantised."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from fairseq.data import Dictionary

from fairseq_rope.averaging import average_checkpoints, load_mapped
from fairseq_rope.checkpoint_files import CheckpointInfo, describe, option
from fairseq_rope.cli.average import save
from fairseq_rope.cli.fold import fold_checkpoint
from fairseq_rope.config import RopeTransformerConfig
from fairseq_rope.deploy.ctranslate2_spec import check_exportable, translation_spec
from fairseq_rope.deploy.engines import INSTALL, CTranslate2Engine
from fairseq_rope.deploy.fairseq_engine import FairseqEngine
from fairseq_rope.deploy.model_folder import SUBWORD_FILES, check_output, new_folder, read_folder, size_of, write_info
from fairseq_rope.deploy.text import TextPipeline
from fairseq_rope.deploy.text_options import TextChoice, languages, settings_for
from fairseq_rope.deploy.verify import TOLERANCE, check, compare, longest_sentence, report, sentences_of
from fairseq_rope.errors import UserError
from fairseq_rope.files import read_lines
from fairseq_rope.folding import SCALED, check_numbers
from fairseq_rope.positions import LearnedPositions, RotaryPositions
from fairseq_rope.rebuilding import as_configured, build, model_options

# ctranslate2.specs.model_spec.ACCEPTED_MODEL_TYPES; here too, so that --help works without the package.
QUANTIZATIONS = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16")
# Of sinusoidal vectors, between these the model's own limit; the upper one is stock fairseq's for its sinusoids.
LEAST_ROWS, MOST_ROWS = 1024, 10**5
# fairseq's tasks whose sentences are words and </s>; others add symbols, such as those of languages.
TASKS = ("translation", "translation_from_pretrained_xlm")


class Source(NamedTuple):
    """What is exported.

    Attributes:
        state: the checkpoint, or the mean of several.
        infos: one a file.
        paths: the files.
    """

    state: dict
    infos: list[CheckpointInfo]
    paths: list[str]


@dataclass(frozen=True)
class Converted:
    """A model as CTranslate2's specification.

    Attributes:
        spec: not yet quantised.
        arch: ``--arch``.
        limits: longest source and target in tokens with ``</s>``; None for any.
        folded: the ``--residual-init`` that was folded away, or None.
        remarks: sentences about the model, for the user.
    """

    spec: object
    arch: str
    limits: dict[str, int | None]
    folded: str | None
    remarks: list[str]


def check_installed():
    """Raise a UserError with the command that installs CTranslate2, if it is missing or too old."""
    try:
        import ctranslate2
    except ImportError as error:
        raise UserError(f"the export needs CTranslate2, which is not installed: {INSTALL}") from error
    version = tuple(int(part) for part in ctranslate2.__version__.split(".")[:2])
    if version < (4, 8):
        raise UserError(f"the export needs CTranslate2 4.8 or later, not {ctranslate2.__version__}: {INSTALL}")


def load_source(paths: list[str], progress=iter) -> Source:
    """Read one checkpoint, or the mean of several.

    Raises:
        UserError: a file is missing or no checkpoint, or they cannot be averaged.
    """
    paths = list(paths)
    if not paths or not all(paths):
        raise UserError(f"--path {os.pathsep.join(paths)!r} names no checkpoint")
    if len(paths) > 1:
        state, infos = average_checkpoints(paths, progress=progress)
    else:
        state = load_mapped(paths[0])
        infos = [describe(paths[0], state)]
    return Source(state, infos, paths)


def recorded_languages(state: dict) -> tuple[str | None, str | None]:
    """Source and target language of the task that the checkpoint was trained in.

    Raises:
        UserError: a task whose sentences are more than words and ``</s>``.
    """
    name = option(state, "task", "_name") or option(state, "task", "task") or TASKS[0]
    if name not in TASKS:
        raise UserError(
            f"it was trained with --task {name}, which may put symbols of its own into sentences; exported are models "
            f"of {', '.join(TASKS)}"
        )
    return option(state, "task", "source_lang"), option(state, "task", "target_lang")


def load_dictionary(data: Path, lang: str) -> Dictionary:
    """The dictionary of a language in a data folder; a UserError, with its name, if it cannot be read."""
    path = Path(data) / f"dict.{lang}.txt"
    try:
        return Dictionary.load(str(path))
    except Exception as error:  # fairseq raises RuntimeError, ValueError and plain Exception for a wrong file
        why = " ".join((getattr(error, "strerror", None) or str(error)).split())
        raise UserError(f"cannot read the dictionary {path}: {why}") from error


def convert(state: dict, name: str, source: Dictionary, target: Dictionary) -> Converted:
    """Convert a loaded checkpoint.

    Args:
        state: the checkpoint's dictionary; not changed.
        name: its file's name.
        source, target: dictionaries.

    Raises:
        UserError: CTranslate2 cannot compute what the model computes, the checkpoint is damaged, or the dictionaries
            are not those that it was trained with.
    """
    options = exportable_options(state)
    check_numbers(state["model"])
    check_dictionaries(state["model"], source, target)
    remarks, folded = [], None
    if options.residual_init in SCALED:
        folded = options.residual_init
        state, blocks, difference = fold_checkpoint(state, name)
        remarks.append(
            f"folded the scaled shortcuts of --residual-init {folded} into the weights ({len(blocks)} blocks; outputs "
            f"differ by {difference:.1e} of the largest one)"
        )
        options = model_options(state)
    model = build(options, state["model"])
    cfg = model.decoder.cfg
    if cfg.share_all_embeddings and source != target:
        raise UserError(
            "the model has one dictionary for source and target (--share-all-embeddings), but those of the data "
            "folder differ"
        )
    rows = min(max(LEAST_ROWS, cfg.max_source_positions, cfg.max_target_positions), MOST_ROWS)
    with torch.inference_mode():
        spec = translation_spec(model, source.symbols, target.symbols, rows)
    spec.validate()
    limits = {side: limit_of(stack, rows) for side, stack in (("source", model.encoder), ("target", model.decoder))}
    return Converted(spec, options.arch, limits, folded, [summary(model), *remarks])


def exportable_options(state: dict) -> Namespace:
    """Options of a checkpoint's model, if CTranslate2 can compute it; else a UserError says why not."""
    options = model_options(state, foreign="{0}: CTranslate2's own ct2-fairseq-converter may convert it")
    with as_configured():
        cfg = RopeTransformerConfig.from_model_config(options)
    check_exportable(cfg)
    return options


def check_dictionaries(model: dict, source: Dictionary, target: Dictionary):
    """Raise a UserError if the embeddings have not as many rows as the dictionaries have symbols."""
    for stack, side, dictionary in (("encoder", "source", source), ("decoder", "target", target)):
        weight = model.get(f"{stack}.embed_tokens.weight")
        if isinstance(weight, torch.Tensor) and weight.dim() == 2 and len(weight) != len(dictionary):
            raise UserError(
                f"the {side} dictionary is not the one that the model was trained with: it has {len(dictionary):,} "
                f"symbols, and the model {len(weight):,} embeddings"
            )


def limit_of(stack, rows: int) -> int | None:
    """Longest sentence in tokens that an exported stack has positions for, or None."""
    if isinstance(stack.embed_positions, RotaryPositions):
        return None
    return stack.max_positions() if isinstance(stack.embed_positions, LearnedPositions) else rows


def summary(model) -> str:
    """Sizes and positions of a model in a line."""
    cfg = model.decoder.cfg
    stacks = []
    for name in ("encoder", "decoder"):
        sizes, layers = getattr(cfg, name), len(getattr(model, name).layers)
        norm = "pre-norm" if sizes.normalize_before else "post-norm"
        stacks.append(
            f"{layers} layers of {sizes.embed_dim} (feed-forward {sizes.ffn_embed_dim}, {sizes.attention_heads} heads, "
            f"{norm}, positions {cfg.position_encoding_of(name)})"
        )
    if stacks[0] == stacks[1]:
        return f"encoder and decoder: {stacks[0]}"
    return f"encoder: {stacks[0]}; decoder: {stacks[1]}"


def fingerprint(path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_model(
    folder: Path, converted: Converted, text: TextChoice, data: Path, source: Source, quantization: str = "float32"
):
    """Quantise a converted model, whose specification is used up, and write all files of an exported folder.

    Raises:
        UserError: CTranslate2 cannot store the weights so.
        OSError: the folder cannot be written.
    """
    import ctranslate2

    _check_zeros(converted.spec, quantization)
    converted.spec.optimize(quantization)
    converted.spec.save(str(folder))
    settings = text.settings
    for lang in {settings.source_lang, settings.target_lang}:
        shutil.copyfile(Path(data) / f"dict.{lang}.txt", folder / f"dict.{lang}.txt")
    subword_file = SUBWORD_FILES.get(settings.subwords)
    if subword_file is not None:
        shutil.copyfile(text.subword_file, folder / subword_file)
    from fairseq_rope import __version__

    checkpoints = [
        {"file": info.name, "sha256": fingerprint(path), "epoch": info.epoch, "update": info.update}
        for info, path in zip(source.infos, source.paths, strict=True)
    ]
    info = {
        "arch": converted.arch,
        "checkpoints": checkpoints,
        "folded": converted.folded,
        "quantization": quantization,
        "limits": converted.limits,
        "versions": {
            "fairseq_rope": __version__,
            "ctranslate2": ctranslate2.__version__,
            "torch": torch.__version__,
        },
    }
    write_info(folder, settings, subword_file, info)


def _check_zeros(spec, quantization):
    """CTranslate2 divides by a matrix's largest number, and in 16 bits does not look whether it is 0."""
    if quantization == "int16":
        for name, value in spec.variables().items():
            if name.endswith("/weight") and not value.numpy().any():
                raise UserError(f"--quantization int16 cannot store {name}, which is all zeros; use int8 or float32")


def export(
    paths: list[str],
    data: str,
    output: str,
    options: Namespace,
    quantization: str = "float32",
    verify: str | None = None,
    force: bool = False,
    say: Callable[[str], None] = print,
    warn: Callable[[str], None] = print,
    progress: Callable = iter,
):
    """Export a checkpoint, or the mean of several, to the folder ``output``, which appears whole or not at all.

    Args:
        paths: checkpoints.
        data: the folder that fairseq-preprocess wrote, with the dictionaries.
        output: the folder to make.
        options: text options, see :func:`~fairseq_rope.deploy.text_options.add_text_options`.
        quantization: one of :data:`QUANTIZATIONS`.
        verify: raw source text, one sentence a line, to compare both models on; None for no comparison.
        force: replace an exported model at ``output``.
        say, warn: what to do with sentences for the user.
        progress: wraps the list of paths in an iterator that shows progress.

    Raises:
        UserError: in a sentence, whatever is wrong; ``output`` is then as it was.
    """
    check_installed()
    if quantization not in QUANTIZATIONS:
        raise UserError(f"--quantization {quantization}: no such type; choose one of {', '.join(QUANTIZATIONS)}")
    check_output(output, force)
    first = load_source(paths[:1]).state  # its tensors stay in the file, so that what is wrong is said at once
    with _naming(paths[:1]):
        exportable_options(first)
        known = recorded_languages(first)
    source_lang, target_lang = languages(options, Path(data), known)
    text = settings_for(options, Path(data), source_lang, target_lang)
    pipeline = TextPipeline(text.settings, text.subword_file)
    for sentence in text.warnings:
        warn(sentence)
    if all(known) and (source_lang, target_lang) != known:
        warn(f"trained to translate {known[0]} to {known[1]}, but exported as {source_lang} to {target_lang}")
    dictionaries = [load_dictionary(Path(data), lang) for lang in (source_lang, target_lang)]
    lines = None if verify is None else read_lines(verify)
    if lines is not None and not any(map(pipeline.encode, lines)):
        raise UserError(f"--verify {verify}: there is nothing to translate in it")

    source = load_source(paths, progress)
    with _naming(paths):
        converted = convert(source.state, source.infos[0].name, *dictionaries)
    say(f"model: {converted.arch}, {source_lang} to {target_lang}")
    if len(source.paths) > 1:
        say(f"averaged the parameters of {len(source.paths)} checkpoints (CTranslate2 has no ensembles)")
    for sentence in (*converted.remarks, *text.found):
        say(sentence)
    with new_folder(output, force) as folder:
        write_model(folder, converted, text, Path(data), source, quantization)
        if lines is not None:
            verify_export(folder, source, Path(data), lines, say)
        size = size_of(folder)
    say(f"wrote {output}: {size / 1e6:.1f} MB, weights in {quantization}")


@contextlib.contextmanager
def _naming(paths):
    """Put the checkpoint's name before errors about what it holds."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{os.pathsep.join(paths)}: {error}") from error


def verify_export(folder: Path, source: Source, data: Path, lines: list[str], say: Callable[[str], None] = print):
    """Compare an exported folder with the checkpoint it was made of, loaded as fairseq-generate loads it.

    Raises:
        UserError: the export is in float32 and not the same function.
    """
    model = read_folder(folder)
    pipeline = TextPipeline(model.text, model.subword_file)
    threads = torch.get_num_threads()
    exported = CTranslate2Engine(folder, threads, limits=(model.source_limit, model.target_limit))
    with tempfile.TemporaryDirectory() as scratch:
        paths = [Path(path) for path in source.paths]
        if len(paths) > 1:
            paths = [Path(scratch) / "mean.pt"]
            save(source.state, paths[0])
        trained = FairseqEngine(paths, data, model.text.source_lang, model.text.target_lang, threads)
    sentences, empty = sentences_of(lines, pipeline, longest_sentence(trained, exported))
    comparison = compare(trained, exported, sentences, empty)
    exact = model.info["quantization"] == "float32"
    for sentence in report(comparison, pipeline, TOLERANCE if exact else None):
        say(sentence)
    if exact:
        check(comparison)
