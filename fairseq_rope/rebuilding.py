"""The model that a checkpoint holds, built again from nothing but the checkpoint: no data folder, no task."""

import contextlib
import copy
from argparse import Namespace

import torch
from fairseq import models
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import Tensor

from fairseq_rope.errors import UserError
from fairseq_rope.models import TranslationTransformer


def model_options(state: dict, foreign: str = "{0}") -> Namespace:
    """The model's options as they are when the checkpoint is loaded: recorded ones first, then the architecture's.

    Args:
        state: a checkpoint's dictionary.
        foreign: what to say of a model that is none of this package, around "--arch X is not one of …".

    Raises:
        UserError: the checkpoint holds no configuration, or a model that is none of this package.
    """
    recorded = state["cfg"].get("model") if isinstance(state.get("cfg"), dict) else None
    recorded = vars(recorded) if isinstance(recorded, Namespace) else recorded
    if not isinstance(recorded, dict):
        raise UserError("it holds no configuration of a model (cfg.model), so what it computes is not known")
    options = Namespace(**copy.deepcopy(recorded))
    arch = getattr(options, "_name", None) or getattr(options, "arch", None)
    if arch not in ARCH_CONFIG_REGISTRY or ARCH_MODEL_REGISTRY[arch] is not TranslationTransformer:
        raise UserError(foreign.format(f"--arch {arch} is not one of fairseq_rope's translation models"))
    options._name = options.arch = arch  # fairseq reads one or the other
    with as_configured():
        ARCH_CONFIG_REGISTRY[arch](options)
    # Only needed to start a training; the files may be gone.
    options.encoder_embed_path = options.decoder_embed_path = None
    return options


@contextlib.contextmanager
def as_configured():
    """Say in one sentence why the recorded configuration does not work: a damaged one can fail in any way."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"the model cannot be built as its configuration says: {why}") from error


class _Dictionaries:
    """Stands in for a task: two dictionaries of the sizes that the parameters have."""

    def __init__(self, model: dict[str, Tensor], shared: bool | None):
        source, target = (model[f"{stack}.embed_tokens.weight"] for stack in ("encoder", "decoder"))
        if shared is None:  # undecided: whoever trained it had one dictionary, if the matrix is one
            shared = source.shape == target.shape and torch.equal(source, target)
        self.source_dictionary = _dictionary(source.size(0), "source")
        self.target_dictionary = self.source_dictionary if shared else _dictionary(target.size(0), "target")


def _dictionary(size, side):
    dictionary = Dictionary()
    for number in range(len(dictionary), size):
        dictionary.add_symbol(f"{side}{number}")
    return dictionary


def build(options: Namespace, model: dict[str, Tensor]):
    """The model of ``options`` with the parameters ``model``, in float32 and evaluation mode.

    Raises:
        UserError: options and parameters do not belong together.
    """
    with as_configured():
        task = _Dictionaries(model, options.share_all_embeddings)
        built = models.build_model(copy.deepcopy(options), task)
        # A copy: fairseq brings old names up to date in the dictionary it is given. With the options it prunes layers.
        built.load_state_dict(copy.copy(model), model_cfg=copy.copy(options))
    return built.eval()
