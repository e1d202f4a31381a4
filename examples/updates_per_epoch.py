#!/usr/bin/env python
"""How many updates an epoch of fairseq-train has, for a learning rate that has to reach 0 with the last one.

The batches are made by fairseq's own task, with the same order of sentences, filter, sizes and sharing among processes
as in training, so `epochs * this number` is the exact --total-num-update (an update that --fp16 skips because its
gradients overflow is not repeated and counts here all the same). It prints the number alone on standard output:

    python examples/updates_per_epoch.py data-bin -s en -t de --max-tokens 8192 --processes 4
"""

import argparse
import sys

from fairseq import utils
from fairseq.data.iterators import GroupedIterator
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import OmegaConf

import fairseq_rope  # noqa: F401  mends batching: stock drops what is left of a multiple of 8 sentences
from fairseq_rope.errors import UserError


def updates_per_epoch(data, source, target, max_tokens, processes=1, update_freq=1, seed=1):
    """Return the number of updates of one epoch.

    Args:
        data: folder of binarised data with a set ``train``.
        source, target: its languages.
        max_tokens: fairseq-train's ``--max-tokens``, of one batch of one process.
        processes: number of processes (GPUs) of all machines together.
        update_freq: batches that a process accumulates before an update.
        seed: fairseq-train's ``--seed``: it decides on the order of sentences of equal length, and so on the batches.

    Raises:
        UserError: no sentence is short enough.
    """
    config = TranslationConfig(data=str(data), source_lang=source, target_lang=target)
    # the fields that refer to other parts of a whole configuration
    config.train_subset, config.dataset_impl, config.required_seq_len_multiple = "train", None, 1
    task = TranslationTask.setup_task(OmegaConf.structured(config))
    task.load_dataset("train", epoch=1, combine=True)
    batches = task.get_batch_iterator(  # as fairseq.trainer.Trainer.get_train_iterator
        dataset=task.dataset("train"),
        max_tokens=max_tokens,
        max_positions=utils.resolve_max_positions(task.max_positions(), max_tokens),
        ignore_invalid_inputs=True,
        required_batch_size_multiple=8,  # fairseq-train's default
        seed=seed,
        num_shards=processes,
        shard_id=0,  # every shard is filled up to the length of the first
        epoch=1,
    )
    return len(GroupedIterator(batches.next_epoch_itr(shuffle=False), update_freq))  # as fairseq_cli.train.train


def _whole_number(text):
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not '{text}'")
    return number


def main(argv=None):
    """Print the number for the command line ``argv``."""
    parser = argparse.ArgumentParser(description="Count the updates of one epoch of fairseq-train.")
    parser.add_argument("data", help="folder of binarised data")
    parser.add_argument("-s", "--source-lang", required=True, metavar="LANG")
    parser.add_argument("-t", "--target-lang", required=True, metavar="LANG")
    parser.add_argument("--max-tokens", type=_whole_number, required=True, metavar="N", help="of one batch")
    parser.add_argument("--processes", type=_whole_number, default=1, metavar="N", help="of all machines")
    parser.add_argument("--update-freq", type=_whole_number, default=1, metavar="N", help="batches an update")
    parser.add_argument("--seed", type=_whole_number, default=1, metavar="N", help="of the training")
    args = parser.parse_args(argv)
    try:
        print(
            updates_per_epoch(
                args.data,
                args.source_lang,
                args.target_lang,
                args.max_tokens,
                processes=args.processes,
                update_freq=args.update_freq,
                seed=args.seed,
            )
        )
    except (UserError, FileNotFoundError) as error:
        sys.exit(f"updates_per_epoch.py: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
