"""The figures of ``fairseq-rope-score``: each is sacreBLEU's own computation, on text prepared in different ways.

A reference is a list of streams, one for each translation of the test set (nearly always one); a stream is a
list of sentences.
"""

import re

from fairseq_rope.errors import UserError

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"  # fairseq's special symbols in text
ATAT = "##AT##-##AT##"
# On bytes, as perl reads a file: a letter beyond ASCII between two hyphens is more than one character to it.
_HYPHEN = re.compile(rb"(?<!\S)@-@(?!\S)|(\S)-(\S)")
SAMPLES = 1000  # of the paired bootstrap, as many as sacreBLEU's command draws
SIGNIFICANT = 0.05


def detokenize(texts, language):
    """Undo Moses tokenisation with sacremoses: a list of texts to a list of texts."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang=language)
    return [detokenizer.detokenize(text.split()) for text in texts]


def tokenize(texts, language):
    """Tokenise as fairseq's WMT scripts do (Moses ``-a``: ``x-y`` becomes ``x @-@ y``), by sacremoses' rules."""
    from fairseq_rope.prepare.moses import Tokenizer

    return list(map(Tokenizer(language).tokenize, texts))


def split_compounds(text):
    """Cut hyphenated words as fairseq's ``compound_split_bleu.sh`` does: ``x-y`` becomes ``x ##AT##-##AT## y``.

    Matches go from left to right and do not overlap, so ``a-b-c`` becomes ``a ##AT##-##AT## b-c``. The one
    difference: a token ``@-@``, a hyphen that the tokeniser (Moses ``-a``) has split already, becomes the one
    token ``##AT##-##AT##``. The script would make three of it, ``@ ##AT##-##AT## @``, which always match
    together and inflate the figure.
    """

    def cut(match):
        return ATAT.encode() if match[1] is None else b"%b %b %b" % (match[1], ATAT.encode(), match[2])

    return _HYPHEN.sub(cut, text.encode()).decode()


def _as_fairseq_counts(text):
    # fairseq encodes a line with </s> at its end and trims padding and </s>, but never the last token left: an
    # empty sentence is one token </s> to it.
    tokens = [*text.split(), EOS]
    while tokens[0] == PAD:
        tokens.pop(0)
    while len(tokens) > 1 and tokens[-1] in (PAD, EOS):
        tokens.pop()
    return tokens


def tokenized_bleu(hypotheses, references):
    """The BLEU4 of fairseq-generate and fairseq-score: cased, no smoothing, words are what spaces part.

    A reference's ``<unk>`` matches nothing, a hypothesis' ``<unk>`` neither.

    Args:
        hypotheses: list of tokenised sentences.
        references: list of streams of tokenised sentences, each as long as ``hypotheses``.

    Returns:
        float: 0 … 100.
    """
    from sacrebleu.metrics import BLEU

    def plain(texts, unknown):
        lines = (_as_fairseq_counts(text) for text in texts)
        return [" ".join(unknown if token == UNK else token for token in line) for line in lines]

    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    # the NUL keeps a reference's unknown word apart from whatever a hypothesis may hold
    return metric.corpus_score(plain(hypotheses, UNK), [plain(stream, f"\0{UNK}") for stream in references]).score


def compound_split_bleu(hypotheses, references):
    """:func:`tokenized_bleu` after :func:`split_compounds` of both sides: comparable with Vaswani et al. (2017)."""
    return tokenized_bleu(
        [split_compounds(text) for text in hypotheses],
        [[split_compounds(text) for text in stream] for stream in references],
    )


def _metrics(references, target):
    """sacreBLEU's BLEU and chrF with its command's defaults: a dict, the references counted once."""
    from sacrebleu.metrics import BLEU, CHRF

    references = [_stripped(stream) for stream in references]
    try:
        return {"bleu": BLEU(trg_lang=target, references=references), "chrf": CHRF(references=references)}
    except (ImportError, RuntimeError) as error:
        raise UserError(f"sacreBLEU cannot tokenise {target!r}: {error}") from error


def _stripped(texts):
    return [text.rstrip() for text in texts]  # sacreBLEU's command, too, drops white space at line ends


def score(hypotheses, references, target):
    """Corpus BLEU and chrF by sacreBLEU's defaults for the target language.

    Args:
        hypotheses: list of plain (detokenised) sentences.
        references: list of streams of plain sentences, each as long as ``hypotheses``.
        target: target language code; it selects BLEU's tokeniser (13a, but others for zh, ja and ko).

    Raises:
        UserError: a tokeniser that sacreBLEU needs for ``target`` is not installed.

    Returns:
        dict: ``bleu`` and ``chrf`` in 0 … 100, ``signature`` (a dict with the two signatures), ``sentences``,
        ``length_ratio`` (BLEU's tokens of the hypotheses / of the reference; None if that is empty).
    """
    figures = {"bleu": None, "chrf": None, "signature": {}, "sentences": len(hypotheses), "length_ratio": None}
    for name, metric in _metrics(references, target).items():
        result = metric.corpus_score(_stripped(hypotheses), None)
        figures[name] = result.score
        figures["signature"][name] = str(metric.get_signature())
        if name == "bleu" and result.ref_len:
            figures["length_ratio"] = result.sys_len / result.ref_len
    return figures


def paired_bootstrap(hypotheses, baseline, references, target):
    """Paired bootstrap resampling (Koehn 2004) of a system against a baseline, by sacreBLEU's own test.

    Equal to ``sacrebleu REF -i BASELINE SYSTEM -m bleu chrf --paired-bs``, seed (12345, or ``$SACREBLEU_SEED``)
    and samples included. sacreBLEU computes a small p-value for two equal figures; it means nothing and is not
    called significant here.

    Args:
        hypotheses, baseline: lists of plain sentences.
        references, target: as in :func:`score`.

    Returns:
        dict: ``samples``, ``signature`` (a dict), and for ``bleu`` and ``chrf`` a dict of ``system`` and
        ``baseline`` (each ``score``, ``mean`` of the samples and ``interval``, half the width of their middle
        95%), ``p_value``, ``better`` ("system", "baseline" or None if equal) and ``significant``.
    """
    from sacrebleu.significance import PairedTest

    systems = [("baseline", _stripped(baseline)), ("system", _stripped(hypotheses))]
    test = PairedTest(systems, _metrics(references, target), references=None, test_type="bs", n_samples=SAMPLES)
    signatures, results = test()
    compared = {"samples": SAMPLES, "signature": {}}
    for name, theirs in (("bleu", "BLEU"), ("chrf", "chrF2")):
        base, system = results[theirs]
        difference = system.score - base.score
        compared["signature"][name] = str(signatures[theirs])
        compared[name] = {
            "system": _interval(system),
            "baseline": _interval(base),
            "p_value": system.p_value,
            "better": None if difference == 0 else "system" if difference > 0 else "baseline",
            "significant": difference != 0 and system.p_value < SIGNIFICANT,
        }
    return compared


def _interval(result):
    return {"score": float(result.score), "mean": float(result.mean), "interval": float(result.ci)}
