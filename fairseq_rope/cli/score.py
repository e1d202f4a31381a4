"""``fairseq-rope-score``: detokenised, cased sacreBLEU and chrF of an output of fairseq-generate."""

import argparse
import json
import re
from pathlib import Path

from fairseq_rope.cli.program import Parser, one_line_errors
from fairseq_rope.errors import UserError
from fairseq_rope.files import check_writable, replacing, same_file
from fairseq_rope.generate_output import in_order, read_hypotheses, read_lines, refuse_subwords

PROG = "fairseq-rope-score"


def language_pair(text):
    """Split ``en-de`` into ``("en", "de")``; an argparse type."""
    match = re.fullmatch(r"([a-z]{2,3})-([a-z]{2,3})", text)
    if not match:
        raise argparse.ArgumentTypeError(f"not a language pair such as en-de: {text!r}")
    return match.groups()


def parser():
    """Return the argument parser."""
    p = Parser(
        prog=PROG,
        description="Score fairseq-generate's output, detokenised and cased, against a raw reference. The "
        "figures are sacreBLEU's own: what its command prints for the file that --hypotheses writes.",
    )
    p.add_argument("output", metavar="GENERATE-OUTPUT", help="what fairseq-generate --remove-bpe printed")
    p.add_argument("--ref", required=True, metavar="FILE", help="raw (not tokenised) reference, one sentence a line")
    p.add_argument("--pair", required=True, type=language_pair, metavar="SRC-TGT", help="language pair such as en-de")
    p.add_argument(
        "--no-detokenize",
        action="store_true",
        help="the hypotheses are plain text already (sentencepiece, or fairseq-generate --tokenizer moses)",
    )
    p.add_argument("--hypotheses", metavar="OUT", help="write the hypotheses, detokenised, in the reference's order")
    p.add_argument("--json", metavar="OUT", help="write the figures as JSON: bleu, chrf, signature, sentences")
    return p


def detokenize(texts, language):
    """Undo Moses tokenisation with sacremoses: a list of texts to a list of texts."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang=language)
    return [detokenizer.detokenize(text.split()) for text in texts]


def score(hypotheses, references, target):
    """Corpus BLEU and chrF by sacreBLEU's defaults for the target language.

    Args:
        hypotheses, references: lists of plain sentences, of equal length.
        target: target language code; it selects BLEU's tokeniser (13a, but others for zh, ja and ko).

    Raises:
        UserError: a tokeniser that sacreBLEU needs for ``target`` is not installed.

    Returns:
        dict: ``bleu`` and ``chrf`` in 0 … 100, ``signature`` (a dict with the two signatures), ``sentences``.
    """
    from sacrebleu.metrics import BLEU, CHRF

    figures = {"bleu": None, "chrf": None, "signature": {}, "sentences": len(references)}
    try:
        bleu = BLEU(trg_lang=target)
    except (ImportError, RuntimeError) as error:
        raise UserError(f"sacreBLEU cannot tokenise {target!r}: {error}") from error
    for name, metric in (("bleu", bleu), ("chrf", CHRF())):
        # sacreBLEU's command, too, drops white space at line ends
        result = metric.corpus_score([text.rstrip() for text in hypotheses], [[text.rstrip() for text in references]])
        figures[name] = result.score
        figures["signature"][name] = str(metric.get_signature())
    return figures


def table(figures, title):
    """Return the figures as labelled lines, each with its signature."""
    lines = [f"{title}, {figures['sentences']} sentences"]
    for label, name in (("sacreBLEU", "bleu"), ("chrF", "chrf")):
        lines.append(f"{label:<9}  {figures[name]:6.2f}  {figures['signature'][name]}")
    return "\n".join(lines)


def main(argv=None):
    """Entry point of ``fairseq-rope-score``; ``argv`` defaults to the command line."""
    args = parser().parse_args(argv)
    with one_line_errors(PROG):
        for path in filter(None, (args.hypotheses, args.json)):
            check_writable(path)
            if same_file(path, args.output) or same_file(path, args.ref):
                raise UserError(f"{path} is an input: choose another name to write to")
        references = read_lines(args.ref)
        if not references:
            raise UserError(f"the reference {args.ref} is empty")
        texts = in_order(read_hypotheses(args.output), len(references), args.output)
        refuse_subwords(texts, args.output)
        if not args.no_detokenize:
            texts = detokenize(texts, args.pair[1])
        if args.hypotheses:
            with replacing(args.hypotheses) as file:
                file.writelines(f"{text}\n" for text in texts)
        figures = score(texts, references, args.pair[1])
        print(table(figures, f"{Path(args.output).name} against {Path(args.ref).name}"))
        if args.json:
            with replacing(args.json) as file:
                json.dump(figures, file, indent=2, ensure_ascii=False)
                file.write("\n")


if __name__ == "__main__":
    main()
