"""Resuming goes on exactly where the run was stopped, with one process or with several."""

from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.trainer import Trainer

from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.wrap import wrap


def _load_on_all_ranks():
    @wrap(Trainer, "load_checkpoint")
    def load_checkpoint(stock):
        def load(self, *args, **kwargs):
            if self.data_parallel_world_size > 1:
                self.cfg.checkpoint.load_checkpoint_on_all_dp_ranks = True
            return stock(self, *args, **kwargs)

        return load


def _same_batches():
    @wrap(FairseqTask, "get_batch_iterator")
    def get_batch_iterator(stock):
        def iterator(self, dataset, *args, epoch=1, **kwargs):
            # stock's own condition for making batches once and shuffling them anew in each epoch
            made_once = (
                not kwargs.get("disable_iterator_cache")
                and not kwargs.get("update_epoch_batch_itr")
                and not getattr(self.cfg, "rebuild_batches", False)
                and self.can_reuse_epoch_itr(dataset)
            )
            if epoch <= 1 or not made_once or dataset in self.dataset_to_epoch_iter:
                return stock(self, dataset, *args, epoch=epoch, **kwargs)
            batches = stock(self, dataset, *args, epoch=1, **kwargs)
            dataset.set_epoch(epoch)
            batches.epoch = epoch
            return batches

        return iterator


MENDS: list[Mend] = [
    Mend(
        name="resume on all ranks",
        reason="resuming several processes broadcasts the checkpoint with its OmegaConf configuration, which "
        "torch>=2.6 refuses to load, so every rank reads the file instead",
        apply=_load_on_all_ranks,
    ),
    Mend(
        name="same batches after resuming",
        reason="stock makes the batches from the seed plus the epoch in which a run starts and then keeps them, so "
        "one that is resumed after its first epoch sees other batches than an unbroken one",
        apply=_same_batches,
    ),
]
