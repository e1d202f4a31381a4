"""Modern-position Transformers for machine translation, as a fairseq plugin.

fairseq imports this package when a program is given ``--user-dir fairseq_rope``. The mends of stock
fairseq (:mod:`fairseq_rope.compat`) come first; then the models, optimisers and criterions register
themselves.
"""

import logging

__version__ = "0.1.0"

if __name__ == "fairseq_rope":
    # fairseq's text-to-speech task says at import that tensorboardX is missing; nothing here uses it.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)

    from fairseq_rope import compat

    compat.apply()

    # these register every --arch, --optimizer and --criterion; they must follow the mends
    from fairseq_rope import criterions, models, optim  # noqa: F401
else:  # fairseq names a plugin after its folder or link, whatever that is called
    from ._alias import adopt

    adopt(__name__, __path__[0])
