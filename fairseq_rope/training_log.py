"""Reads losses by update from a log of ``fairseq-train`` (``--log-format simple`` or ``json``)."""

import json
import math
import re
from dataclasses import dataclass, field

from fairseq_rope.errors import UserError

# "… | INFO | TAG | MESSAGE" (fairseq-train), "…[TAG][INFO] - MESSAGE" (fairseq-hydra-train) or
# "INFO:TAG:MESSAGE" (Python's own form, where something was logged before the program chose its form).
# TAG is train_inner within an epoch, train at its end, and for a validation the subset's name, often valid.
_RECORD = re.compile(r"(?:INFO\s*[|:]\s*|\[)([\w.-]+)(?:\s*[|:]\s*|\]\[INFO\] - )(\{.*|epoch \d+.*)")
# "loss=4.633" within an epoch, "loss 4.633" at its end; not nll_loss or best_loss
_FIGURE = re.compile(r"(?:^|[\s,|])(loss|num_updates)[= ]\s*([^\s,|]+)")


@dataclass
class TrainingLog:
    """Losses of one training run, each a dict from update number to loss in the order of updates.

    Losses are per target token in base 2 (bits), as fairseq prints them, with label smoothing and whatever
    else the criterion adds.

    Attributes:
        train: training loss, averaged by fairseq since its last line (``--log-interval`` updates). Where the
            log has no such lines, the averages of whole epochs stand here.
        valid: validation loss; of several subsets, the first one's, by which fairseq chooses the best
            checkpoint.
    """

    train: dict[int, float] = field(default_factory=dict)
    valid: dict[int, float] = field(default_factory=dict)


def read_training_log(path):
    """Read a training log.

    A log may hold several runs of one training, one after another: where a later run repeats updates (because
    it resumed from an earlier checkpoint, or started again) its lines replace the earlier ones from there on.

    Args:
        path: the log, as ``fairseq-train … > LOG 2>&1`` or ``--log-file LOG`` writes it.

    Returns:
        a :class:`TrainingLog`; losses that are not finite are left out.

    Raises:
        UserError: the file cannot be read, or holds no losses.
    """
    series = {"train_inner": {}, "train": {}}
    try:
        # A log is for reading by eye: a damaged character in some other line must not cost the picture.
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                record = _RECORD.search(line)
                if record:
                    _add(series, record[1], record[2])
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    train = series.pop("train_inner") or series["train"]
    del series["train"]
    valid = next(iter(series.values()), {})
    log = TrainingLog(train=_finite(train), valid=_finite(valid))
    if not log.train and not log.valid:
        raise UserError(
            f"{path} holds no losses: is it a log of fairseq-train with --log-format simple or json, "
            "and did the training reach its first log line (--log-interval)?"
        )
    return log


def _add(series, tag, message):
    """Enter the figures of one line into its series, which later updates of an abandoned run leave first."""
    update, loss = _json_figures(tag, message) if message.startswith("{") else _simple_figures(message)
    if update is None or loss is None:
        return
    losses = series.setdefault(tag, {})
    if losses and update <= next(reversed(losses)):
        for later in [known for known in losses if known >= update]:
            del losses[later]
    losses[update] = loss


def _simple_figures(message):
    figures = dict(_FIGURE.findall(message))
    return _number(figures.get("num_updates"), int), _number(figures.get("loss"), float)


def _json_figures(tag, message):
    try:
        figures = json.loads(message)
    except json.JSONDecodeError:  # a line cut off by a kill
        return None, None
    prefix = "" if tag == "train_inner" else f"{tag}_"
    return _number(figures.get(f"{prefix}num_updates"), int), _number(figures.get(f"{prefix}loss"), float)


def _number(text, kind):
    try:
        return kind(float(text))
    except (TypeError, ValueError, OverflowError):
        return None


def _finite(series):
    return {update: loss for update, loss in series.items() if math.isfinite(loss)}
