"""What WMT'14 En-De and En-Fr are made of: archives, members, published counts, and the recipes that use them.

Archives and members are those of fairseq's ``prepare-wmt14en2de.sh`` and ``prepare-wmt14en2fr.sh``; sizes and
checksums those that TensorFlow Datasets and sacreBLEU publish. Counts are of the raw files: for fr-en from lingvo's
WMT'14 task, for de-en they add up to the 4,590,101 pairs (4,544,200 of them for training) in fairseq issue 132's log.
"""

from dataclasses import dataclass

from fairseq_rope.prepare.download import Archive

EUROPARL = Archive(
    "http://statmt.org/wmt13/training-parallel-europarl-v7.tgz",
    size=657_632_379,
    sha256="0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)
COMMONCRAWL = Archive(
    "http://statmt.org/wmt13/training-parallel-commoncrawl.tgz",
    size=918_311_367,
    sha256="c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)
UN = Archive("http://statmt.org/wmt13/training-parallel-un.tgz")
NEWS_V9 = Archive(
    "http://statmt.org/wmt14/training-parallel-nc-v9.tgz",
    size=80_418_416,
    sha256="cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)
NEWS_V12 = Archive(
    "http://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz",
    size=168_591_139,
    sha256="2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2",
)
GIGA = Archive("http://statmt.org/wmt10/training-giga-fren.tar", size=2_595_102_720)
DEV = Archive("http://data.statmt.org/wmt17/translation-task/dev.tgz")
TEST = Archive("http://statmt.org/wmt14/test-full.tgz", md5="a8cd784e006feb32ac6f3d9ec7eb389a")


@dataclass(frozen=True)
class Corpus:
    """Two parallel files of one archive.

    Attributes:
        name: what messages and the manifest call it.
        archive: where it comes from.
        member: the members' path in the archive with ``{}`` for the language.
        pairs: number of sentence pairs as published.
    """

    name: str
    archive: Archive
    member: str
    pairs: int

    def members(self, languages):
        """Paths in the archive, by language."""
        return {language: self.member.format(language) for language in languages}


_EN_DE = [
    Corpus("europarl-v7", EUROPARL, "training/europarl-v7.de-en.{}", 1_920_209),
    Corpus("commoncrawl", COMMONCRAWL, "commoncrawl.de-en.{}", 2_399_123),
]
_NEWS_EN_DE = {
    "v9": Corpus("news-commentary-v9", NEWS_V9, "training/news-commentary-v9.de-en.{}", 201_288),
    "v12": Corpus("news-commentary-v12", NEWS_V12, "training/news-commentary-v12.de-en.{}", 270_769),
}
_EN_FR = [
    Corpus("europarl-v7", EUROPARL, "training/europarl-v7.fr-en.{}", 2_007_723),
    Corpus("commoncrawl", COMMONCRAWL, "commoncrawl.fr-en.{}", 3_244_152),
    Corpus("undoc.2000", UN, "un/undoc.2000.fr-en.{}", 12_886_831),
    Corpus("news-commentary-v9", NEWS_V9, "training/news-commentary-v9.fr-en.{}", 183_251),
    Corpus("giga-fren", GIGA, "giga-fren.release2.fixed.{}.gz", 22_520_376),
]
NEWSTEST2013 = Corpus("newstest2013", DEV, "dev/newstest2013.{}", 3_000)
TEST_NAME = "newstest2014"
TEST_PAIRS = 3_003
NEWS_VERSIONS = {"en-de": ("v9", "v12"), "en-fr": ("v9",)}
VALID_SETS = {"en-de": ("every", "newstest2013"), "en-fr": ("every",)}


@dataclass(frozen=True)
class Recipe:
    """How a paper's data was made.

    Attributes:
        news: version of News Commentary.
        valid: ``every`` (each ``every``-th line of the raw training data) or ``newstest2013``.
        every: n of that.
        merges: joint BPE merges.
        words: fewest and most tokens of a sentence before BPE, or None for no such limit.
        subwords: the same after BPE.
        ratio: a pair goes if one side has more than ``ratio`` times the other's subwords; None for no such limit.
        cleaned: pairs that are left for training, where a log of the original scripts tells, else None.
    """

    news: str
    valid: str
    every: int
    merges: int
    words: tuple | None = None
    subwords: tuple | None = None
    ratio: float | None = None
    cleaned: int | None = None


_FAIRSEQ = {"subwords": (1, 250), "ratio": 1.5}
RECIPES = {
    "fairseq": {
        # fairseq issue 132: 3,960,793 pairs are left of 4,544,200
        "en-de": Recipe(news="v12", valid="every", every=100, merges=40_000, cleaned=3_960_793, **_FAIRSEQ),
        "en-fr": Recipe(news="v9", valid="every", every=1333, merges=40_000, **_FAIRSEQ),
    },
    "admin": {
        "en-de": Recipe(news="v12", valid="newstest2013", every=100, merges=32_764, words=(1, 80)),
        "en-fr": Recipe(news="v9", valid="every", every=1333, merges=40_000, **_FAIRSEQ),
    },
}


def training_corpora(pair, news):
    """The training corpora of ``pair`` in the order of fairseq's scripts, a list of :class:`Corpus`."""
    return [*_EN_DE, _NEWS_EN_DE[news]] if pair == "en-de" else list(_EN_FR)


def test_members(pair):
    """Members of the test archive: ``{language: path}``. Both pairs name the foreign language first."""
    source, target = pair.split("-")
    prefix = f"test-full/{TEST_NAME}-{target}{source}"
    return {source: f"{prefix}-src.{source}.sgm", target: f"{prefix}-ref.{target}.sgm"}
