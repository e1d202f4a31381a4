"""From archives to ``data-bin``: the stages of a preparation in their order, each atomic and run once."""

import shutil
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from fairseq_rope.errors import UserError
from fairseq_rope.files import read_lines, replacing, write_json
from fairseq_rope.prepare import corpora, manifest
from fairseq_rope.prepare.archives import sgm_segments, unpack
from fairseq_rope.prepare.binarize import SPLITS, binarize, sum_counts, write_dictionary
from fairseq_rope.prepare.download import fetch
from fairseq_rope.prepare.progress import bar
from fairseq_rope.prepare.shards import SHARD_PAIRS, cut
from fairseq_rope.prepare.state import (
    MANIFEST,
    WORK,
    Stages,
    check_finished,
    claim,
    damaged,
    locked,
    make_folder,
    need_space,
    remove,
    remove_temporary,
)  # fmt: skip
from fairseq_rope.prepare.subwords import learn_bpe, learn_sentencepiece, load_segmenter
from fairseq_rope.prepare.text import (
    SegmentJob,
    TokenizeJob,
    count_words,
    line_processor,
    read_counts,
    segment_shard,
    tokenize_shard,
)  # fmt: skip
from fairseq_rope.prepare.workers import run_jobs

STAGES = 7
# Free space that the text stages need as a multiple of the raw text: tokenised, in subwords twice, binary, less what
# each stage removes of the one before.
_SPACE = 2.0


@dataclass(frozen=True)
class Options:
    """All that decides on the result.

    Attributes:
        pair: ``en-de`` or ``en-fr``.
        recipe: whose; see :data:`fairseq_rope.prepare.corpora.RECIPES`.
        news_commentary: version of News Commentary.
        valid: ``every`` or ``newstest2013``.
        bpe_merges: joint BPE merges, or None for sentencepiece.
        sentencepiece: size of the sentencepiece vocabulary, or None for BPE.
        vocab_size: most entries of the joint dictionary, or None.
        limit: first pairs of each training corpus, or None for all.
    """

    pair: str
    recipe: str
    news_commentary: str
    valid: str
    bpe_merges: int | None
    sentencepiece: int | None
    vocab_size: int | None
    limit: int | None


