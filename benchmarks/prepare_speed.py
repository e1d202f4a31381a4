"""Speed of fairseq-rope-prepare against the usual tools one after another, both from archives to data-bin.

    python benchmarks/prepare_speed.py --data $FAIRSEQ_ROPE_DATA --out DIR [--merges 40000] [--copies 1] [--repeat 2]

puts real en-de text (Tatoeba, LibreOffice help, Multi30k, and the Europarl and newstest2014 of the tiny WMT mirror)
into archives of WMT's layout, then runs in turn, ``--repeat`` times each:

* usual: tar; ``sacremoses normalize tokenize -a`` in one process; every 100th line apart; ``subword-nmt learn-bpe`` and
  ``apply-bpe``, one process; Moses' cleaning by length and ratio; ``fairseq-preprocess`` with as many workers as cores;
* ours: ``fairseq-rope-prepare`` with as many workers as cores.

Prints seconds and pairs a second, stage by stage, the most memory that all processes of fairseq-rope-prepare had
together, and the ratio of the best runs. Neither includes a download. ``--copies N`` takes the text N times, to see how
time and memory grow where learning BPE does not.
"""

import argparse
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
import time
from pathlib import Path

LANGUAGES = ("en", "de")
ARCHIVES = {
    "statmt.org/wmt13/training-parallel-europarl-v7.tgz": ("training/europarl-v7.de-en.{}", "tatoeba"),
    "statmt.org/wmt13/training-parallel-commoncrawl.tgz": ("commoncrawl.de-en.{}", "multi30k"),
    "statmt.org/wmt14/training-parallel-nc-v9.tgz": ("training/news-commentary-v9.de-en.{}", "libreoffice-help"),
}
TEST = "statmt.org/wmt14/test-full.tgz"


def program(name):
    """Path of an installed console script."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def read_corpus(data, name):
    """``{language: text}`` of the training text of one corpus; Tatoeba brings the mirror's genuine text with it."""
    if name == "multi30k":
        paths = {language: data / name / f"train.{language}.gz" for language in LANGUAGES}
    else:
        paths = {language: data / name / f"train.en-de.{language}.gz" for language in LANGUAGES}
    text = {language: gzip.decompress(path.read_bytes()) for language, path in paths.items()}
    if name == "tatoeba":
        path = data / "wmt-layout" / "mirror" / "statmt.org" / "wmt13" / "training-parallel-europarl-v7.tgz"
        with tarfile.open(path) as archive:
            for language in LANGUAGES:
                text[language] += archive.extractfile(f"training/europarl-v7.de-en.{language}").read()
    return text


def make_mirror(data, mirror, copies):
    """Write the archives; returns the number of pairs and of bytes of raw text."""
    pairs = size = 0
    for path, (member, name) in ARCHIVES.items():
        (mirror / path).parent.mkdir(parents=True, exist_ok=True)
        text = {language: copies * lines for language, lines in read_corpus(data, name).items()}
        pairs += text["en"].count(b"\n")
        size += sum(map(len, text.values()))
        with tarfile.open(mirror / path, "w:gz") as archive:
            for language in LANGUAGES:
                info = tarfile.TarInfo(member.format(language))
                info.size = len(text[language])
                archive.addfile(info, io.BytesIO(text[language]))
    shutil.copyfile(data / "wmt-layout" / "mirror" / TEST, mirror / TEST)
    return pairs, size


