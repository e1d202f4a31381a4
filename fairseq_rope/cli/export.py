"""``fairseq-rope-export``: a checkpoint as a folder for CTranslate2, which translates without fairseq and torch."""

import os
import shlex
import sys

from tqdm import tqdm

from fairseq_rope.cli.program import Parser, one_line_errors
from fairseq_rope.deploy.export import QUANTIZATIONS, export
from fairseq_rope.deploy.text_options import add_text_options

PROG = "fairseq-rope-export"


def parser():
    """Return the argument parser."""
    p = Parser(
        prog=PROG,
        description="Write a trained model as a folder for CTranslate2, with its subwords and dictionaries: baseline, "
        "roformer (also with linear scaling), admin, admin-torch and deepnorm models, whose scaled shortcuts are "
        "folded into the weights. fairseq-rope-translate DIR then translates plain text, without fairseq.",
    )
    p.add_argument(
        "--path",
        required=True,
        metavar=f"CKPT[{os.pathsep}CKPT…]",
        help="the checkpoint; of several the mean is exported, since CTranslate2 has no ensembles",
    )
    p.add_argument("--data", required=True, metavar="BIN", help="the folder that fairseq-preprocess wrote")
    p.add_argument("--output", required=True, metavar="DIR", help="the folder to make")
    p.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        default="float32",
        help="how weights are stored (default: %(default)s, which computes what fairseq computes; int8 is the "
        "smallest, and on CPUs the fastest)",
    )
    p.add_argument(
        "--verify",
        metavar="FILE",
        help="compare both models on the sentences of this raw source text before anything is written: "
        "log-probabilities token by token, and the translations of beam search; in float32 a difference of "
        "log-probabilities above 1e-4 is an error",
    )
    p.add_argument("--force", action="store_true", help="replace DIR if it is an exported model")
    add_text_options(p)
    return p


def main(argv=None):
    """Entry point of ``fairseq-rope-export``; ``argv`` defaults to the command line."""
    args = parser().parse_args(argv)
    with one_line_errors(PROG):
        export(
            args.path.split(os.pathsep),
            args.data,
            args.output,
            args,
            quantization=args.quantization,
            verify=args.verify,
            force=args.force,
            warn=lambda sentence: print(f"{PROG}: warning: {sentence}", file=sys.stderr, flush=True),
            progress=lambda paths: tqdm(paths, desc="averaging", unit="checkpoint"),
        )
        print(f"translate with: fairseq-rope-translate {shlex.quote(args.output)} --input FILE")


if __name__ == "__main__":
    main()
