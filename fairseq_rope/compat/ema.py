"""Exponential moving averages: started from any checkpoint, and of what is trained, not of what was measured once."""

from fairseq import checkpoint_utils
from fairseq.models.ema.ema import EMA
from fairseq.trainer import Trainer

from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.wrap import wrap


def _copy_measured():
    @wrap(EMA, "__init__")
    def init(stock):
        def start(self, model, *args, **kwargs):
            stock(self, model, *args, **kwargs)
            measured = {name for name, _ in model.named_buffers() if name.endswith("_omega")}
            self.skip_keys = set(self.skip_keys) | measured

        return start


def _keep_versions():
    @wrap(EMA, "restore")
    def restore(stock):
        def put(self, state_dict, *args, **kwargs):
            versions = {
                name: value
                for name, value in self.model.state_dict().items()
                if name.endswith(".version") and name not in state_dict
            }
            return stock(self, {**state_dict, **versions}, *args, **kwargs)

        return put


def _start_from_the_model():
    @wrap(Trainer, "load_checkpoint")
    def load_checkpoint(stock):
        def load(self, *args, **kwargs):
            if not self.cfg.ema.store_ema:
                return stock(self, *args, **kwargs)
            read = checkpoint_utils.load_checkpoint_to_cpu

            def read_with_average(*args, **kwargs):
                state = read(*args, **kwargs)
                if state.get("extra_state") is not None:
                    state["extra_state"].setdefault("ema", dict(state["model"]))
                return state

            checkpoint_utils.load_checkpoint_to_cpu = read_with_average
            try:
                return stock(self, *args, **kwargs)
            finally:
                checkpoint_utils.load_checkpoint_to_cpu = read

        return load


MENDS = [
    Mend(
        name="moving average of a run without one",
        reason="--store-ema with a checkpoint that was trained without it ends stock in a KeyError: it has thrown the "
        "parameters away before it starts the average from them",
        apply=_start_from_the_model,
    ),
    Mend(
        name="moving average of pre-norm models",
        reason="stock's --store-ema leaves the format's version out, takes its own copy for one of an old release and "
        "drops the LayerNorm after the last layer from it",
        apply=_keep_versions,
    ),
    Mend(
        name="moving average of ADMIN models",
        reason="stock's --store-ema averages buffers too: shortcuts measured after the copy was made would grow from "
        "0 over thousands of updates",
        apply=_copy_measured,
    ),
]