class Preparation:
    """One preparation in one folder.

    Args:
        options: what to make.
        out: the folder.
        downloads: folder of the archives (default: ``out/download``); several preparations may share one.
        mirrors: folders or URLs to try before the original servers.
        workers: processes.
        say: called with each line of news.
        shard_pairs: pairs a shard; it does not change the result.
    """

    def __init__(self, options, out, downloads=None, mirrors=(), workers=1, say=None, shard_pairs=SHARD_PAIRS):
        self.options, self.out, self.mirrors, self.workers = options, Path(out), mirrors, workers
        self.say = say or partial(print, flush=True)
        self.downloads = Path(downloads) if downloads else self.out / "download"
        self.shard_pairs = shard_pairs
        self.languages = options.pair.split("-")
        self.recipe = corpora.RECIPES[options.recipe][options.pair]
        self.strict = options.limit is None
        self.work = self.out / WORK
        self.codes = self.out / ("codes" if options.bpe_merges else "sentencepiece.model")
        self.training = corpora.training_corpora(options.pair, options.news_commentary)

    def run(self):
        """Run the stages that are missing.

        Raises:
            UserError: whatever stops it; what is finished stays, and the next run goes on from there.
        """
        claim(self.out, asdict(self.options))
        with locked(self.out):
            remove_temporary(self.out)
            path = self.out / MANIFEST
            if path.exists():
                check_finished(self.out)
            else:
                try:
                    write_json(path, self._stages())
                except OSError as error:
                    raise UserError(f"{error.filename or self.out}: {error.strerror or error}") from error
            remove(self.work)
            self.say(f"{self.out} is ready: data-bin, text, raw, {self.codes.name}, {MANIFEST}")

    def _stages(self):
        stages = Stages(self.out, STAGES, self.say)
        stages.run("download", "download", self._download)
        raw = stages.run("unpack", "unpack", self._unpack)
        tokenized = stages.run("tokenize", "normalise, tokenise, split", lambda: self._tokenize(raw))
        remove(self.work / "raw")
        learned = stages.run("learn", f"learn {self._subwords()}", self._learn)
        segmented = stages.run("segment", "apply subwords, clean by length", lambda: self._segment(tokenized))
        remove(self.work / "tokenized")
        text = stages.run("text", "collect the text", lambda: self._collect(segmented))
        remove(self.work / "segmented")
        binary = stages.run("binarize", "binarise", lambda: self._binarize(segmented))
        return {
            "made": {"by": f"fairseq-rope-prepare {_own_version()}", "tools": manifest.tool_versions()},
            "options": asdict(self.options),
            "recipe": asdict(self.recipe),
            "data": raw["data"],
            "counts": {
                "raw": raw["counts"],
                "tokenised": tokenized["counts"],
                "cleaned": segmented["counts"],
                "test": raw["test"],
            },
            "subwords": {**learned, "tokens": segmented["tokens"], "dictionary": text["dictionary"]},
            "sha256": {**text["sha256"], **binary["sha256"]},
        }

    def _subwords(self):
        options = self.options
        if options.sentencepiece:
            return f"a sentencepiece model of {options.sentencepiece:,} pieces"
        return f"{options.bpe_merges:,} BPE merges"

    # -- archives ---------------------------------------------------------------------------------------------------

    def _sources(self):
        """``{archive: [(corpus or None for the test set, members by language)]}``, in the order of the corpora."""
        sources = {}
        for corpus in [*self.training, *([corpora.NEWSTEST2013] if self._fixed_valid() else [])]:
            sources.setdefault(corpus.archive, []).append((corpus, corpus.members(self.languages)))
        sources.setdefault(corpora.TEST, []).append((None, corpora.test_members(self.options.pair)))
        return sources

    def _fixed_valid(self):
        return self.options.valid == "newstest2013"

    def _fetch(self, archive):
        make_folder(self.downloads)
        with locked(self.downloads, wait=True, say=self.say):
            return fetch(archive, self.downloads, self.mirrors, strict=self.strict)

    def _download(self):
        for archive in self._sources():
            fetched = self._fetch(archive)
            if fetched.published is False:  # None: nothing is published to compare with
                self.say(f"note: {archive.name} is not the published one ({fetched.difference}); --limit accepts it")
        return {}

    def _unpack(self):
        raw = self.out / "raw"
        make_folder(raw)
        data, counts, test = {}, {}, {}
        for archive, sources in self._sources().items():
            fetched = self._fetch(archive)
            data[archive.name] = {
                "url": archive.url,
                "size": fetched.size,
                "sha256": fetched.sha256,
                "published": fetched.published,
            }
            # named after the archive's contents, so that what another archive of its name left is not taken for them
            folder = self.work / "raw" / fetched.sha256[:16]
            make_folder(folder)
            whole = any(corpus in (None, corpora.NEWSTEST2013) for corpus, _ in sources)
            members = [member for _, by_language in sources for member in by_language.values()]
            limit, unknown = None if whole else self.options.limit, fetched.published is not True
            paths = unpack(fetched.path, members, folder, limit=limit, to_end=unknown)
            for corpus, by_language in sources:
                files = {language: paths[member] for language, member in by_language.items()}
                if corpus is None:
                    test = self._raw_test(files, raw)
                    continue
                pairs = sum(shard.pairs for shard in cut(corpus.name, files))
                counts[corpus.name] = manifest.check_count(corpus.name, pairs, corpus.pairs, self.strict)
                if corpus is corpora.NEWSTEST2013:
                    for language in self.languages:
                        lines = (line for shard in cut(corpus.name, files) for line in shard.lines(language))
                        write_lines(raw / f"{corpus.name}.{language}", lines)
                else:
                    self.say(f"      {corpus.name}: {pairs:,} sentence pairs")
        return {"data": data, "counts": counts, "test": test}

    def _raw_test(self, files, raw):
        segments = {language: sgm_segments(path) for language, path in files.items()}
        lengths = {language: len(lines) for language, lines in segments.items()}
        if len(set(lengths.values())) != 1:
            raise UserError(f"{corpora.TEST_NAME} must have as many segments on both sides: {lengths}")
        for language, lines in segments.items():
            write_lines(raw / f"{corpora.TEST_NAME}.{language}", lines)
        return manifest.check_count(corpora.TEST_NAME, len(lines), corpora.TEST_PAIRS, self.strict)

    def _raw_files(self, corpus, data):
        folder = self.work / "raw" / data[corpus.archive.name]["sha256"][:16]
        return {
            language: folder / Path(member.removesuffix(".gz")).name
            for language, member in corpus.members(self.languages).items()
        }

    # -- text -------------------------------------------------------------------------------------------------------

    def _tokenize(self, raw):
        out = self.work / "tokenized"
        make_folder(out)
        shards, total, size = [], 0, 0
        for corpus in self.training:
            files = self._raw_files(corpus, raw["data"])
            shards += cut(corpus.name, files, total, len(shards), self.shard_pairs)
            total = shards[-1].first + shards[-1].pairs
            size += sum(path.stat().st_size for path in files.values())
        need_space(self.out, _SPACE * size, "the rest of the preparation")
        every = None if self._fixed_valid() else self.recipe.every
        if every is not None and total < every and not self.strict:
            every = max(2, total // 10)
            self.say(f"      fewer than {self.recipe.every:,} pairs: one in {every} is for validation")
        jobs = (
            TokenizeJob(shard, str(out), not self.options.sentencepiece, every, self.recipe.words) for shard in shards
        )
        counts = {"train": 0, "valid": 0, "words": 0}
        with bar("tokenise", total) as shown:
            for done in run_jobs(tokenize_shard, jobs, self.workers):
                shown.update(done["pairs"])
                for key in counts:
                    counts[key] += done[key]
        if self._fixed_valid():
            counts["valid"] = raw["counts"][corpora.NEWSTEST2013.name]["pairs"]
        else:
            counts["valid_is_every"] = every
        dropped = counts.pop("words")
        if self.recipe.words:
            counts["dropped"] = {"words, fewer than {} or more than {}".format(*self.recipe.words): dropped}
        return {"shards": len(shards), "bytes": size, "counts": counts}

    def _folders(self, stage):
        folder = self.work / stage
        if not folder.is_dir():
            raise damaged(self.out, f"{folder} is missing")
        return sorted(path for path in folder.iterdir() if path.name[0] != ".")

    def _learn(self):
        folders = self._folders("tokenized")
        pairs = [read_counts(folder)["train"] for folder in folders]
        if not sum(pairs):
            raise UserError("no training pairs are left: a larger --limit is needed")
        if self.options.sentencepiece:
            paths = [folder / f"train.{language}" for folder in folders for language in self.languages]
            lines = (line for path in paths for line in read_lines(path) if line)
            with bar("read sentences", 2 * sum(pairs), "sentences") as shown:
                learn_sentencepiece(_counted(lines, shown), 2 * sum(pairs), self.options.sentencepiece, self.codes)
            return {"sha256": manifest.sha256(self.codes)}
        jobs = [(str(folder), self.languages) for folder in folders]
        with bar("count words", sum(pairs)) as shown:
            words = {}
            for counts, number in zip(run_jobs(count_words, jobs, self.workers), pairs, strict=True):
                for word, count in counts.items():
                    words[word] = words.get(word, 0) + count
                shown.update(number)
        merges, left_out = learn_bpe(words, self.options.bpe_merges, self.codes)
        if merges < self.options.bpe_merges:
            self.say(f"      {merges:,} merges were learned: then no two symbols stand together twice any more")
        digest = manifest.sha256(self.codes)
        return {"words": len(words), "words_left_out": left_out, "merges": merges, "sha256": digest}

    def _segment(self, tokenized):
        out = self.work / "segmented"
        make_folder(out)
        recipe, codes = self.recipe, str(self.codes)
        jobs = (
            SegmentJob(str(folder), str(out), tuple(self.languages), codes, recipe.subwords, recipe.ratio)
            for folder in self._folders("tokenized")
        )
        kept = {"train": 0, "valid": 0}
        dropped = {"length": 0, "ratio": 0}
        tokens = dict.fromkeys(self.languages, 0)
        counted = tokenized["counts"]["train"] + (0 if self._fixed_valid() else tokenized["counts"]["valid"])
        with bar("apply subwords", counted) as shown:
            for done in run_jobs(segment_shard, jobs, self.workers):
                for total in (kept, dropped, tokens):
                    for key in total:
                        total[key] += done["tokens"][key] if total is tokens else done[key]
                shown.update(sum(done[key] for key in (*kept, *dropped)))
        if self._fixed_valid():
            kept["valid"] = tokenized["counts"]["valid"]
        for split in kept:
            if not kept[split]:
                raise UserError(f"cleaning left no pair for {split}: a larger --limit is needed")
        usual = self.options.news_commentary == recipe.news and self.options.bpe_merges == recipe.merges
        expected = recipe.cleaned if usual and self.options.valid == recipe.valid else None
        manifest.check_count("training data", kept["train"], expected, self.strict, manifest.TOLERANCE)
        return {
            "counts": {
                "train": kept["train"],
                "train_expected": expected,
                "valid": kept["valid"],
                "dropped": dropped,
            },
            "tokens": tokens,
        }

    def _collect(self, segmented):
        """Join the shards into ``text/{train,valid}.LANGUAGE``; add test set (and newstest2013) and dictionary."""
        folder = self.out / "text"
        make_folder(folder)
        folders = self._folders("segmented")
        segment = load_segmenter(str(self.codes))
        splits = ["train"] if self._fixed_valid() else ["train", "valid"]
        parts = {f"{split}.{language}": [] for split in splits for language in self.languages}
        for name, paths in parts.items():
            paths += [part / name for part in folders]
        size = sum(path.stat().st_size for paths in parts.values() for path in paths)
        with bar("collect", size, "bytes") as shown:
            for name, paths in parts.items():
                with replacing(folder / name, "wb") as file:
                    for path in paths:
                        with open(path, "rb") as part:
                            shutil.copyfileobj(part, file, 1 << 20)
                        shown.update(path.stat().st_size)
        whole = {"test": corpora.TEST_NAME}
        if self._fixed_valid():
            whole["valid"] = corpora.NEWSTEST2013.name
        for split, name in whole.items():
            for language in self.languages:
                lines = self._processed(name, language, normalize=split == "valid")
                write_lines(folder / f"{split}.{language}", map(segment, lines))
        names = [f"{split}.{language}" for split in SPLITS for language in self.languages]
        total = sum((folder / name).stat().st_size for name in names)
        with bar("checksums", total, "bytes") as shown:
            sums = manifest.checksums(folder, names, shown)
        counts = sum_counts(read_counts(part)["vocabulary"] for part in folders)
        entries = write_dictionary(counts, self.work / "dict.txt", self.options.vocab_size)
        return {"dictionary": entries, "sha256": {f"text/{name}": digest for name, digest in sums.items()}}

    def _processed(self, name, language, normalize):
        """Lines of a whole raw set. fairseq's scripts do not normalise the test set, they straighten ’ to '."""
        lines = read_lines(self.out / "raw" / f"{name}.{language}")
        sentencepiece = self.options.sentencepiece is not None
        process = line_processor(language, tokenize=not sentencepiece, normalize=normalize or sentencepiece)
        return [process(line if normalize else line.replace("’", "'")) for line in lines]

    def _binarize(self, segmented):
        dictionary, temporary, final = self.work / "dict.txt", self.work / "data-bin", self.out / "data-bin"
        remove(temporary)
        remove(final)  # of a run that was killed between the rename and the record
        sentences, tokens = segmented["counts"]["train"], sum(segmented["tokens"].values())
        binarize(self.out / "text", dictionary, temporary, self.languages, self.workers, sentences, tokens)
        names = sorted(path.name for path in temporary.iterdir() if path.name != "preprocess.log")
        sums = manifest.checksums(temporary, names)
        temporary.rename(final)
        return {"sha256": {f"data-bin/{name}": digest for name, digest in sums.items()}}


def write_lines(path, lines):
    """Write a text file, one line each, that appears whole."""
    with replacing(path) as file:
        file.writelines(f"{line}\n" for line in lines)


def _counted(lines, shown):
    for line in lines:
        shown.update(1)
        yield line


def _own_version():
    from fairseq_rope import __version__

    return __version__
