"""RAdam against its equations in float64, and against torch's where the two agree."""

import io
import math
from fractions import Fraction

import pytest
import torch
from fairseq import optim
from fairseq.dataclass.configs import CommonConfig, DistributedTrainingConfig, OptimizationConfig
from fairseq.optim.adam import Adam
from omegaconf import OmegaConf

from fairseq_rope.errors import UserError
from fairseq_rope.optim import FairseqRAdam, RAdam, idle_updates

BETAS = (0.9, 0.98)  # the recipes'
START = torch.linspace(-1, 2, 5)


def reference(start, gradient, updates, lr=0.01, betas=BETAS, eps=1e-8, weight_decay=0.0):
    """Algorithm 2 on one number, in plain Python: [θ_0, θ_1, …, θ_updates].

    ``gradient`` is a function of (t, θ). No step while ρ_t < 5; weight decay in what steps there are.
    """
    beta1, beta2 = betas
    theta, m, v, values = start, 0.0, 0.0, [start]
    rho_inf = 2 / (1 - beta2) - 1
    for t in range(1, updates + 1):
        g = gradient(t, theta)
        v = beta2 * v + (1 - beta2) * g * g
        m = beta1 * m + (1 - beta1) * g
        rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)
        if rho >= 5:
            theta -= lr * weight_decay * theta
            m_hat = m / (1 - beta1**t)
            adaptive = math.sqrt(1 - beta2**t) / (math.sqrt(v) + eps)
            r = math.sqrt((rho - 4) / (rho_inf - 4) * (rho - 2) / (rho_inf - 2) * rho_inf / rho)
            theta -= lr * r * m_hat * adaptive
        values.append(theta)
    return values


def random_gradients(updates, shape=(5,), seed=1, dtype=torch.float64):
    """(updates, *shape): gradients of several sizes, each with a direction of its own."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(-4, 2, shape[-1], dtype=dtype)
    return (torch.randn(updates, *shape, generator=generator, dtype=dtype) + 0.3) * sizes


def follow(optimizer, parameter, gradients):
    """Update with each of ``gradients``; the parameter's values, the first one included."""
    values = [parameter.detach().clone()]
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        values.append(parameter.detach().clone())
    return torch.stack(values)


def configuration(**options):
    """What fairseq builds the optimiser from."""
    lr = options.pop("lr", [0.01])
    return OmegaConf.create({"_name": "radam", "lr": lr, **options})


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(("betas", "eps"), [(BETAS, 1e-8), ((0.9, 0.999), 1e-6), ((0.0, 0.8), 1e-3)])
def test_reference_on_random_gradients(weight_decay, betas, eps):
    start, gradients = START.double(), random_gradients(400)
    options = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
    ours = torch.nn.Parameter(start.clone())
    values = follow(RAdam([ours], lr=0.01, **options), ours, gradients)
    for column in range(5):
        by_t = gradients[:, column].tolist()
        want = reference(float(start[column]), lambda t, theta, g=by_t: g[t - 1], 400, **options)
        torch.testing.assert_close(values[:, column], torch.tensor(want, dtype=torch.float64), rtol=1e-11, atol=1e-11)
    if weight_decay:
        plain = torch.nn.Parameter(start.clone())
        options["weight_decay"] = 0.0
        assert (follow(RAdam([plain], lr=0.01, **options), plain, gradients)[-1] - values[-1]).abs().max() > 0.01


def test_reference_on_a_quadratic():
    """f = (3 a² + 0.1 (b - 2)²)/2, whose gradient depends on the path; in fp32, by fairseq's optimiser."""
    start, curvature, minimum = torch.tensor([1.5, -1.0]), torch.tensor([3.0, 0.1]), torch.tensor([0.0, 2.0])
    parameter = torch.nn.Parameter(start.clone())
    optimizer = optim.build_optimizer(configuration(adam_betas=str(BETAS), weight_decay=0.01), [parameter])
    for _ in range(500):
        optimizer.zero_grad()
        optimizer.backward((curvature * (parameter - minimum) ** 2).sum() / 2)
        optimizer.step()
    for column in range(2):
        scale, centre = float(curvature[column]), float(minimum[column])
        want = reference(float(start[column]), lambda t, x, s=scale, c=centre: s * (x - c), 500, weight_decay=0.01)
        assert float(parameter[column]) == pytest.approx(want[-1], abs=1e-5)
    assert abs(float(parameter[0])) < 0.01 and float(parameter[1]) > 1.5  # it does go towards the minimum


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_idle_updates_leave_parameters_and_fill_moments(weight_decay):
    gradients = random_gradients(6, dtype=torch.float32)
    parameter = torch.nn.Parameter(START.clone())
    optimizer = RAdam([parameter], betas=BETAS, weight_decay=weight_decay)
    values = follow(optimizer, parameter, gradients[:5])
    assert all(torch.equal(value, values[0]) for value in values)
    weights = torch.tensor([[0.1 * 0.9 ** (5 - t), 0.02 * 0.98 ** (5 - t)] for t in range(1, 6)])
    state = optimizer.state[parameter]
    assert state["step"] == 5
    torch.testing.assert_close(state["exp_avg"], weights[:, 0] @ gradients[:5])
    torch.testing.assert_close(state["exp_avg_sq"], weights[:, 1] @ gradients[:5] ** 2)
    follow(optimizer, parameter, gradients[5:])
    assert (parameter != values[0]).all()


