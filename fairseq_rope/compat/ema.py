"""Exponential moving averages: of what is trained, not of what was measured once."""

from fairseq.models.ema.ema import EMA

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


MENDS = [
    Mend(
        name="moving average of ADMIN models",
        reason="stock's --store-ema averages buffers too: shortcuts measured after the copy was made would grow from "
        "0 over thousands of updates",
        apply=_copy_measured,
    )
]
