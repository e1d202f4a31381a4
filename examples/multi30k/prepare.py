"""Collects the raw text of Multi30k for one language pair: from a local folder, else from its repository.

    python prepare.py --pair en-de --data $FAIRSEQ_ROPE_DATA/multi30k --download OUT/download --out OUT/raw

writes ``OUT/raw/{train,valid,test_2016,test_2017}.LANGUAGE``. A file is sought as ``NAME.gz`` and ``NAME``
in ``--data``, then in ``--download``; what is in neither is downloaded there. SHA-256 sums are of the
uncompressed text; a download that differs is refused, a local file that differs is used and reported.
"""

import argparse
import gzip
import hashlib
import os
import sys
import urllib.request
import zlib
from pathlib import Path

URL = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d/data/task1/raw/"
SPLITS = {"train": "train", "valid": "val", "test_2016": "test_2016_flickr", "test_2017": "test_2017_flickr"}
SHA256 = {
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
    "test_2017_flickr.de": "c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081",
    "test_2017_flickr.en": "ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98",
    "test_2017_flickr.fr": "6f3764e31dac41e9455e612958bcfd4e877c5e15cd66df2c2b2be6d9bd83e5b6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
}


def unpack(path):
    """The bytes of a plain or gzipped file; exits with a line that names a broken one."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        sys.exit(f"prepare: cannot read {path}: {error}")


def find(name, folders):
    """The first of ``NAME.gz`` and ``NAME`` in ``folders``, or None."""
    candidates = [folder / (name + suffix) for folder in folders for suffix in (".gz", "")]
    return next((path for path in candidates if path.is_file()), None)


def download(name, folder, data):
    """Fetch ``NAME.gz`` into ``folder``; it appears there only after its checksum was right."""
    url = URL + name + ".gz"
    print(f"downloading {url}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    part, path = folder / (name + ".part.gz"), folder / (name + ".gz")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            part.write_bytes(answer.read())
    except OSError as error:
        sys.exit(f"prepare: cannot download {url} ({error}); put {name}.gz or {name} into {data} by other means")
    if hashlib.sha256(unpack(part)).hexdigest() != SHA256[name]:
        sys.exit(f"prepare: {url} is not the text that this recipe was written for (wrong SHA-256): see {part}")
    os.replace(part, path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pair", required=True, help="source-target: en and de or fr, in either direction")
    parser.add_argument("--data", type=Path, required=True, help="folder that may hold the files already")
    parser.add_argument("--download", type=Path, required=True, help="folder for what has to be downloaded")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    differing = []
    for split, upstream in SPLITS.items():
        lines = {}
        for language in args.pair.split("-"):
            name = f"{upstream}.{language}"
            path = find(name, (args.data, args.download)) or download(name, args.download, args.data)
            text = unpack(path)
            lines[language] = text.count(b"\n")
            if hashlib.sha256(text).hexdigest() != SHA256[name]:
                differing.append(name)
            (args.out / f"{split}.{language}").write_bytes(text)
            print(f"{split}.{language}: {lines[language]} lines, from {path}")
        if len(set(lines.values())) != 1 or 0 in lines.values():
            counts = ", ".join(f"{upstream}.{language} {count}" for language, count in lines.items())
            sys.exit(f"prepare: the two sides must have the same number of lines, at least 1: {counts}")
    if differing:
        print(f"note: not the published text, used as it is: {', '.join(differing)}")


if __name__ == "__main__":
    main()
