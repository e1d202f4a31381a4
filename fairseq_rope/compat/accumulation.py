"""Accumulated batches of several processes: the fillers at an epoch's end count nothing, and nothing counts as one."""

from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.wrap import wrap


def _fillers_first():
    from fairseq.trainer import Trainer

    @wrap(Trainer, "train_step")
    def train_step(stock):
        def take(self, samples, *args, **kwargs):
            # stock sets the sample size of the whole update to 0 if its last batch is a filler (an empty sample)
            return stock(self, sorted(samples, key=_is_full), *args, **kwargs)

        return take


def _is_full(sample):
    return sample is not None and len(sample) > 0


def _fillers_count_nothing():
    from fairseq.tasks.fairseq_task import FairseqTask

    @wrap(FairseqTask, "train_step")
    def train_step(stock):
        def take(self, *args, **kwargs):
            loss, sample_size, logged = stock(self, *args, **kwargs)
            # train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
            if kwargs.get("ignore_grad", args[5] if len(args) > 5 else False):
                sample_size, logged = 0 * sample_size, {key: 0 * value for key, value in logged.items()}
            return loss, sample_size, logged

        return take


MENDS = [
    Mend(
        name="fillers among accumulated batches",
        reason="with several processes and --update-freq above 1, stock forgets the sample size of a process whose "
        "last batch of an epoch is a filler, so that this update's gradients are too large",
        apply=_fillers_first,
    ),
    Mend(
        name="size of fillers",
        reason="a filler that is not the last of its update counts as data: gradients are too small, figures wrong",
        apply=_fillers_count_nothing,
    ),
]
