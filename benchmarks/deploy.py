"""Exported models: sentences a second of CTranslate2 against `fairseq-generate` of the same model, and their BLEU.

    python benchmarks/deploy.py --threads 2 --checkpoint CKPT --data-bin BIN    # a trained model: some minutes
    python benchmarks/deploy.py --threads 2 --sentences 200       # weights and text of decoding.py, and stock fairseq
    python benchmarks/deploy.py --threads 2 --checkpoint CKPT --data-bin BIN --grid    # how CTranslate2 is best set

What is measured: the same sentences, subwords already, from a batch to its finished translations, beam 4, lenpen 0.6
and one limit of length. The sides of fairseq-generate get the batches that it makes (12,000 tokens in the setting
`default`, one sentence in `1`) as the translation task calls its search; those of CTranslate2 get the same sentences
through the engine of fairseq-rope-translate, which makes its own batches of them. Each side is a process of its own
with `--threads` threads; they take turns. Without --checkpoint the weights of decoding.py are exported, and `stock`,
fairseq as installed, translates with those of `baseline` too.

BLEU is sacreBLEU's on detokenised text, of the sentences that were translated, where the raw references are found
(BIN/../raw of the recipes, WORK/raw) or given; `same` counts the translations that are those of `fairseq-generate`.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import corpus
import decoding
import side_by_side
import torch
import weights
import worker
from deploy_sides import OWN_KINDS, Process
from sides import STOCK, Side, configure

USER_DIR = side_by_side.ROOT / "fairseq_rope"
FAMILIES = ("baseline", "roformer", "admin")  # those of decoding.py that can be exported
SETTINGS = ("default", "1")
FEWER = 100  # sentences of the setting `1`, which tells of latency
GRID_TOKENS = (128, 256, 512, 1024, 4096)
SHOWN = 3  # differing translations that the report shows


class Task(NamedTuple):
    """What is translated with what.

    Attributes:
        name: of the model, as the table shows it.
        checkpoint: its file.
        data: folder of fairseq-preprocess.
        languages: source and target.
        stock: file of plain tensors for stock's side, or None.
        references: raw text of the target, or None.
    """

    name: str
    checkpoint: Path
    data: Path
    languages: tuple[str, str]
    stock: Path | None
    references: Path | None


def parser():
    """Return the argument parser."""
    from fairseq_rope.deploy.export import QUANTIZATIONS
    from fairseq_rope.deploy.text_options import add_text_options

    p = side_by_side.Parser(description=__doc__)
    p.add_argument("--checkpoint", type=Path, metavar="CKPT", help="a trained model (default: weights of decoding.py)")
    p.add_argument("--data-bin", type=Path, metavar="BIN", help="its data folder, of fairseq-preprocess")
    p.add_argument("--split", default="test", help="set of BIN to translate (default: %(default)s)")
    p.add_argument("--references", type=Path, metavar="FILE", help="raw target text of that set, for BLEU")
    p.add_argument("--family", choices=FAMILIES, default="baseline", help="without --checkpoint (default: %(default)s)")
    p.add_argument(
        "--quantizations", nargs="+", choices=QUANTIZATIONS, default=["float32", "int8"], metavar="TYPE",
        help="of the exports (default: float32 int8)",
    )  # fmt: skip
    p.add_argument("--settings", nargs="+", choices=SETTINGS, default=["default"], help="default: default")
    p.add_argument(
        "--sentences", type=side_by_side.positive, default=1000,
        help=f"spread evenly over the set (default: %(default)s; the setting 1 takes at most {FEWER} of them)",
    )  # fmt: skip
    p.add_argument("--beam", type=side_by_side.positive, default=4, help="default: %(default)s")
    p.add_argument("--lenpen", type=float, default=0.6, help="default: %(default)s")
    p.add_argument(
        "--max-len-b", type=side_by_side.positive, default=200, help="longest translation (default: %(default)s)"
    )
    p.add_argument(
        "--batches", type=side_by_side.positive, metavar="N",
        help="batches that CTranslate2 translates at a time, each with threads / N threads (default: the engine's own)",
    )  # fmt: skip
    p.add_argument(
        "--batch-tokens", type=side_by_side.positive, metavar="N",
        help="tokens of CTranslate2's batches (default: the engine's own)",
    )  # fmt: skip
    p.add_argument("--grid", action="store_true", help="only CTranslate2: each way to use the threads, batch by batch")
    p.add_argument(
        "--grid-tokens", nargs="+", type=side_by_side.positive, default=list(GRID_TOKENS), metavar="N",
        help=f"batches of the grid, in tokens (default: {' '.join(map(str, GRID_TOKENS))})",
    )  # fmt: skip
    p.add_argument("--train-updates", type=side_by_side.positive, default=700, help="as in decoding.py")
    p.add_argument("--adapt-updates", type=side_by_side.positive, default=60, help="as in decoding.py")
    p.add_argument("--size", choices=("wmt", "tiny"), default="wmt", help="without --checkpoint (default: %(default)s)")
    add_text_options(p)
    corpus.add_options(p)
    side_by_side.add_options(p, rounds=3)
    return p


def start_side(kind, options, threads):
    """Start a side in a process of its own: stock's never imports this package."""
    return (Process if kind in OWN_KINDS else worker.Process)(kind, options, threads)


