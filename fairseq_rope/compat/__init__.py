"""The one place that mends stock fairseq on today's Python, torch and NumPy.

Each module mends one subject and lists its mends, with their reasons, in ``MENDS``.
"""

import logging
import os
import sys

from fairseq_rope.compat import versions

logger = logging.getLogger(__name__)

_results = []  # (mend, None or why it is not active), in the order of application


def mends():
    """Every mend, in the order in which they are applied."""
    # Imported late: these modules need a fairseq whose version has been checked.
    from fairseq_rope.compat import (
        accumulation,
        bad_input,
        batching,
        checkpoints,
        ema,
        fit,
        one_line,
        precision,
        processes,
        search,
        user_dir,
        validate,
    )

    # Order matters at a run's start: what is wrapped last comes first, so inputs are checked before processes
    # are started, and precision corrects the configuration before bad_input reads it.
    first = (one_line, user_dir, checkpoints, batching, processes, precision)
    modules = (*first, validate, fit, bad_input, search, ema, accumulation)
    return [mend for module in modules for mend in module.MENDS]


def apply():
    """Check the stack and apply every mend once; a second call does nothing.

    Raises:
        UnsupportedStack: this package cannot run on this Python, torch or fairseq (one sentence). In a
            program of fairseq or of this package that sentence is its end.
    """
    if _results:
        return
    try:
        for doubt in versions.check():
            logger.warning(doubt)
    except versions.UnsupportedStack as error:
        program = os.path.basename(sys.argv[0] if sys.argv else "")
        if program.startswith("fairseq-"):
            raise SystemExit(f"{program}: error: {error}") from None
        raise
    for mend in mends():
        try:
            reason = mend.apply()
        except (AttributeError, ImportError) as error:  # a fairseq that lacks what the mend holds on to
            reason = f"cannot apply: {error}"
            logger.warning(f"the mend '{mend.name}' {reason}")
        _results.append((mend, reason))


def status():
    """What :func:`apply` did.

    Returns:
        a list of (mend, reason): reason is None for an active mend, else one sentence that says why it is not
        needed, or that it cannot be applied (starts with "cannot").
    """
    apply()
    return list(_results)
