"""The sides of deploy.py: a checkpoint as fairseq-generate runs it, and its exports in CTranslate2."""

import sys
import time
from pathlib import Path

import worker
from sides import KINDS, DecodingSide


class Generating(DecodingSide):
    """A checkpoint with its beam search, as ``fairseq-generate`` loads and builds them.

    Args:
        flags: of fairseq-generate: data folder, languages, ``--user-dir``.
        split: set to translate.
        checkpoint: file.
        search: further flags, such as ``["--beam", "4"]``.
    """

    def __init__(self, flags, split, checkpoint, search):
        from fairseq import checkpoint_utils, options, tasks, utils
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf

        flags = [*flags, "--path", checkpoint, "--cpu", *search]
        argv, sys.argv = sys.argv, ["fairseq-generate", *flags]  # options reads --user-dir from the command line
        try:
            args = options.parse_args_and_arch(options.get_generation_parser(), flags)
        finally:
            sys.argv = argv
        self.generation, self.device = convert_namespace_to_omegaconf(args), "cpu"
        utils.import_user_module(self.generation.common)
        self.task = tasks.setup_task(self.generation.task)
        [self.model], saved = checkpoint_utils.load_model_ensemble([checkpoint], task=self.task)
        self.task.load_dataset(split, task_cfg=saved.task)
        self.dataset = self.task.dataset(split)
        self.model.prepare_for_inference_(self.generation)
        self.generator = self.task.build_generator([self.model], self.generation.generation)
        self.work = {"steps": 0, "rows": 0, "attended": 0, "sources": 0}
        self._count_work()


class Exported:
    """An exported model in CTranslate2.

    Args:
        flags: ``--user-dir`` and where the package has to come from.
        folder: of the model.
        sentences: subwords of every sentence, by its number as text.
        threads, batches: of the engine; ``batches`` None for its own choice.
        search: keyword arguments of ``fairseq_rope.deploy.engines.Search``; ``batch_tokens`` None for its own.
    """

    def __init__(self, flags, folder, sentences, threads, batches, search):
        if flags[1] not in sys.path:
            sys.path.insert(0, str(Path(flags[1]).parent))
        from fairseq_rope.deploy.engines import CTranslate2Engine

        self.engine = CTranslate2Engine(folder, threads, batches=batches)
        self.sentences, self.options = sentences, search

    def step(self, batch, batch_tokens=None):
        """Translate sentences by their numbers; returns seconds and the best translation's subwords of each."""
        from fairseq_rope.deploy.engines import BATCH_TOKENS, Search

        tokens = batch_tokens or self.options["batch_tokens"] or BATCH_TOKENS
        search = Search(**{**self.options, "batch_tokens": tokens})
        chosen = [self.sentences[str(number)] for number in batch]
        begin = time.perf_counter()
        found = self.engine.translate(chosen, search)
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "tokens": [[one.tokens for one in several] for several in found], "work": None}


OWN_KINDS = {"generating": Generating, "exported": Exported}
KINDS.update(OWN_KINDS)


class Process(worker.Process):
    """A side of this file in a process of its own: as ``worker.Process``, which knows those of ``sides.py`` only."""

    @staticmethod
    def command(kind):
        return [sys.executable, str(Path(__file__).resolve()), kind]


def serve(kind):
    """Answer the commands of a :class:`Process`; CTranslate2's needs no fairseq, as fairseq-rope-translate does not."""
    sys.argv = ["fairseq-rope-translate"] if kind == "exported" else ["fairseq-generate"]
    worker.main()


if __name__ == "__main__":
    serve(sys.argv[1])