class Sentences(corpus.Text):
    """One binarised set of any language pair; see ``corpus.Text``."""

    def __init__(self, data, split, source, target, count):
        from fairseq import tasks

        flags = [*Side(STOCK).flags(data, "tiny", "cpu"), "-s", source, "-t", target]
        self.task = tasks.setup_task(configure(flags).task)
        try:
            self.task.load_dataset(split)
        except FileNotFoundError:
            sys.exit(f"deploy: there is no set {split} from {source} to {target} in {data}")
        self.dataset = self.task.dataset(split)
        filled = [number for number, size in enumerate(self.dataset.src_sizes) if size > 1]  # more than </s>
        self.numbers = set(corpus.spread(filled, count))

    def only(self, count):
        """The first numbers of the batches' sentences, evenly spread."""
        return corpus.spread(sorted(self.numbers), count)

    def subwords(self):
        """{sentence number as text: its subwords}, of the sentences chosen."""
        dictionary, eos = self.task.source_dictionary, self.task.source_dictionary.eos()
        return {
            str(number): [dictionary[token] for token in self.dataset.src[number].tolist() if token != eos]
            for number in sorted(self.numbers)
        }


def task_of(args, folders, scratch, start=start_side):
    """The :class:`Task` of the command line; makes a checkpoint of decoding.py's weights where none is given."""
    from fairseq_rope.deploy.export import load_source, recorded_languages
    from fairseq_rope.deploy.text_options import languages
    from fairseq_rope.rebuilding import model_options

    if args.checkpoint:
        state = load_source([str(args.checkpoint)]).state
        pair = languages(args, args.data_bin, recorded_languages(state))
        name, path, data, stock = model_options(state).arch, args.checkpoint, args.data_bin, None
    else:
        base = weights.train_base(args, folders)
        file = weights.adapt(args, folders, args.family, base, start)
        name, data, pair = args.family, folders.multi30k, ("en", "de")
        path = checkpoint_of(Side(name).flags(data, args.size, "cpu"), file, scratch / f"{name}.pt")
        stock = file if name == weights.BASE else None
    return Task(name, path, data, pair, stock, args.references or references(data, args.split, pair[1]))


def checkpoint_of(flags, file, path):
    """Write a checkpoint of fairseq's around a file of plain tensors, for these flags' model; returns its path."""
    from omegaconf import OmegaConf

    cfg = OmegaConf.to_container(configure(flags), resolve=True, enum_to_str=True)
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    torch.save({
        "args": None, "cfg": cfg, "model": torch.load(file, map_location="cpu", weights_only=True),
        "optimizer_history": [history], "task_state": {}, "extra_state": {"train_iterator": {"epoch": 1}},
    }, path)  # fmt: skip
    return path


def references(data, split, language):
    """Raw text of a set, where the recipes and corpus.py put it: beside the data folder; None where it is not."""
    names = [f"{split}.{language}", f"test_2016.{language}"][: 2 if split == "test" else 1]
    files = [Path(data).resolve().parent / "raw" / name for name in names]
    return next((file for file in files if file.is_file()), None)


def exports(args, task, scratch):
    """Export the model in each quantization; returns {quantization: folder}."""
    from fairseq_rope.deploy.export import export

    def tell(sentence):
        print(f"export: {sentence}", file=sys.stderr, flush=True)

    options = argparse.Namespace(**{**vars(args), "source_lang": task.languages[0], "target_lang": task.languages[1]})
    folders = {}
    for kind in args.quantizations:
        folders[kind] = scratch / kind
        export([str(task.checkpoint)], str(task.data), str(folders[kind]), options, kind, say=tell, warn=tell)
    return folders


