"""Translation by checkpoints: fairseq's own search, by the interface of :mod:`fairseq_rope.deploy.engines`.

Importing this module is quick; building an engine imports torch, fairseq and this package's models.
"""

import logging
import threading
from pathlib import Path

from fairseq_rope.deploy.engines import TICK, Hypothesis, Search
from fairseq_rope.errors import UserError


def recorded_languages(path: Path) -> tuple[str | None, str | None]:
    """Source and target language that a checkpoint was trained for, each None if it does not say.

    Raises:
        UserError: it is no checkpoint that can be read.
    """
    _register()  # what checkpoints may hold is registered too
    from fairseq_rope.averaging import load_mapped
    from fairseq_rope.checkpoint_files import option

    state = load_mapped(path)
    values = (option(state, "task", name) for name in ("source_lang", "target_lang"))
    return tuple(value if isinstance(value, str) else None for value in values)


class FairseqEngine:
    """One checkpoint, or several as an ensemble (as in fairseq-generate).

    Args:
        paths: checkpoint files.
        data: folder with their dictionaries.
        source_lang, target_lang: languages, which name the dictionaries.
        threads: torch's threads.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``.

    Raises:
        UserError: a checkpoint that cannot be loaded, that does not fit the dictionaries, or that is no translation
            model.
    """

    def __init__(
        self,
        paths: list[Path],
        data: Path,
        source_lang: str,
        target_lang: str,
        threads: int = 1,
        device: str = "cpu",
    ):
        _register()
        import torch
        from fairseq import checkpoint_utils, utils

        if device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda is not possible: torch sees no such device; give --device cpu")
        self.device = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
        self.threads = threads
        for path in paths:
            _check_fit(path, data, source_lang, target_lang)
        overrides = {
            "data": str(data),
            "source_lang": source_lang,
            "target_lang": target_lang,
            "eval_bleu": False,  # would build the tokeniser of the training's validation
        }
        try:
            self.models, _, self.task = checkpoint_utils.load_model_ensemble_and_task(
                [str(path) for path in paths], arg_overrides=overrides
            )
        except UserError:
            raise
        except Exception as error:  # an unknown architecture, missing keys, a task that needs other files, …
            why = " ".join(str(error).split())[:300] or type(error).__name__
            raise UserError(f"fairseq cannot load {':'.join(map(str, paths))}: {why}") from error
        self.source, self.target = self.task.source_dictionary, self.task.target_dictionary
        if self.source is None or self.target is None:
            raise UserError(f"{paths[0]} is no translation model: its task has no source and target dictionary")
        positions = utils.resolve_max_positions(
            self.task.max_positions(), *[model.max_positions() for model in self.models]
        )
        self.source_limit, self.target_limit = positions
        for model in self.models:
            model.float().to(self.device)
            model.make_generation_fast_(need_attn=False)
        self._generators = {}

    def start(self, sentences: list[list[str]], search: Search):
        """Begin to translate in a thread; see :meth:`CTranslate2Engine.start`."""
        return _Started(self, sentences, search)

    def translate(self, sentences: list[list[str]], search: Search) -> list[list[Hypothesis]]:
        """Translate and wait; see :meth:`start`."""
        return self.start(sentences, search).result()

    def run(self, sentences: list[list[str]], search: Search, advance=lambda number: None):
        """Translate in this thread, calling ``advance`` with the size of each batch done; see :meth:`start`."""
        import torch

        torch.set_num_threads(self.threads)  # counts by thread
        results = [None] * len(sentences)
        generator = self._generator(search)
        with torch.inference_mode():
            for batch in batches(sentences, search):
                sample = self._collate([self.source_ids(sentences[number]) for number in batch])
                found = self.task.inference_step(generator, self.models, sample)
                for number, hypotheses in zip(sample["id"].tolist(), found, strict=True):
                    results[batch[number]] = [
                        Hypothesis(self._symbols(hypothesis["tokens"]), float(hypothesis["score"]))
                        for hypothesis in hypotheses[: search.nbest]
                    ]
                advance(len(batch))
        return results

    def forced_log_probs(self, sources: list[list[str]], targets: list[list[str]]) -> list[list[float]]:
        """As :meth:`CTranslate2Engine.forced_log_probs`; an ensemble's is the mean of the probabilities."""
        import torch

        torch.set_num_threads(self.threads)
        results = []
        with torch.inference_mode():
            for source, target in zip(sources, targets, strict=True):
                net_input = self._collate([self.source_ids(source)])["net_input"]
                wanted = torch.tensor(
                    [self.target.index(token) for token in target] + [self.target.eos()], device=self.device
                )
                previous = torch.cat([wanted[-1:], wanted[:-1]])[None]
                found = []
                for model in self.models:
                    out = model(net_input["src_tokens"], net_input["src_lengths"], previous)
                    log_probs = model.get_normalized_probs(out, log_probs=True)[0]  # (tgt_len, vocabulary)
                    found.append(log_probs.gather(1, wanted[:, None])[:, 0])
                mean = torch.logsumexp(torch.stack(found), dim=0) - torch.tensor(len(found)).log()
                results.append(mean.tolist())
        return results

    def source_ids(self, sentence: list[str]):
        """Ids of a source's subwords and its ``</s>``, a long tensor (tokens,)."""
        import torch

        return torch.tensor([self.source.index(token) for token in sentence] + [self.source.eos()])

    def _collate(self, ids):
        from fairseq.utils import move_to_cuda

        dataset = self.task.build_dataset_for_inference(ids, [len(row) for row in ids])
        sample = dataset.collater([dataset[number] for number in range(len(ids))])
        return move_to_cuda(sample) if self.device == "cuda" else sample

    def _symbols(self, tokens):
        ids = tokens.tolist()
        return [self.target[number] for number in ids if number not in (self.target.eos(), self.target.bos())]

    def _generator(self, search):
        from fairseq.dataclass.configs import GenerationConfig
        from omegaconf import OmegaConf

        if search not in self._generators:
            search.check_beam(len(self.target))
            config = OmegaConf.structured(
                GenerationConfig(
                    beam=search.beam,
                    nbest=search.nbest,
                    lenpen=search.lenpen,
                    max_len_a=search.max_len_a,
                    max_len_b=search.max_len_b,
                )
            )
            self._generators[search] = self.task.build_generator(self.models, config)
        return self._generators[search]


