"""Modern-position Transformers for machine translation, as a fairseq plugin.

fairseq imports this package when a program is given ``--user-dir fairseq_rope``. The mends of stock
fairseq (:mod:`fairseq_rope.compat`) come first; then the models, optimisers and criterions register
themselves. A program of this package that works on text alone skips all that, until it asks for it.
"""

import os
import sys

__version__ = "0.1.0"

# Programs that do without fairseq, whose import takes seconds. They may call :func:`register` later.
LIGHT_PROGRAMS = ("fairseq-rope-plot", "fairseq-rope-score", "fairseq-rope-translate")


def register():
    """Import and mend fairseq, and register this package's models, optimisers and criterions with it (once)."""
    import logging

    # fairseq's text-to-speech task says at import that tensorboardX is missing; nothing here uses it.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)

    from fairseq_rope import compat

    compat.apply()

    # these register every --arch, --optimizer and --criterion; they must follow the mends
    from fairseq_rope import criterions, models, optim  # noqa: F401


if __name__ == "fairseq_rope":
    if os.path.basename(sys.argv[0] if sys.argv else "") not in LIGHT_PROGRAMS:
        register()
else:  # fairseq names a plugin after its folder or link, whatever that is called
    from ._alias import adopt

    adopt(__name__, __path__[0])