def exported_options(args, folder, sentences, batches):
    """Keyword arguments of :class:`Exported`."""
    search = {"beam": args.beam, "lenpen": args.lenpen, "max_len_b": args.max_len_b, "batch_tokens": args.batch_tokens}
    return {
        "flags": ["--user-dir", str(USER_DIR)], "folder": str(folder), "sentences": sentences,
        "threads": args.threads, "batches": batches, "search": search,
    }  # fmt: skip


def open_sides(args, task, folders, text, stack, start):
    """Start all sides; returns {name: side}."""
    search = ["--beam", str(args.beam), "--lenpen", str(args.lenpen), "--max-len-b", str(args.max_len_b)]
    wanted = {}
    if task.stock:
        flags = Side(STOCK).flags(task.data, args.size, "cpu")
        wanted[STOCK] = "decoding", {"flags": flags, "weights": str(task.stock), "split": args.split, "search": search}
    flags = [str(task.data), "-s", task.languages[0], "-t", task.languages[1], "--user-dir", str(USER_DIR)]
    options = {"flags": flags, "split": args.split, "checkpoint": str(task.checkpoint), "search": search}
    wanted[task.name] = "generating", options
    for kind, folder in folders.items():
        wanted[f"CTranslate2 {kind}"] = "exported", exported_options(args, folder, text.subwords(), args.batches)
    return {
        name: stack.enter_context(contextlib.closing(start(kind, options, args.threads)))
        for name, (kind, options) in wanted.items()
    }


def translations(results, dictionary):
    """{side: {sentence number: best translation's subwords}}, whether a side gave numbers of symbols or subwords."""

    def words(best):
        return [one if isinstance(one, str) else dictionary[one] for one in best if one != dictionary.eos()]

    return {
        name: {number: words(several[0]) for number, several in result["tokens"].items()}
        for name, result in results.items()
    }


def bleu_of(found, pipeline, lines, language):
    """BLEU of translations {sentence number: subwords} against the raw lines of the whole set."""
    from fairseq_rope.scoring import score

    numbers = sorted(found)
    return score([pipeline.decode(found[n]) for n in numbers], [[lines[n] for n in numbers]], language)["bleu"]


def rows_of(setting, results, found, task, sizes, bleu):
    """Rows of the table, one a side.

    Args:
        results: of ``decoding.measure``.
        found: of :func:`translations`.
        sizes: {side: bytes of the model on the disk}.
        bleu: {side: BLEU}; empty without references.
    """
    own = found[task.name]
    rows = []
    for name, result in results.items():
        same = sum(words == own[number] for number, words in found[name].items())
        rows.append({
            "setting": setting,
            "side": name,
            "rounds": len(result["seconds"]),
            "sentences_a_second": result["sentences"] / sum(result["seconds"]),
            "speed_to_generate": side_by_side.ratio(results[task.name]["seconds"], result["seconds"]),
            "speed_to_stock": side_by_side.ratio(results[STOCK]["seconds"], result["seconds"]) if task.stock else None,
            "tokens_a_translation": statistics.fmean(len(words) for words in found[name].values()),
            "same": None if name == task.name else f"{same} of {len(own)}",
            "bleu": bleu.get(name),
            "bleu_difference": bleu[name] - bleu[task.name] if bleu and name != task.name else None,
            "model_mb": sizes[name] / 1e6 if name in sizes else None,
        })  # fmt: skip
    return rows


def difference_note(name, found, own, pipeline):
    """The first translations in which a side differs, as text."""
    differing = [number for number, words in sorted(found.items()) if words != own[number]][:SHOWN]
    shown = [f"* {n}: {pipeline.decode(own[n])} | {pipeline.decode(found[n])}" for n in differing]
    return "\n".join([f"Where {name} differs, fairseq-generate's first:", "", *shown]) if shown else ""


