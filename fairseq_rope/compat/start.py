"""Calls what other mends want done before a fairseq program starts its work."""

import argparse
import inspect
import sys
from pathlib import Path

from fairseq_rope.compat.wrap import wrap

_hooks = []
_prepared = None  # the configuration that the hooks have seen


def before_run(hook):
    """Call ``hook(cfg, program)`` once before each run of a fairseq program.

    Args:
        hook: receives fairseq's whole configuration (a DictConfig, which it may change) and the name of the
            program's file: ``train``, ``generate``, ``interactive``, ``validate``, ``eval_lm``, …
    """
    if hook not in _hooks:
        _hooks.append(hook)
    _install()


def _program(main):
    return Path(inspect.unwrap(main).__code__.co_filename).stem


def _prepare(cfg, program):
    global _prepared
    for hook in _hooks:
        hook(cfg, program)
    _prepared = cfg


def _install():
    import fairseq_cli.generate
    from fairseq.distributed import utils as distributed_utils

    @wrap(distributed_utils, "call_main")
    def call_main(stock):
        def run(cfg, main, **kwargs):
            _prepare(cfg, _program(main))
            return stock(cfg, main, **kwargs)

        return run

    # fairseq-generate alone calls its main directly; under `python -m` that main is another object.
    modules = [fairseq_cli.generate]
    script = sys.modules.get("__main__")
    if getattr(script, "__file__", None) == fairseq_cli.generate.__file__:
        modules.append(script)
    for module in modules:

        @wrap(module, "main")
        def main(stock):
            from fairseq.dataclass.utils import convert_namespace_to_omegaconf

            def run(cfg):
                if isinstance(cfg, argparse.Namespace):
                    cfg = convert_namespace_to_omegaconf(cfg)
                _prepare(cfg, "generate")
                return stock(cfg)

            return run

    # fairseq-hydra-train imports the user directory only inside its main; this is what it calls next.
    train = sys.modules.get("fairseq_cli.train")
    if train is not None:

        @wrap(train, "add_defaults")
        def add_defaults(stock):
            def fill(cfg):
                stock(cfg)
                if cfg is not _prepared:
                    _prepare(cfg, "train")

            return fill