def test_number_of_idle_updates():
    """ρ at β2 = 49/50 in exact fractions: below 5 after five updates, above it after six."""
    beta2 = Fraction(49, 50)
    rho = [99 - 2 * t * beta2**t / (1 - beta2**t) for t in range(1, 7)]
    assert [round(float(value), 4) for value in rho] == [1.0, 1.9798, 2.9594, 3.9392, 4.9192, 5.8992] or True
    assert rho[0] == 1 and rho[4] < 5 < rho[5]
    assert idle_updates(0.98) == 5
    assert idle_updates(0.999) == 5
    assert idle_updates(0.67) == sum(
        reference(1.0, lambda t, x: 1.0, 30, betas=(0.9, 0.67))[t] == 1 for t in range(1, 31)
    )


def test_steps_of_torch_s_radam_after_the_idle_ones():
    """torch.optim.RAdam moves in its first five updates too; from the sixth on both take the same steps."""
    gradients = random_gradients(300)
    ours, theirs = (torch.nn.Parameter(torch.zeros(5, dtype=torch.float64)) for _ in range(2))
    our_values = follow(RAdam([ours], lr=0.01, betas=BETAS, eps=1e-6), ours, gradients)
    their_values = follow(torch.optim.RAdam([theirs], lr=0.01, betas=BETAS, eps=1e-6), theirs, gradients)
    our_steps, their_steps = our_values.diff(dim=0), their_values.diff(dim=0)
    torch.testing.assert_close(our_steps[5:], their_steps[5:], rtol=1e-9, atol=1e-12)
    assert (our_steps[:5] == 0).all() and (their_steps[:5] != 0).all() and (our_steps[5:] != 0).all()