def memory(session):
    """Bytes of all processes of a session, pages that several share counted once (Linux)."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                total += int((folder / "smaps_rollup").read_text().partition("\nPss:")[2].split()[0]) * 1024
        except (OSError, ValueError, IndexError):  # it has ended
            continue
    return total


class Clock:
    """Seconds of named stages."""

    def __init__(self):
        self.seconds = {}

    def __call__(self, name, function, *args):
        begin = time.perf_counter()
        result = function(*args)
        self.seconds[name] = self.seconds.get(name, 0) + time.perf_counter() - begin
        return result


def pipe(command, source, target):
    """Run ``command`` with files as standard input and output."""
    with open(source, "rb") as stdin, open(target, "wb") as stdout:
        subprocess.run(command, stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL, check=True)


def usual(mirror, out, merges, workers):
    """The usual tools one after another; returns seconds by stage."""
    clock = Clock()
    out.mkdir()

    def unpack():
        for path in [*ARCHIVES, TEST]:
            subprocess.run(["tar", "xf", mirror / path, "-C", out], check=True)
        for language in LANGUAGES:
            with open(out / f"raw.{language}", "wb") as joined:
                for member, _ in ARCHIVES.values():
                    joined.write((out / member.format(language)).read_bytes())
        for language, side in zip(LANGUAGES, ("src", "ref"), strict=True):
            sgm = (out / "test-full" / f"newstest2014-deen-{side}.{language}.sgm").read_text("utf-8")
            lines = [line.partition(">")[2].rpartition("<")[0] for line in sgm.split("\n") if line.startswith("<seg")]
            (out / f"rawtest.{language}").write_text("".join(f"{line}\n" for line in lines), "utf-8")

    def tokenize():
        for language in LANGUAGES:
            command = [program("sacremoses"), "-q", "-l", language, "-j", "1"]
            normalize = ["normalize", "-q", "-d", "-c"]
            pipe([*command, *normalize, "tokenize", "-a", "-x"], out / f"raw.{language}", out / f"all.{language}")
            pipe([*command, "tokenize", "-a", "-x"], out / f"rawtest.{language}", out / f"test.{language}")

    def split():
        for language in LANGUAGES:
            lines = (out / f"all.{language}").read_bytes().splitlines(keepends=True)
            held_out = [line for number, line in enumerate(lines, 1) if number % 100 == 0]
            kept = [line for number, line in enumerate(lines, 1) if number % 100]
            (out / f"valid.{language}").write_bytes(b"".join(held_out))
            (out / f"train.{language}").write_bytes(b"".join(kept))

    def learn():
        with open(out / "both", "wb") as both:
            for language in LANGUAGES:
                both.write((out / f"train.{language}").read_bytes())
        pipe([program("subword-nmt"), "learn-bpe", "-s", str(merges)], out / "both", out / "codes")

    def apply():
        for split_name in ("train", "valid", "test"):
            for language in LANGUAGES:
                name = f"{split_name}.{language}"
                pipe([program("subword-nmt"), "apply-bpe", "-c", str(out / "codes")], out / name, out / f"bpe.{name}")

    def clean():
        for split_name in ("train", "valid"):
            names = [f"{split_name}.{language}" for language in LANGUAGES]
            sides = [(out / f"bpe.{name}").read_text("utf-8").split("\n") for name in names]
            kept = []
            for pair in zip(*sides, strict=True):
                short, long = sorted(len(side.split()) for side in pair)
                if short >= 1 and long <= min(250, 1.5 * short):
                    kept.append(pair)
            for name, lines in zip(names, zip(*kept, strict=True), strict=True):
                (out / f"clean.{name}").write_text("".join(f"{line}\n" for line in lines), "utf-8")

    def binarize():
        command = [program("fairseq-preprocess"), "-s", "en", "-t", "de", "--joined-dictionary"]
        command += ["--trainpref", out / "clean.train", "--validpref", out / "clean.valid"]
        command += ["--testpref", out / "bpe.test", "--destdir", out / "data-bin", "--workers", str(workers)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    for function in (unpack, tokenize, split, learn, apply, clean, binarize):
        clock(function.__name__, function)
    return clock.seconds


PEAK = {"bytes": 0}


def watch_memory(process):
    while process.poll() is None:
        PEAK["bytes"] = max(PEAK["bytes"], memory(process.pid))
        time.sleep(1)


def ours(mirror, out, merges, workers):
    """fairseq-rope-prepare; returns seconds by stage, from the times at which it announces them."""
    command = [program("fairseq-rope-prepare"), "wmt14", "--pair", "en-de", "--news-commentary", "v9"]
    command += ["--out", out, "--mirror", mirror, "--limit", "100000000", "--bpe-merges", merges, "--workers", workers]
    seconds, latest, name = {}, time.perf_counter(), "start"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(list(map(str, command)), start_new_session=True, **pipes) as process:
        threading.Thread(target=watch_memory, args=(process,), daemon=True).start()
        for line in process.stdout:
            if line.startswith("["):
                now = time.perf_counter()
                seconds[name] = now - latest
                latest, name = now, line.partition("] ")[2].strip()
    if process.returncode:
        sys.exit("prepare_speed: fairseq-rope-prepare failed")
    seconds[name] = time.perf_counter() - latest
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("FAIRSEQ_ROPE_DATA"), help="folder of real data")
    parser.add_argument("--out", type=Path, required=True, help="folder to work in; must not exist")
    parser.add_argument("--merges", type=int, default=40_000, help="BPE merges (default: 40000)")
    parser.add_argument("--copies", type=int, default=1, help="how often to take the text (default: 1)")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each (default: 2)")
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data or FAIRSEQ_ROPE_DATA must name the folder of real data")
    workers = len(os.sched_getaffinity(0))
    args.out.mkdir(parents=True)
    pairs, size = make_mirror(args.data, args.out / "mirror", args.copies)
    results = {"pairs": pairs, "bytes": size, "cores": workers, "merges": args.merges, "usual": [], "ours": []}
    print(f"{pairs:,} pairs, {size / 1e6:.1f} MB of raw text, {workers} cores, {args.merges:,} merges", flush=True)
    for turn in range(args.repeat):
        for run in (usual, ours):
            folder = args.out / f"{run.__name__}-{turn}"
            seconds = run(args.out / "mirror", folder, args.merges, workers)
            results[run.__name__].append(seconds)
            total = sum(seconds.values())
            print(f"{run.__name__}, run {turn + 1}: {total:.1f} s, {pairs / total:.0f} pairs/s", flush=True)
            for name, value in seconds.items():
                print(f"    {name:34} {value:7.1f} s", flush=True)
            shutil.rmtree(folder)
    best = {name: min(sum(seconds.values()) for seconds in results[name]) for name in ("usual", "ours")}
    results["peak_memory"] = PEAK["bytes"]
    print(
        f"fairseq-rope-prepare: {best['usual'] / best['ours']:.2f} times as fast, {PEAK['bytes'] / 1e9:.2f} GB at most"
    )
    (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
