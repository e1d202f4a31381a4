"""``fairseq-rope-score``: five labelled figures of an output of fairseq-generate, the published ones beside them."""

import argparse
import contextlib
import hashlib
import json
import logging
import os
import re
import socket
from pathlib import Path
from typing import NamedTuple

from fairseq_rope import published, scoring
from fairseq_rope.cli.program import Parser, one_line_errors
from fairseq_rope.errors import UserError
from fairseq_rope.files import check_writable, read_lines, replacing, same_file
from fairseq_rope.generate_output import in_order, read_output, refuse_subwords

PROG = "fairseq-rope-score"
DOWNLOAD_TIMEOUT = 60  # seconds without an answer

DESCRIPTION = """\
Prints five figures of an output of fairseq-generate: tokenised BLEU (what fairseq-generate itself reports);
for en-de that with compound splitting, x-y to x ##AT##-##AT## y as fairseq's compound_split_bleu.sh does it, but a
hyphen that Moses -a has split already (@-@) stays one token, ##AT##-##AT##; sacreBLEU and chrF with their
signatures, detokenised against the raw reference, digit for digit what sacreBLEU's own command prints for the
file that --hypotheses writes; and sacreBLEU's length ratio. On newstest2014 (en-de, en-fr) the published figures
of the same metric stand below each.
"""


class Reference(NamedTuple):
    """A raw reference: what errors and the table call it, its streams (lists of sentences), and its files."""

    name: str
    streams: list
    files: list

    def sha256(self):
        """Hash of the sentences, each ended by a line feed: ``sha256sum`` of sacreBLEU's own file."""
        return hashlib.sha256("".join(f"{line}\n" for stream in self.streams for line in stream).encode()).hexdigest()


class System(NamedTuple):
    """One output's texts in the reference's order: as generated, plain (detokenised), and T lines (or None)."""

    texts: list
    plain: list
    targets: list | None


def language_pair(text):
    """Split ``en-de`` into ``("en", "de")``; an argparse type."""
    match = re.fullmatch(r"([a-z]{2,3})-([a-z]{2,3})", text)
    if not match:
        raise argparse.ArgumentTypeError(f"not a language pair such as en-de: {text!r}")
    return match.groups()


def parser():
    """Return the argument parser."""
    p = Parser(prog=PROG, description=DESCRIPTION)
    p.add_argument("output", metavar="GENERATE-OUTPUT", help="what fairseq-generate --remove-bpe printed")
    reference = p.add_mutually_exclusive_group(required=True)
    reference.add_argument("--ref", metavar="FILE", help="raw (not tokenised) reference, one sentence a line")
    reference.add_argument(
        "--test-set", metavar="NAME", help="take the reference of sacreBLEU's test set NAME, such as wmt14/full"
    )
    p.add_argument("--pair", required=True, type=language_pair, metavar="SRC-TGT", help="language pair such as en-de")
    p.add_argument(
        "--against",
        metavar="GENERATE-OUTPUT2",
        help="test by paired bootstrap resampling whether the output differs from this one, the baseline",
    )
    p.add_argument(
        "--no-detokenize",
        action="store_true",
        help="the hypotheses are plain text already (sentencepiece, or fairseq-generate --tokenizer moses); they and "
        "the reference are then tokenised by sacremoses (hyphens split, as Moses -a does) for tokenised BLEU. So they "
        "are, after detokenising, where the output has no T lines (fairseq-interactive)",
    )
    p.add_argument("--hypotheses", metavar="OUT", help="write the hypotheses, detokenised, in the reference's order")
    p.add_argument("--json", metavar="OUT", help="write the figures as JSON: bleu, chrf, signature, sentences, …")
    return p