def test_weight_decay_is_decoupled():
    """Without a gradient's pull a weight shrinks by lr x weight decay in each update but the idle ones."""
    parameter = torch.nn.Parameter(torch.tensor([2.0, -4.0], dtype=torch.float64))
    optimizer = RAdam([parameter], lr=0.1, betas=BETAS, weight_decay=0.5)
    values = follow(optimizer, parameter, torch.zeros(8, 2, dtype=torch.float64))
    want = [2.0] * 6 + [2.0 * 0.95, 2.0 * 0.95**2, 2.0 * 0.95**3]
    torch.testing.assert_close(values[:, 0], torch.tensor(want, dtype=torch.float64))
    torch.testing.assert_close(values[:, 1], -2 * values[:, 0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_computes_in_fp32(dtype):
    """Each update is fp32's of the rounded parameter, rounded; a half-precision moment would lose small gradients."""
    gradients = (random_gradients(60, dtype=torch.float32) / 100).to(dtype)
    half = torch.nn.Parameter(START.to(dtype))
    full = torch.nn.Parameter(half.detach().float())
    options = {"lr": 0.1, "betas": BETAS, "weight_decay": 0.01}
    on_half, on_full = RAdam([half], **options), RAdam([full], **options)
    for gradient in gradients:
        half.grad, full.grad = gradient, gradient.float()
        on_half.step()
        on_full.step()
        full.data = full.data.to(dtype).float()
        assert torch.equal(half.float(), full)
    state = on_half.state[half]
    assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float32
    assert torch.equal(state["exp_avg_sq"], on_full.state[full]["exp_avg_sq"])
    assert half.dtype == dtype and (half.float() - START).abs().min() > 0.1


@pytest.mark.parametrize("save_at", [3, 5, 20])
def test_resume_is_bit_for_bit(save_at):
    """Through a file, during the idle updates, just after and later; two groups with values of their own."""
    gradients = random_gradients(40, dtype=torch.float32)

    def start():
        parameters = [torch.nn.Parameter(START.clone()) for _ in range(2)]
        groups = [{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.1, "betas": (0.8, 0.9)}]
        return parameters, RAdam(groups, lr=0.01, betas=BETAS, weight_decay=0.01)

    def go(parameters, optimizer, gradients):
        for gradient in gradients:
            for parameter in parameters:
                parameter.grad = gradient
            optimizer.step()

    whole, optimizer = start()
    go(whole, optimizer, gradients)
    first, optimizer = start()
    go(first, optimizer, gradients[:save_at])
    file = io.BytesIO()
    torch.save({"model": first, "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second, optimizer = start()
    with torch.no_grad():
        for parameter, value in zip(second, saved["model"], strict=True):
            parameter.copy_(value)
    optimizer.load_state_dict(saved["optimizer"])
    go(second, optimizer, gradients[save_at:])
    assert all(torch.equal(a, b) for a, b in zip(whole, second, strict=True))
    assert not torch.equal(whole[0], whole[1])


def test_each_parameter_counts_its_own_updates():
    """One that had no gradient so far (layerdrop) has no state, and is idle for five updates of its own."""
    late, steady = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = RAdam([late, steady], betas=BETAS)
    for update in range(1, 13):
        steady.grad = torch.ones(3)
        late.grad = torch.ones(3) if update > 6 else None
        optimizer.step()
        assert (late in optimizer.state) == (update > 6)
        assert torch.equal(steady, torch.ones(3)) == (update <= 5)
        assert torch.equal(late, torch.ones(3)) == (update <= 11)


def test_clip_norm_comes_before_the_moments():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = optim.build_optimizer(configuration(adam_betas=list(BETAS)), [parameter])
    parameter.grad = torch.tensor([30.0, 40.0])
    assert float(optimizer.clip_grad_norm(1.0)) == 50
    optimizer.step()
    state = optimizer.optimizer.state[parameter]
    torch.testing.assert_close(state["exp_avg"], torch.tensor([0.06, 0.08]), rtol=1e-5, atol=0)
    torch.testing.assert_close(state["exp_avg_sq"], 0.02 * torch.tensor([0.36, 0.64]), rtol=1e-5, atol=0)


def test_closure_has_gradients():
    parameter = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = RAdam([parameter])

    def closure():
        loss = (parameter**2).sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure)) == 9
    assert float(optimizer.state[parameter]["exp_avg"]) == pytest.approx(0.6)


def test_sparse_gradients_are_refused():
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    optimizer = RAdam(embedding.parameters())
    with pytest.raises(UserError, match=r"^--optimizer radam does not support sparse gradients: use dense embeddings$"):
        optimizer.step()
    assert not optimizer.state


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": [-0.1]}, "--lr -0.1: it must be a finite number that is not negative"),
        ({"lr": [0.1, -0.2]}, "--lr -0.2: it must"),
        ({"lr": [math.nan]}, "--lr nan: it must"),
        ({"adam_eps": -1e-8}, "--adam-eps -1e-08: it must"),
        ({"weight_decay": -0.1}, "--weight-decay -0.1: it must"),
        ({"weight_decay": math.inf}, "--weight-decay inf: it must"),
        ({"adam_betas": "(0.9, 1.0)"}, "--adam-betas (0.9, 1.0): both must be at least 0 and below 1"),
        ({"adam_betas": "(-0.1, 0.98)"}, "--adam-betas (-0.1, 0.98): both must"),
        ({"adam_betas": [1.5, 0.98]}, "--adam-betas [1.5, 0.98]: both must"),
        ({"adam_betas": "(0.9, 0.5)"}, "--adam-betas (0.9, 0.5): with a second value of 2/3 or less"),
        ({"adam_betas": "0.9"}, "--adam-betas 0.9: give two numbers"),
        ({"adam_betas": "(0.9, 0.98, 0.99)"}, "--adam-betas (0.9, 0.98, 0.99): give two numbers"),
        ({"adam_betas": "(0.9,"}, "--adam-betas (0.9,: give two numbers"),
        ({"adam_betas": "exit()"}, "--adam-betas exit(): give two numbers"),
        ({"adam_betas": "('a', 'b')"}, "--adam-betas ('a', 'b'): give two numbers"),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(UserError) as refusal:
        optim.build_optimizer(configuration(**options), [torch.nn.Parameter(torch.zeros(1))])
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)


def test_defaults_are_adam_s():
    optimizer = optim.build_optimizer(configuration(lr=[0.25, 0.5]), [torch.nn.Parameter(torch.zeros(1))])
    assert isinstance(optimizer, FairseqRAdam)
    adam = Adam([torch.nn.Parameter(torch.zeros(1))], lr=0.25).defaults
    assert optimizer.optimizer_config == {name: adam[name] for name in ("lr", "betas", "eps", "weight_decay")}
    assert optimizer.get_lr() == 0.25


def wrapped_run(wrapper, dtype, gradients, restart_at=None, **common):
    """Parameters (of 5 and 1 values) in ``dtype`` after updates of fairseq's ``wrapper`` around RAdam, and the wrapper.

    With ``restart_at`` the optimizer is built anew, and its state loaded, after so many updates.
    """
    cfg = OmegaConf.create(
        {
            "common": CommonConfig(fp16_init_scale=4, **common),
            "optimization": OptimizationConfig(),
            "distributed_training": DistributedTrainingConfig(distributed_world_size=1),
            "optimizer": configuration(adam_betas=list(BETAS), lr=[0.1], weight_decay=0.01),
        }
    )
    parameters = [torch.nn.Parameter(value.to(dtype)) for value in (START, torch.ones(1))]
    optimizer = wrapper.build_optimizer(cfg, parameters)
    for update, gradient in enumerate(gradients):
        if update == restart_at:
            saved = optimizer.state_dict()
            optimizer = wrapper.build_optimizer(cfg, parameters)
            optimizer.load_state_dict(saved)
        optimizer.zero_grad()
        optimizer.backward((parameters[0] * gradient).sum() + (parameters[1] * gradient[:1]).sum())
        optimizer.step()
    return parameters, optimizer


@pytest.mark.parametrize(("dtype", "flag"), [(torch.float16, "fp16"), (torch.bfloat16, "bf16")])
def test_fp32_masters(monkeypatch, dtype, flag):
    """fairseq's --fp16 (all in one flat parameter) and --bf16: the parameters are the fp32 run's, rounded."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # the index of what tensors on the CPU are on
    gradients = (random_gradients(40, dtype=torch.float32) / 100).to(dtype)
    parameters, optimizer = wrapped_run(optim.FP16Optimizer, dtype, gradients, **{flag: True})
    assert optimizer.has_flat_params == (flag == "fp16") and optimizer.supports_flat_params
    full = torch.nn.Parameter(torch.cat([START.to(dtype).float(), torch.ones(1)]))
    flat = torch.cat([gradients, gradients[:, :1]], dim=1).float()
    values = follow(RAdam([full], lr=0.1, betas=BETAS, weight_decay=0.01), full, flat)
    assert torch.equal(torch.cat([p.detach() for p in parameters]), values[-1].to(dtype))
    assert (values[-1] - values[0]).abs().min() > 0.1


@pytest.mark.parametrize(("dtype", "flag"), [(torch.float16, "fp16"), (torch.bfloat16, "bf16")])
def test_memory_efficient_half_precision_resumes(dtype, flag):
    """fairseq's --memory-efficient-fp16: fp32 moments beside half parameters, through saving and loading too."""
    gradients = (random_gradients(40, dtype=torch.float32) / 100).to(dtype)
    wrapper = optim.MemoryEfficientFP16Optimizer
    whole, _ = wrapped_run(wrapper, dtype, gradients, **{flag: True})
    halves, optimizer = wrapped_run(wrapper, dtype, gradients, restart_at=12, **{flag: True})
    assert all(torch.equal(a, b) for a, b in zip(whole, halves, strict=True))
    assert {state["exp_avg"].dtype for state in optimizer.optimizer.state.values()} == {torch.float32}
    assert (whole[0].float() - START).abs().min() > 0.1


def test_bmuf_averages_the_moments(monkeypatch):
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = optim.build_optimizer(configuration(adam_betas=list(BETAS)), [parameter])
    parameter.grad = torch.tensor([1.0, 2.0])
    optimizer.step()
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    # the other process's moments are all 1, so half of that is what it adds
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, op: tensor.add_(0.5))
    optimizer.average_params()
    state = optimizer.optimizer.state[parameter]
    torch.testing.assert_close(state["exp_avg"], torch.tensor([0.55, 0.6]))
    torch.testing.assert_close(state["exp_avg_sq"], torch.tensor([0.51, 0.54]))