def _register():
    """Register this package with fairseq, whose import shall leave the level of logging as it is."""
    import fairseq_rope

    root = logging.getLogger()
    level = root.level
    fairseq_rope.register()
    root.setLevel(level)


def batches(sentences: list[list[str]], search: Search) -> list[list[int]]:
    """Numbers of the sentences batch by batch, longest first: one limit of length and ``search.batch_tokens`` each."""
    found = []
    for group in search.groups(sentences):
        batch = []
        for number in sorted(group, key=lambda number: -len(sentences[number])):
            longest = len(sentences[batch[0] if batch else number]) + 1
            if batch and (len(batch) + 1) * longest > search.batch_tokens:
                found.append(batch)
                batch = []
            batch.append(number)
        found.append(batch)
    return found


def _check_fit(path, data, source_lang, target_lang):
    """Refuse a checkpoint whose embeddings have other numbers of rows than the dictionaries have symbols."""
    from fairseq.data import Dictionary

    from fairseq_rope.averaging import load_mapped

    model = load_mapped(path)["model"]
    for stack, language in (("encoder", source_lang), ("decoder", target_lang)):
        weight = model.get(f"{stack}.embed_tokens.weight")
        if weight is None:
            continue
        file = f"{data}/dict.{language}.txt"
        try:
            symbols = len(Dictionary.load(file))
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(f"cannot read the dictionary {file}: {error}") from error
        if symbols != weight.size(0):
            raise UserError(
                f"{data} is not the data of {path}: the {stack} knows {weight.size(0):,} symbols, and {file} has "
                f"{symbols:,}"
            )


class _Started:
    """Translations under way in a thread of their own."""

    _one_at_a_time = threading.Lock()  # windows come in order, and the models' threads are all there are

    def __init__(self, engine, sentences, search):
        self.count, self.value, self.error = 0, None, None
        self.work = (engine, sentences, search)
        # A daemon, so that the program can end while a batch is under way.
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        engine, sentences, search = self.work
        try:
            with self._one_at_a_time:
                self.value = engine.run(sentences, search, self._advance)
        except Exception as error:
            self.error = error

    def _advance(self, number):
        self.count += number

    def ready(self):
        return not self.thread.is_alive()

    def done(self):
        return self.count

    def result(self):
        while not self.ready():
            self.thread.join(TICK)
        if self.error is not None:
            raise self.error
        return self.value
