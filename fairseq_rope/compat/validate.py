"""``fairseq-validate`` without ``--task``: the task that the checkpoint was trained with."""

import argparse

from fairseq_rope.compat.checkpoints import load_state
from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.wrap import wrap
from fairseq_rope.errors import UserError


def task_of(path):
    """Name of the task that the checkpoint at ``path`` was trained with, ``translation`` where it says none.

    Raises:
        CheckpointError: the file is not a checkpoint.
    """
    state = load_state(path, mmap=True)
    task = getattr(state.get("args"), "task", None)
    if task is None:
        task = (state.get("cfg") or {}).get("task")
        task = getattr(task, "_name", None) if isinstance(task, argparse.Namespace) else (task or {}).get("_name")
    return task or "translation"


def _default_task():
    from fairseq import options

    @wrap(options, "parse_args_and_arch")
    def parse_args_and_arch(stock):
        def parse(parser, input_args=None, *args, **kwargs):
            # Only fairseq-validate's parser has a --task without a default.
            if any(action.dest == "task" and action.default is None for action in parser._actions):
                given = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
                given.add_argument("--task")
                given.add_argument("--path")
                known, _ = given.parse_known_args(input_args)
                if known.task is None:
                    if known.path is None:
                        raise UserError("--path is missing: give the checkpoint to validate")
                    parser.set_defaults(task=task_of(known.path))
            return stock(parser, input_args, *args, **kwargs)

        return parse


MENDS = [
    Mend(
        name="validate's task",
        reason="stock's fairseq-validate ends with KeyError: None unless --task is given",
        apply=_default_task,
    )
]
