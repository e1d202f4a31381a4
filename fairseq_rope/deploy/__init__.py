"""From checkpoint to deployment: export to CTranslate2, and translation of plain text.

Importing this package imports neither torch nor fairseq nor CTranslate2.
"""


def __getattr__(name):
    # When it is asked for: the export and its parts do without the translator.
    if name == "load_translator":
        from fairseq_rope.deploy.translator import load_translator

        return load_translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
