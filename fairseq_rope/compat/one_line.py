"""Ends a fairseq program with one line where the user, not the program, has made the mistake."""

import argparse
import sys
from pathlib import Path

from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.wrap import wrap
from fairseq_rope.errors import UserError


def say(error):
    """Print ``PROGRAM: error: MESSAGE`` as one line on standard error."""
    program = Path(sys.argv[0] or "fairseq_rope").name if sys.argv else "fairseq_rope"
    sys.stdout.flush()  # so that the line comes after the log, also where both go to one file
    print(f"{program}: error: {' '.join(str(error).split())}", file=sys.stderr)


def _end_with_one_line():
    previous = sys.excepthook
    if getattr(previous, "one_line", False):
        return

    def excepthook(kind, error, traceback):
        if issubclass(kind, UserError):
            say(error)
        else:
            previous(kind, error, traceback)

    excepthook.one_line = True
    # Only what nobody catches comes here, and Python exits with 1 afterwards: code that calls fairseq's
    # functions still gets the exception.
    sys.excepthook = excepthook


def _no_usage():
    from fairseq import options

    @wrap(options, "parse_args_and_arch")
    def parse_args_and_arch(stock):
        def parse(parser, *args, **kwargs):
            # argparse prints the usage (here several hundred lines) before its one line about the mistake
            if isinstance(parser, argparse.ArgumentParser):
                parser.print_usage = lambda file=None: None
            return stock(parser, *args, **kwargs)

        return parse


def _end_hydra_with_one_line():
    from hydra.core.utils import JobReturn

    if getattr(JobReturn.return_value.fget, "one_line", False):
        return
    stock = JobReturn.return_value

    # hydra catches every exception of a job and raises it again from here, to print its traceback
    def return_value(job):
        if isinstance(job._return_value, UserError):
            say(job._return_value)
            raise SystemExit(1) from job._return_value
        return stock.fget(job)

    return_value.one_line = True
    JobReturn.return_value = property(return_value, stock.fset, doc=stock.__doc__)


MENDS = [
    Mend(
        name="one-line endings",
        reason="a mistake in the input ends stock fairseq with a traceback that hides it, on every version",
        apply=_end_with_one_line,
    ),
    Mend(
        name="one-line endings in hydra",
        reason="fairseq-hydra-train ends on a mistake in its input with hydra's own traceback",
        apply=_end_hydra_with_one_line,
    ),
    Mend(
        name="no usage wall",
        reason="argparse prints several hundred lines of usage before the one line about a wrong flag",
        apply=_no_usage,
    ),
]
