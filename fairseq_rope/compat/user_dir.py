"""``--user-dir``: whatever path means this package, it is imported and registered once."""

import logging
import os
from pathlib import Path

from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.wrap import wrap

PACKAGE = Path(__file__).resolve().parents[1]
NAME = "fairseq_rope"

logger = logging.getLogger(__name__)
_told = set()


def find_package(user_dir):
    """The folder of this package (any copy of it) that ``--user-dir`` means, or None for another plugin.

    Looks where fairseq looks: from the working folder, then beside and inside fairseq; accepts the package's
    folder, a checkout's root, and links to either.

    Args:
        user_dir: the value of ``--user-dir``.

    Returns:
        the package's real path.
    """
    import fairseq

    inside = Path(fairseq.__file__).parent
    for base in (Path(os.path.abspath(user_dir)), inside / user_dir, inside.parent / user_dir):
        if base.exists():
            for folder in (base, base / NAME):
                if (folder / "compat" / "user_dir.py").is_file():
                    return folder.resolve()
            return None
    # After an editable install the bare name is no path; we are imported, so it can mean nobody else.
    return PACKAGE if user_dir.rstrip(os.sep) == NAME else None


def usable_user_dir():
    """The shortest value of ``--user-dir`` that fairseq understands from every working folder."""
    import fairseq

    beside_fairseq = Path(fairseq.__file__).resolve().parents[1] / NAME
    return NAME if beside_fairseq.resolve() == PACKAGE else str(PACKAGE)


def _import_once():
    from fairseq import utils

    @wrap(utils, "import_user_module")
    def import_user_module(stock):
        def import_module(args):
            user_dir = getattr(args, "user_dir", None)
            found = None if user_dir is None else find_package(user_dir)
            if found is None:
                return stock(args)
            if found != PACKAGE and found not in _told:
                _told.add(found)
                logger.warning(
                    f"--user-dir={user_dir}: {NAME} is already imported from {PACKAGE}; "
                    f"the copy in {found} is not loaded"
                )
            return None

        return import_module


MENDS = [
    Mend(
        name="user-dir by real path",
        reason="stock compares --user-dir as a string with what is imported, so that a link to this package, "
        "or an installed copy of it, is an ImportError or a second registration",
        apply=_import_once,
    )
]
