"""The last stage: dictionary from the counted subwords, then fairseq-preprocess, with a bar that fairseq lacks."""

import contextlib
import logging
import os
import threading
from collections import Counter
from pathlib import Path

from fairseq_rope.errors import UserError
from fairseq_rope.prepare.progress import bar
from fairseq_rope.prepare.workers import die_with_parent

SPLITS = ("train", "valid", "test")
LEAST_SHARE = 10_000  # pairs
_guard = {"on": False}


def _after_fork():
    # fairseq's pool would outlive a killed program and go on writing
    if _guard["on"]:
        die_with_parent()


os.register_at_fork(after_in_child=_after_fork)


def write_dictionary(counts, path, size=None):
    """Write a fairseq dictionary of counted subwords, the one that fairseq-preprocess makes of the training text.

    Args:
        counts: ``{subword: number}``.
        path: the file to write.
        size: most entries, fairseq's four special symbols included (its ``--nwordssrc``); None for all.

    Returns:
        int: entries, special symbols and padding to a multiple of 8 included.
    """
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for word, number in counts.items():
        dictionary.add_symbol(word, number)
    dictionary.finalize(nwords=size or -1)
    dictionary.save(str(path))
    return len(dictionary)


def sum_counts(many):
    """Sum of many ``{subword: number}``."""
    total = Counter()
    for counts in many:
        total.update(counts)
    return total


def binarize(text, dictionary, out, pair, workers, sentences, tokens):
    """Run fairseq-preprocess on ``text/{train,valid,test}.LANGUAGE`` with a joined dictionary.

    Args:
        text: folder of the text.
        dictionary: the dictionary file of both languages.
        out: folder to write; must not exist.
        pair: source and target.
        workers: processes to keep busy.
        sentences: number of training pairs.
        tokens: number of training tokens of both sides together, without ``</s>``.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    from fairseq import options
    from fairseq_cli import preprocess

    from fairseq_rope.prepare.fast_dictionary import TASK

    # fairseq's first process waits for the others, then does its own share alone: many small shares keep it short,
    # but each costs a process
    shares = 1 if workers == 1 else max(1, min(8 * workers, sentences // LEAST_SHARE))
    arguments = ["-s", pair[0], "-t", pair[1], "--srcdict", str(dictionary), "--joined-dictionary"]
    arguments += [f"--{split}pref={text}/{split}" for split in SPLITS]
    arguments += ["--destdir", str(out), "--workers", str(shares)]
    arguments = options.get_preprocessing_parser().parse_args(arguments)
    arguments.task = TASK
    logger = logging.getLogger("fairseq_cli.preprocess")
    level, propagate, handlers = logger.level, logger.propagate, logger.handlers[:]
    logger.setLevel(logging.INFO)  # its log file, preprocess.log, is part of what users expect
    logger.propagate = False
    _guard["on"] = True
    try:
        with _watched(out, 2 * (tokens + 2 * sentences)):  # two bytes a token
            preprocess.main(arguments)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        _guard["on"] = False
        for handler in logger.handlers[:]:
            if handler not in handlers:
                handler.close()
                logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


@contextlib.contextmanager
def _watched(folder, total):
    """A bar of the bytes in ``folder``'s .bin files, out of ``total``, while the block runs."""
    done = threading.Event()

    def watch():
        with bar("binarise", total, "bytes") as shown:
            while not done.wait(0.5):
                shown.update(max(0, min(_size(folder), total) - shown.n))
            shown.update(total - shown.n)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _size(folder):
    size = 0
    for path in Path(folder).glob("*.bin"):
        with contextlib.suppress(OSError):  # fairseq removes the shares as it joins them
            size += path.stat().st_size
    return size
