"""Checks the folders and files that a fairseq program is given, before it starts and writes anything."""

import ast
import difflib
import os
import tempfile

from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.start import before_run
from fairseq_rope.errors import UserError

_DEFAULT_RESTORE = "checkpoint_last.pt"


def check_run(cfg, program):
    """Refuse a run whose data, checkpoints or output folder cannot be used.

    Args:
        cfg: fairseq's whole configuration.
        program: ``train``, ``generate``, ``interactive``, ``validate``, …

    Raises:
        UserError: names the folder or file and what is expected there.
    """
    if program == "train":
        splits = [cfg.dataset.train_subset]
        if not cfg.dataset.disable_validation:
            splits += cfg.dataset.valid_subset.split(",")
        _check_data(cfg.task, splits)
        _check_start(cfg.checkpoint)
        _check_writable("--save-dir", cfg.checkpoint.save_dir)
        if cfg.common.log_file is not None:
            _check_writable("--log-file", os.path.dirname(cfg.common.log_file) or ".")
        if cfg.dataset.max_tokens is None and cfg.dataset.batch_size is None:
            raise UserError("the size of a batch is missing: give --max-tokens or --batch-size")
    elif program in ("generate", "interactive", "validate"):
        splits = {"generate": cfg.dataset.gen_subset, "validate": cfg.dataset.valid_subset}.get(program, "")
        _check_data(cfg.task, [split for split in splits.split(",") if split])
        _check_models(cfg.common_eval.path)
        if program == "validate" and len(cfg.common_eval.path.split(os.pathsep)) > 1:
            raise UserError(f"--path {cfg.common_eval.path}: fairseq-validate takes one checkpoint")
        _check_overrides(cfg.common_eval.model_overrides)
        _check_generation(cfg)
        if program == "generate" and cfg.common_eval.results_path is not None:
            _check_writable("--results-path", cfg.common_eval.results_path)


def _check_data(task, splits):
    from fairseq.tasks import TASK_REGISTRY
    from fairseq.tasks.translation import TranslationTask
    from fairseq.utils import split_paths

    kind = TASK_REGISTRY.get(getattr(task, "_name", None))
    if getattr(kind, "load_dataset", None) is not TranslationTask.load_dataset:
        return  # other tasks lay out their data in their own ways
    wanted = "it must hold what fairseq-preprocess writes (dict.LANG.txt, train.SRC-TGT.LANG.bin and .idx, …)"
    if not getattr(task, "data", None):
        raise UserError(f"the data folder is missing: {wanted}")
    for number, folder in enumerate(split_paths(task.data)):
        if "://" in folder:
            return
        if not os.path.isdir(folder):
            raise UserError(f"data folder {folder} does not exist: {wanted}")
        files = sorted(os.listdir(folder))
        if number == 0:
            _check_first_folder(task, folder, files, splits, wanted)


def _check_first_folder(task, folder, files, splits, wanted):
    if not files:
        raise UserError(f"data folder {folder} is empty: {wanted}")
    dictionaries = [file[5:-4] for file in files if file.startswith("dict.") and file.endswith(".txt")]
    if not dictionaries:
        raise UserError(f"data folder {folder} has no dict.LANG.txt: {wanted}")
    languages = [task.source_lang, task.target_lang]
    for language in languages:
        if language is not None and language not in dictionaries:
            raise UserError(
                f"data folder {folder} has no dict.{language}.txt; its languages are {', '.join(dictionaries)}"
            )
    pairs = {"-".join(pair) for pair in (languages, languages[::-1])} if None not in languages else None
    named = [file.split(".") for file in files]  # SPLIT.SRC-TGT.LANG.idx, or without .idx for raw text
    found = {
        parts[0]
        for parts in named
        if len(parts) > 2 and parts[0] != "dict" and (parts[1] in pairs if pairs else "-" in parts[1])
    }
    for split in splits:
        if split not in found:
            has = f"it has {', '.join(sorted(found))}" if found else "it has no sentences"
            raise UserError(f"data folder {folder} has no set '{split}' for the languages asked for; {has}")
        data = [file for file in files if file.startswith(f"{split}.") and file.endswith(".bin")]
        if any(os.path.getsize(os.path.join(folder, file)) == 0 for file in data):
            raise UserError(f"the set '{split}' of {folder} has no sentences: at least one is needed")


def _check_models(path):
    from fairseq.utils import split_paths

    if not path:
        raise UserError("--path is missing: give a checkpoint, or several with ':' between them")
    for file in split_paths(path):
        _check_checkpoint("--path", file)


def _check_overrides(text):
    """``--model-overrides`` is a Python dict; a key that is nearly one of this package's options is a slip."""
    from fairseq_rope.config import RopeTransformerConfig

    try:
        overrides = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        overrides = None
    if not isinstance(overrides, dict):
        raise UserError(f"--model-overrides {text}: not a Python dict such as \"{{'rope_scaling': 'linear'}}\"")
    options = list(RopeTransformerConfig.__dataclass_fields__)
    for key in overrides:
        close = difflib.get_close_matches(str(key), options, n=1, cutoff=0.75)
        stock_name = str(key).startswith(("encoder_", "decoder_", "quant_noise_"))
        if close and key not in options and not stock_name:
            raise UserError(f"--model-overrides: there is no option {key!r}; {close[0]!r} is meant, perhaps")


def _check_generation(cfg):
    if cfg.generation.beam < 1:
        raise UserError(f"--beam must be at least 1, not {cfg.generation.beam}")
    files = {
        "--lm-path": cfg.generation.lm_path,
        "--input": None if cfg.interactive.input == "-" else cfg.interactive.input,
        "--bpe-codes": getattr(cfg.bpe, "bpe_codes", None),
        "--sentencepiece-model": getattr(cfg.bpe, "sentencepiece_model", None),
    }
    for flag, file in files.items():
        if file is not None and "://" not in file and not os.path.isfile(file):
            raise UserError(f"{flag} {file}: there is no such file")


def _check_start(cfg):
    own = os.path.join(cfg.save_dir, _DEFAULT_RESTORE)
    if cfg.finetune_from_model is not None and not os.path.exists(own):  # else the run goes on from its own
        _check_checkpoint("--finetune-from-model", cfg.finetune_from_model)
    # Stock starts from scratch without a word where --restore-file names no file. That is wanted only for the
    # run's own last checkpoint, which scripts name for their first start too.
    if cfg.restore_file != _DEFAULT_RESTORE and os.path.abspath(cfg.restore_file) != os.path.abspath(own):
        _check_checkpoint("--restore-file", cfg.restore_file)


def _check_checkpoint(flag, path):
    # Several shards or ranks carry a suffix that only fairseq knows: it looks for those itself.
    stem = os.path.splitext(os.path.basename(path))[0]
    folder = os.path.dirname(path) or "."
    if "://" in path or os.path.isfile(path):
        return
    if os.path.isdir(folder) and any(name.startswith((f"{stem}-", f"{stem}_part")) for name in os.listdir(folder)):
        return
    if os.path.isdir(path):
        raise UserError(f"{flag} {path} is a folder; give a file such as {os.path.join(path, 'checkpoint_best.pt')}")
    raise UserError(f"{flag} {path}: there is no such checkpoint file")


def _check_writable(flag, folder):
    if "://" in folder:
        return
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{flag} {folder} cannot be written: {error.strerror}") from error


def _check_before_run():
    before_run(check_run)


MENDS = [
    Mend(
        name="input check",
        reason="stock ends on a wrong data folder, save folder or checkpoint with a traceback, and starts "
        "from scratch where --restore-file does not exist",
        apply=_check_before_run,
    )
]
