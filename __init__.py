"""Lets ``--user-dir`` take the root of a checkout as well; the package is its folder ``fairseq_rope``."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parent / "fairseq_rope")]

from ._alias import adopt

adopt(__name__, __path__[0])