def test_set_files(name, pair):
    """Paths of the reference files of a test set of sacreBLEU, which downloads it unless its folder has it.

    Raises:
        UserError: there is no such test set for the pair (names those that there are), or it cannot be got.
    """
    from sacrebleu import utils
    from sacrebleu.dataset import DATASETS

    if name not in DATASETS or pair not in DATASETS[name].langpairs:
        valid = ", ".join(other for other, dataset in DATASETS.items() if pair in dataset.langpairs) or "none"
        raise UserError(f"sacreBLEU has no test set {name!r} for {pair}; its test sets for {pair}: {valid}")
    said = []
    handler, logger = logging.Handler(logging.ERROR), logging.getLogger("sacrebleu")
    handler.emit = lambda record: said.append(record.getMessage())
    timeout, propagate = socket.getdefaulttimeout(), logger.propagate
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)  # sacreBLEU itself would wait for ever
    logger.addHandler(handler)
    logger.propagate = False
    try:
        return [str(path) for path in DATASETS[name].get_reference_files(pair)]
    except (Exception, SystemExit) as error:  # whatever can go wrong with a download, an archive or its contents
        if isinstance(error, SystemExit) and error.code != 1:  # not sacreBLEU's, but a signal's
            raise
        reason = said[0] if said else f"{type(error).__name__}: {error}"
        raise UserError(
            f"sacreBLEU cannot get its test set {name} for {pair} ({reason}): give the reference by --ref FILE, or a "
            f"complete folder {os.path.join(utils.SACREBLEU_DIR, name)} from a machine where sacreBLEU has downloaded "
            "it (the environment variable SACREBLEU names the folder that holds it)"
        ) from error
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
        socket.setdefaulttimeout(timeout)


def read_reference(args):
    """Return the :class:`Reference` that ``--ref`` or ``--test-set`` names; :class:`UserError` if it is empty."""
    if args.ref is not None:
        name, files = args.ref, [args.ref]
    else:
        name, files = args.test_set, test_set_files(args.test_set, "-".join(args.pair))
    reference = Reference(name, [read_lines(file) for file in files], files)
    for stream, file in zip(reference.streams, files, strict=True):
        if not stream:
            raise UserError(f"the reference {file} is empty")
        if len(stream) != len(reference.streams[0]):
            raise UserError(f"the references {files[0]} and {file} differ in length: one of them is damaged")
    if not files:
        raise UserError(f"sacreBLEU's test set {name} has no reference for {'-'.join(args.pair)}: give one by --ref")
    return reference


def read_system(path, reference, args):
    """Return the :class:`System` in an output of fairseq-generate.

    Raises:
        UserError: ids that are not the reference's, subwords left in, and what ``read_output`` refuses.
    """
    output, count = read_output(path), len(reference.streams[0])
    texts = in_order(output.hypotheses, count, path)
    refuse_subwords(texts, path)
    targets = None
    if output.targets:
        targets = in_order(output.targets, count, path, "T line")
        refuse_subwords(targets, path, "T line")
    return System(texts, texts if args.no_detokenize else scoring.detokenize(texts, args.pair[1]), targets)


def figures_of(system, reference, pair, plain_text):
    """All figures of one output, as ``--json`` writes them (without the comparisons).

    Args:
        system: a :class:`System`.
        reference: a :class:`Reference`.
        pair: tuple of the two language codes.
        plain_text: the generated text is not tokenised, so its T lines are not either.

    Returns:
        dict: what :func:`fairseq_rope.scoring.score` returns, ``tokenized_bleu``, ``compound_split_bleu`` (None
        unless en-de), ``tokenization`` of these two ("T lines" or "sacremoses") and ``reference``.
    """
    figures = scoring.score(system.plain, reference.streams, pair[1])
    if system.targets is None or plain_text:
        how = "sacremoses"
        texts = scoring.tokenize(system.plain, pair[1])
        streams = [scoring.tokenize(stream, pair[1]) for stream in reference.streams]
    else:
        how, texts, streams = "T lines", system.texts, [system.targets]
    figures["tokenized_bleu"] = scoring.tokenized_bleu(texts, streams)
    figures["compound_split_bleu"] = scoring.compound_split_bleu(texts, streams) if pair == ("en", "de") else None
    figures["tokenization"] = how
    figures["reference"] = {"name": reference.name, "sha256": reference.sha256()}
    return figures


def table(figures, title):
    """Return the figures as labelled lines, below each the published ones of its metric."""
    if figures["tokenization"] == "T lines":
        tokenized = "as fairseq-generate reports it: cased, on its own T lines"
    else:
        tokenized = "cased, hypotheses and raw reference tokenised by sacremoses (hyphens split)"
    signature = figures["signature"]
    rows = [
        ("tokenised BLEU", "tokenized_bleu", tokenized),
        ("compound-split BLEU", "compound_split_bleu", "the same after x-y to x ##AT##-##AT## y"),
        ("sacreBLEU", "bleu", signature["bleu"]),
        ("chrF", "chrf", signature["chrf"]),
        ("length ratio", "length_ratio", "sacreBLEU's tokens, hypotheses / reference"),
    ]
    lines = [f"{title}, {figures['sentences']} sentences"]
    for label, name, note in rows:
        if figures[name] is None:
            value, note = f"{'-':>6} ", "for en-de only" if name == "compound_split_bleu" else "the reference is empty"
        else:
            value = f"{figures[name]:7.3f}" if name == "length_ratio" else f"{figures[name]:6.2f} "
        lines += [f"{label:<19}  {value}  {note}", *_published_lines(figures, name)]
    not_stated = _published_lines(figures, published.NOT_STATED)
    if not_stated:
        lines += ["published, metric not stated", *not_stated]
    return "\n".join(lines)


