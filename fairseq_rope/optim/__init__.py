"""What the recipes need and fairseq lacks; importing this package registers it as ``--optimizer``."""

from fairseq_rope.optim.radam import FairseqRAdam, RAdam, idle_updates

__all__ = ["FairseqRAdam", "RAdam", "idle_updates"]