def run(args, folders, start=start_side):
    """Measure; writes the report after each setting and returns its rows.

    Args:
        args: of :func:`parser`.
        folders: a ``corpus.Corpus``, or None with ``--checkpoint``.
        start: how a side is started: :func:`start_side` or, in tests, ``worker.Local``.
    """
    from fairseq_rope.deploy.export import check_installed
    from fairseq_rope.deploy.model_folder import read_folder, size_of
    from fairseq_rope.deploy.text import TextPipeline
    from fairseq_rope.files import read_lines

    check_installed()
    args.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="deploy-", dir=args.work) as scratch, contextlib.ExitStack() as stack:
        task = task_of(args, folders, Path(scratch), start)
        text = Sentences(task.data, args.split, *task.languages, args.sentences)
        lines = read_lines(task.references) if task.references else None
        if lines is not None and len(lines) != len(text):
            sys.exit(
                f"deploy: {task.references} has {len(lines)} lines, and the set {args.split} {len(text)} sentences"
            )
        exported = exports(args, task, Path(scratch))
        if args.grid:
            return grid(args, task, exported, text, start)
        model = read_folder(next(iter(exported.values())))
        pipeline = TextPipeline(model.text, model.subword_file)
        sides = open_sides(args, task, exported, text, stack, start)
        sizes = {f"CTranslate2 {kind}": size_of(folder) for kind, folder in exported.items()}
        sizes[task.name] = 4 * sides[task.name].about()["total"]  # float32, without the optimiser's state
        rows, notes = [], []
        for setting in args.settings:
            if setting == "1":
                batches = [[number] for number in text.only(FEWER)]
            else:
                batches = text.batches(max_tokens=decoding.DEFAULT_TOKENS)
            results = decoding.measure(sides, batches, args.rounds, args.warmup)
            found = translations(results, text.task.target_dictionary)
            bleu = {}
            if lines is not None and setting == "default":
                bleu = {name: bleu_of(best, pipeline, lines, task.languages[1]) for name, best in found.items()}
            rows += rows_of(setting, results, found, task, sizes, bleu)
            differing = [difference_note(name, best, found[task.name], pipeline) for name, best in found.items()]
            notes += filter(None, differing) if setting == "default" else []
            title = f"{task.name} exported, beside fairseq-generate --beam {args.beam} --lenpen {args.lenpen}"
            report(args, "deploy", title, rows, notes)
    return rows


def report(args, name, title, rows, notes=()):
    """Write the report, print its table."""
    machine = {**side_by_side.machine(args), "ctranslate2": metadata.version("ctranslate2")}
    side_by_side.write_report(args.out / name, title, side_by_side.command_line(), rows, machine, notes)


def grid(args, task, exported, text, start):
    """CTranslate2 alone: batches at a time, threads each, tokens a batch; writes its report, returns its rows."""
    numbers, subwords = sorted(text.numbers), text.subwords()
    splits = [batches for batches in range(1, args.threads + 1) if args.threads % batches == 0]
    rows = []
    for kind, folder in exported.items():
        with contextlib.ExitStack() as stack:
            sides = {}
            for batches in splits:
                options = exported_options(args, folder, subwords, batches)
                sides[batches] = stack.enter_context(contextlib.closing(start("exported", options, args.threads)))
            cells = {(batches, tokens): [] for batches in splits for tokens in args.grid_tokens}
            for turn in side_by_side.progress(range(-args.warmup, args.rounds), f"rounds in {kind}"):
                for (batches, tokens), seconds in cells.items():
                    done = sides[batches].step(numbers, tokens)
                    if turn >= 0:
                        seconds.append(done["seconds"])
        best = min(cells, key=lambda cell: statistics.median(cells[cell]))
        for (batches, tokens), seconds in cells.items():
            rows.append({
                "quantization": kind,
                "batches_at_a_time": batches,
                "threads_each": args.threads // batches,
                "tokens_a_batch": tokens,
                "rounds": len(seconds),
                "sentences_a_second": side_by_side.summary([len(numbers) / one for one in seconds]),
                "speed_to_fastest": side_by_side.ratio(cells[best], seconds),
            })  # fmt: skip
        report(args, "deploy_grid", f"{task.name} in CTranslate2: threads and batches, {len(numbers)} sentences", rows)
    return rows


def main(argv=None):
    """Run the benchmark."""
    p = parser()
    args = p.parse_args(argv)
    if args.device != "cpu" or args.precision != "fp32":
        p.error("this compares sides on the CPU: leave --device and --precision out")
    if bool(args.checkpoint) != bool(args.data_bin):
        p.error("--checkpoint needs its data folder: give --data-bin, and --data-bin needs --checkpoint")
    side_by_side.check_device(p, args)
    run(args, None if args.checkpoint else corpus.prepare(args.work, args.data))


if __name__ == "__main__":
    side_by_side.one_line_errors(main)