def _published_lines(figures, metric):
    rows = [row for row in figures["published"] if row["metric"] == metric]
    return [f"{'':<19}  {row['printed']:>6}    {row['system']} ({row['source']})" for row in rows]


def comparison(compared, name, other):
    """Return the paired bootstrap of :func:`fairseq_rope.scoring.paired_bootstrap` as lines, the last ones in words."""
    lines = [f"paired bootstrap, {compared['samples']} samples: figure, mean ± half of the 95% interval"]
    words = []
    for label, metric in (("sacreBLEU", "bleu"), ("chrF", "chrf")):
        result = compared[metric]
        for who, key in ((other, "baseline"), (name, "system")):
            x = result[key]
            p = "equal" if result["better"] is None else f"p = {result['p_value']:.4f}"
            note = p if key == "system" else "(baseline)"
            lines.append(f"  {label:<9}  {x['score']:6.2f}  {x['mean']:6.2f} ± {x['interval']:.2f}  {note:<10}  {who}")
        if result["better"] is None:
            words.append(f"{label}: the figures are equal, there is no difference to test")
            continue
        better, worse = (name, other) if result["better"] == "system" else (other, name)
        if result["significant"]:
            words.append(f"{label}: {better} is significantly better than {worse} (p < {scoring.SIGNIFICANT})")
        else:
            words.append(
                f"{label}: {better} has the higher figure, but its difference to {worse} is not significant "
                f"(p ≥ {scoring.SIGNIFICANT})"
            )
    signatures = [f"  {signature}" for signature in compared["signature"].values()]
    return "\n".join([*lines, *signatures, *words])


def check_outputs(args, reference):
    """Refuse to write over an input or to write two files under one name."""
    outputs = [path for path in (args.hypotheses, args.json) if path]
    inputs = [args.output, *reference.files, *([args.against] if args.against else [])]
    for path in outputs:
        check_writable(path)
        if any(same_file(path, other) for other in inputs):
            raise UserError(f"{path} is an input: choose another name to write to")
    if len({os.path.realpath(path) for path in outputs}) < len(outputs):
        raise UserError(f"--hypotheses and --json name one file, {args.json}: choose two names")
    if args.against and same_file(args.against, args.output):
        raise UserError(f"--against names the output itself, {args.against}: give the output of another system")


def main(argv=None):
    """Entry point of ``fairseq-rope-score``; ``argv`` defaults to the command line."""
    args = parser().parse_args(argv)
    with one_line_errors(PROG):
        reference = read_reference(args)
        check_outputs(args, reference)
        system = read_system(args.output, reference, args)
        baseline = read_system(args.against, reference, args) if args.against else None
        figures = figures_of(system, reference, args.pair, args.no_detokenize)
        known = published.published_for("-".join(args.pair), figures["reference"]["sha256"], args.test_set)
        figures["published"] = [
            {"system": x.system, "value": x.value, "printed": x.printed, "metric": x.metric, "source": x.source}
            for x in known
        ]
        figures["paired_bootstrap"] = None
        name, other = Path(args.output).name, Path(args.against or "").name
        if name == other:
            name, other = args.output, args.against
        if baseline:
            compared = scoring.paired_bootstrap(system.plain, baseline.plain, reference.streams, args.pair[1])
            figures["paired_bootstrap"] = {"baseline": args.against, **compared}
        with contextlib.ExitStack() as stack:
            if args.hypotheses:
                file = stack.enter_context(replacing(args.hypotheses))
                file.writelines(f"{text}\n" for text in system.plain)
            if args.json:
                file = stack.enter_context(replacing(args.json))
                json.dump(figures, file, indent=2, ensure_ascii=False)
                file.write("\n")
        title = f"{Path(args.output).name} against {Path(args.ref).name if args.ref else args.test_set}"
        print(table(figures, title))
        if baseline:
            print(comparison(figures["paired_bootstrap"], name, other))


if __name__ == "__main__":
    main()
