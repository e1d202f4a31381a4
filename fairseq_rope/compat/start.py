"""Calls what other mends want done before a fairseq program starts its work."""

import argparse
import contextlib
import inspect
import sys
from pathlib import Path

from fairseq_rope.compat.wrap import wrap
from fairseq_rope.errors import UserError

_hooks = []


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


def _install():
    import fairseq_cli.generate
    from fairseq.distributed import utils as distributed_utils

    @wrap(distributed_utils, "call_main")
    def call_main(stock):
        def run(cfg, main, **kwargs):
            with _plain_end_in_hydra():
                for hook in _hooks:
                    hook(cfg, _program(main))
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
                for hook in _hooks:
                    hook(cfg, "generate")
                return stock(cfg)

            return run


@contextlib.contextmanager
def _plain_end_in_hydra():
    # hydra catches every exception itself and prints a traceback, before sys.excepthook could see it
    from hydra.core.hydra_config import HydraConfig

    try:
        yield
    except UserError as error:
        if not HydraConfig.initialized():
            raise
        from fairseq_rope.compat.one_line import say

        say(error)
        raise SystemExit(1) from error
