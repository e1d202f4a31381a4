"""DeepNorm and admin-torch: constants, initialisation, and the function that they make."""

import math

import models
import pytest
import torch

from fairseq_rope.residual import admin_torch_omega, deepnorm_constants

SOURCE = models.batch([7, 3, 12])
TARGET = models.batch([6, 9, 2], bos=2, left=False)


@pytest.mark.parametrize(
    ("blocks", "omega"), [(12, 2.017), (18, 2.335), (24, 2.601), (36, 3.041), (120, 4.922), (1, math.sqrt(1.88539))]
)
def test_admin_torch_omega(blocks, omega):
    assert admin_torch_omega(blocks) == pytest.approx(omega, abs=1e-3)


def test_deepnorm_constants():
    """Figures computed by hand from the paper's table; 100-100 layers among them."""
    assert deepnorm_constants("encoder", 6, 6) == pytest.approx((0.81 * 6**0.3125, 0.87 * 6**-0.3125))
    assert deepnorm_constants("encoder", 100, 100) == pytest.approx((3.415742, 0.206310), abs=1e-6)
    assert deepnorm_constants("decoder", 100, 100) == pytest.approx((300**0.25, 1200**-0.25))
    assert deepnorm_constants("encoder", 60, 12) == pytest.approx(
        (0.81 * (60**4 * 12) ** 0.0625, 0.87 / (60**4 * 12) ** 0.0625)
    )
    assert deepnorm_constants("decoder", 60, 12) == pytest.approx((6**0.5, 12**-0.5))
    assert deepnorm_constants("decoder", 60, 8, cross_attention=False) == pytest.approx((2.0, 64**-0.25))


def fresh(**flags):
    torch.manual_seed(1)
    from argparse import Namespace

    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    args = Namespace(arch="baseline_tiny", _name="baseline_tiny", **flags)
    ARCH_CONFIG_REGISTRY["baseline_tiny"](args)
    return ARCH_MODEL_REGISTRY["baseline_tiny"].build_model(args, models.Task()), args


def test_deepnorm_initialisation():
    """Xavier-normal with gain β for values, outputs and the feed-forward block, gain 1 for queries and keys."""
    wide = {"encoder_embed_dim": 256, "decoder_embed_dim": 256, "encoder_ffn_embed_dim": 512}
    model, _ = fresh(residual_init="deepnorm", encoder_layers=9, decoder_layers=3, **wide)
    assert not [name for name in model.state_dict() if "omega" in name]
    for stack in ("encoder", "decoder"):
        _, beta = deepnorm_constants(stack, 9, 3)
        for layer in getattr(model, stack).layers:
            attentions = [layer.self_attn] + ([layer.encoder_attn] if stack == "decoder" else [])
            for attention in attentions:
                for name, gain in (("q_proj", 1), ("k_proj", 1), ("v_proj", beta), ("out_proj", beta)):
                    std = float(getattr(attention, name).weight.std())
                    assert std == pytest.approx(gain * math.sqrt(2 / 512), rel=0.03), name
            for linear in (layer.fc1, layer.fc2):
                assert float(linear.weight.std()) == pytest.approx(beta * math.sqrt(2 / 768), rel=0.03)


def test_deepnorm_function():
    """x = LN(α x + f(x)), in every block of both stacks; f and LN are those of the plain model."""
    deep = models.build("baseline_tiny", residual_init="deepnorm", encoder_layers=3)
    plain = models.build("baseline_tiny", encoder_layers=3)
    plain.load_state_dict(deep.state_dict())
    want = models.logits(deep, SOURCE, TARGET)
    for stack in ("encoder", "decoder"):
        alpha, _ = deepnorm_constants(stack, 3, 2)
        for layer in getattr(plain, stack).layers:
            layer.residual_connection = lambda x, residual, alpha=alpha: alpha * residual + x
    assert models.close(models.logits(plain, SOURCE, TARGET), want)[0]


def test_admin_torch_function():
    """ω is the closed form of the stack's number of blocks plus a trained offset, except in the first block."""
    model = models.build("baseline_tiny", residual_init="admin-torch", encoder_layers=3)
    assert not [name for name, _ in model.named_buffers() if "omega" in name]
    offsets = {name: value for name, value in model.state_dict().items() if name.endswith("_omega_offset")}
    assert len(offsets) == 3 * 2 - 1 + 2 * 3 - 1
    admin = models.build("admin_tiny", encoder_layers=3)
    admin.load_state_dict(model.state_dict(), strict=False)
    for stack, blocks in (("encoder", 6), ("decoder", 6)):
        for layer in getattr(admin, stack).layers:
            for name, buffer in layer.named_buffers():
                if name.endswith("_omega"):
                    buffer.fill_(math.sqrt((blocks + 1) / math.log(blocks + 1) - 1))
    assert models.close(models.logits(admin, SOURCE, TARGET), models.logits(model, SOURCE, TARGET))[0]


@pytest.mark.parametrize("init", ["deepnorm", "admin-torch"])
def test_pruned_models_keep_their_constants(init):
    """fairseq prunes by changing the number of layers in the checkpoint's options."""
    whole, args = fresh(residual_init=init, encoder_layers=4)
    assert (args.residual_encoder_layers, args.residual_decoder_layers) == (4, 2)
    args.encoder_layers = 2
    from fairseq.models import ARCH_MODEL_REGISTRY

    pruned = ARCH_MODEL_REGISTRY["baseline_tiny"].build_model(args, models.Task())
    assert pruned.encoder.layers[0].shortcut_scale == whole.encoder.layers[0].shortcut_scale
    pruned.load_state_dict(
        {
            name: v
            for name, v in whole.state_dict().items()
            if not name.startswith(("encoder.layers.2", "encoder.layers.3"))
        }
    )
    del whole.encoder.layers[2:]
    whole.eval(), pruned.eval()
    assert torch.equal(models.logits(pruned, SOURCE, TARGET), models.logits(whole, SOURCE, TARGET))


def test_a_decoder_without_cross_attention_counts_two_blocks_a_layer():
    model = models.build("baseline_tiny", residual_init="admin-torch", no_cross_attention=True, decoder_layers=3)
    assert model.decoder.layers[0].shortcut_scale == admin_torch_omega(6)
    deep = models.build("baseline_tiny", residual_init="deepnorm", no_cross_attention=True, decoder_layers=3)
    assert deep.decoder.layers[0].shortcut_scale == pytest.approx(6**0.25)
