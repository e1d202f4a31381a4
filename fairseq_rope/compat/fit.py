"""Says in one line why a checkpoint does not fit the dictionary or the model in use."""

import os

from fairseq_rope.checkpoint_files import structure
from fairseq_rope.compat.checkpoints import load_state
from fairseq_rope.compat.mend import Mend
from fairseq_rope.compat.wrap import wrap
from fairseq_rope.errors import UserError


def why_not(expected, given):
    """Compare two state dicts by name and shape.

    Args:
        expected: {name: tensor} of the model that was built.
        given: {name: tensor} of the checkpoint.

    Returns:
        one sentence about the first difference that explains the others, or None where all fits.
    """
    shapes = {
        name: (tuple(given[name].shape), tuple(expected[name].shape))
        for name in given
        if name in expected and given[name].shape != expected[name].shape
    }
    for name, (old, new) in shapes.items():
        if name.endswith("embed_tokens.weight") and old[1:] == new[1:]:
            side = "source" if name.startswith("encoder") else "target"
            return (
                f"the {side} dictionary does not fit the checkpoint: it has {new[0]} types, the checkpoint "
                f"was trained with {old[0]}; use the data folder (its dict.*.txt) of that training"
            )
    for name, (old, new) in shapes.items():
        return f"{name} has the shape {list(old)} in the checkpoint and {list(new)} in this model{_more(shapes)}"
    missing = [name for name in expected if name not in given]
    other = [name for name in missing if "_omega" not in name]  # ADMIN completes a plain checkpoint
    if other:
        return f"the checkpoint lacks {other[0]} of this model{_more(other)}"
    surplus = [name for name in given if name not in expected]
    if surplus:
        return f"the checkpoint has {surplus[0]}, which this model lacks{_more(surplus)}{_scaled(surplus)}"
    if missing:
        return f"the checkpoint lacks {missing[0]} of this model{_more(missing)}"
    return None


def _more(items):
    return f" (and {len(items) - 1} more parameters differ)" if len(items) > 1 else ""


def _scaled(surplus):
    """Advice where all that a model lacks are the factors of scaled shortcuts."""
    if not all(name.endswith(("_omega", "_omega_offset")) for name in surplus):
        return ""
    how = "admin" if any(name.endswith("_omega") for name in surplus) else "admin-torch"
    return (
        f"; it was trained with --residual-init {how}: use that here too, or make a plain checkpoint of it by "
        "fairseq-rope-fold"
    )


def _explain_model():
    from fairseq.models import BaseFairseqModel

    @wrap(BaseFairseqModel, "load_state_dict")
    def load_state_dict(stock):
        def load(self, state_dict, strict=True, *args, **kwargs):
            try:
                return stock(self, state_dict, strict, *args, **kwargs)
            except RuntimeError as error:
                # stock has brought the names of older checkpoints up to date in place, so they compare
                reason = why_not(self.state_dict(), state_dict)
                if reason is None:
                    raise
                raise UserError(reason) from error

        return load


# Options that change what a model computes without changing a parameter's name or shape.
_UNSEEN = (
    "position_encoding",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "rope_base",
    "rope_scaling",
    "rope_scaling_factor",
    "rope_train_length",
    "tupe_reset",
    "tupe_reset_form",
    "relative_max_distance",
    "residual_attention",
    "residual_init",
    "residual_encoder_layers",
    "residual_decoder_layers",
)


def _same_function(filename, model_cfg):
    """Refuse to go on with a checkpoint whose parameters fit, but whose model computed something else."""
    if not os.path.isfile(filename):
        return  # a first start, or an address that fairseq's PathManager knows
    before = structure(load_state(filename, mmap=True))
    now = structure({"cfg": {"model": model_cfg}})
    for name in _UNSEEN:
        if before and before.get(name) != now.get(name):
            flag = "--" + name.replace("_", "-")
            weights = "" if name.startswith("residual_") else ", or start from its weights with --finetune-from-model"
            raise UserError(
                f"cannot continue from {filename}: it was trained with {flag} {before.get(name, 'not given')}, this "
                f"run has {now.get(name, 'not given')}; use another --save-dir{weights}"
            )


def _same_constants(filename, model_cfg):
    """Refuse to fine-tune weights that were trained around other constants; nothing in their names or shapes tells."""
    if not os.path.isfile(filename):
        return
    before = structure(load_state(filename, mmap=True))
    now = structure({"cfg": {"model": model_cfg}})
    names = ("residual_init", "residual_encoder_layers", "residual_decoder_layers")
    inits = {before.get("residual_init", "default"), now.get("residual_init", "default")}
    if inits & {"deepnorm", "admin-torch"} and any(before.get(name) != now.get(name) for name in names):
        old, new = (
            f"--residual-init {values.get('residual_init', 'default')}"
            + "".join(f" for {values[name]} {name.split('_')[1]} layers" for name in names[1:] if name in values)
            for values in (before, now)
        )
        way_out = "fold the checkpoint with fairseq-rope-fold and " if before.get("residual_init") != "default" else ""
        raise UserError(
            f"cannot start from the weights of {filename}: they were trained with {old}, this run has {new}; keep it, "
            f"or {way_out}use --residual-init default or admin"
        )


def _explain_resume():
    from fairseq.trainer import Trainer

    @wrap(Trainer, "load_checkpoint")
    def load_checkpoint(stock):
        def load(self, filename, *args, **kwargs):
            try:
                if not (args[0] if args else kwargs.get("reset_optimizer", False)):
                    _same_function(filename, self.cfg.model)
                else:
                    _same_constants(filename, self.cfg.model)
                return stock(self, filename, *args, **kwargs)
            except UserError:
                raise
            except Exception as error:
                if isinstance(error, AssertionError) and "does not match" in str(error):
                    raise UserError(
                        f"cannot continue from {filename}: it was saved with another criterion or optimiser; use "
                        "the same, or start the optimiser afresh with --reset-optimizer"
                    ) from error
                # stock replaces whatever went wrong by "please ensure that the architectures match"
                cause = error.__context__
                if isinstance(cause, UserError):
                    raise UserError(f"cannot continue from {filename}: {cause}") from cause
                raise

        return load


MENDS = [
    Mend(
        name="dictionary and checkpoint",
        reason="a dictionary of another size ends stock fairseq with a traceback over parameter shapes",
        apply=_explain_model,
    ),
    Mend(
        name="reason for not resuming",
        reason="stock's trainer hides why a checkpoint could not be loaded, and goes on with one of another position "
        "encoding or number of heads, whose parameters fit by name and shape",
        apply=_explain_resume,
    ),
]
