"""Published figures on newstest2014, each with the metric it was measured by, so that like is compared with like.

A BLEU of 28 means three different things on this test set: tokenised BLEU (what fairseq-generate prints),
compound-split BLEU (tokenised, every hyphenated word cut in three: up to one point higher) and sacreBLEU
(detokenised, up to one point lower). Where a source does not say which of them it gives, the metric here is
:data:`NOT_STATED` and the figure stands beside none of them.
"""

from dataclasses import dataclass

TOKENIZED, COMPOUND_SPLIT, SACREBLEU = "tokenized_bleu", "compound_split_bleu", "bleu"  # keys of --json
NOT_STATED = "not stated"

# pair -> SHA-256 of newstest2014's reference: 3,003 lines as sacreBLEU extracts them from
# test-full/newstest2014-*-ref.*.sgm of statmt.org/wmt14/test-full.tgz, each ended by a line feed
NEWSTEST2014 = {
    "en-de": "ae5d110486bc33d7175e9e28c7d0051eb3e5fcd2166dd93371089852c091a20e",
    "en-fr": "9ed99a750c7818b7bbc62230ed0b1a1673325989bdcf9f81a7d7e67bde8ca473",
}
TEST_SET = "wmt14/full"  # sacreBLEU's name of these 3,003 sentences; its "wmt14" has fewer


@dataclass(frozen=True)
class Published:
    """One published figure: ``printed`` is the number as the source prints it, ``value`` the same as a float."""

    system: str
    pair: str
    printed: str
    metric: str
    source: str

    @property
    def value(self):
        return float(self.printed)


def _rows(system, source, metric, **figures):
    """``en_de={"6-6": "27.80"}`` as :class:`Published`, one for each number of layers (encoder-decoder)."""
    return [
        Published(f"{system} {layers}", pair.replace("_", "-"), printed, metric, source)
        for pair, column in figures.items()
        for layers, printed in column.items()
    ]


def _table_7(system, en_de, en_fr):
    # its authors score by the scripts of Liu et al.: fairseq-generate --remove-bpe, no compound splitting
    # a column ends early where the deeper models failed
    de = dict(zip(("6-6", "12-12", "18-18"), en_de, strict=False))
    fr = dict(zip(("6-6", "60-12"), en_fr, strict=False))
    return _rows(system, "RealFormer, Table 7", TOKENIZED, en_de=de, en_fr=fr)


_OTT = "Ott et al. 2018, Scaling NMT"
_ADMIN_TORCH = "admin-torch, example/README.md"
_VERY_DEEP = "Liu et al. 2020, Very Deep Transformers, abstract"

FIGURES = (
    Published("Transformer base", "en-de", "27.3", COMPOUND_SPLIT, "Vaswani et al. 2017"),
    Published("Transformer big, large batches", "en-de", "29.29", COMPOUND_SPLIT, _OTT),
    Published("Transformer big, large batches", "en-de", "28.6", SACREBLEU, _OTT),
    # on text whose hyphens the tokeniser (Moses -a) has split already: fairseq issue 2009
    Published("Transformer big, large batches", "en-fr", "43.2", TOKENIZED, _OTT),
    Published("Transformer big, large batches", "en-fr", "41.4", SACREBLEU, _OTT),
    *_table_7("Post-LN (Liu et al.)", ["27.80"], ["41.29"]),
    *_table_7("Pre-LN (Liu et al.)", ["27.27", "28.26", "28.38"], ["40.74", "43.10"]),
    *_table_7("ADMIN (Liu et al.)", ["27.90", "28.58", "29.03"], ["41.47", "43.80"]),
    *_table_7("ADMIN (RealFormer's run)", ["28.06", "28.85", "29.11"], ["41.65", "43.72"]),
    *_table_7("RealFormer", ["28.17", "29.06", "29.35"], ["41.92", "43.97"]),
    # its evaluation script is fairseq-generate --remove-bpe
    *_rows("admin-torch", _ADMIN_TORCH, TOKENIZED, en_de={"6-6": "27.84", "18-18": "28.91", "100-100": "29.65"}),
    *_rows("admin-torch, constants", _ADMIN_TORCH, TOKENIZED, en_de={"6-6": "27.83", "18-18": "28.78"}),
    Published("RoFormer base", "en-de", "27.5", NOT_STATED, "RoFormer, Table 1"),
    *_rows("ADMIN", _VERY_DEEP, NOT_STATED, en_de={"60-12": "30.1"}, en_fr={"60-12": "43.8"}),
    *_rows("ADMIN with back-translation", _VERY_DEEP, NOT_STATED, en_fr={"60-12": "46.4"}),
)


def published_for(pair, sha256, test_set=None):
    """The published figures that a score on this reference may be compared with.

    Args:
        pair: language pair such as ``"en-de"``.
        sha256: hash of the reference, as :data:`NEWSTEST2014` defines it.
        test_set: sacreBLEU's name of the test set, if the reference came by name.

    Returns:
        list of :class:`Published`, empty unless the reference is newstest2014's of this pair.
    """
    if test_set != TEST_SET and sha256 != NEWSTEST2014.get(pair):
        return []
    return [figure for figure in FIGURES if figure.pair == pair]
