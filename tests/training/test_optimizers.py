"""LARS, AdamW and Muon by hand, their states and schedules, and real runs with them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn

import effssl
from effssl.data import ArrayImages, Data
from effssl.objectives.objective import Objective
from effssl.recipes.resolve import Plan, resolve
from effssl.runtime.errors import RequestError
from effssl.schema import to_dict
from effssl.training.optimizers import LARS, Muon, build_optimizer, orthogonalize, set_learning_rate
from effssl.training.trainer import Trainer
from tests.objectives.making import ROTATED_ONLINE, make, plan


def by_hand(
    w: torch.Tensor, grads: list[torch.Tensor], lr: float, decay: float, trust: float, clip: bool
) -> torch.Tensor:
    """LARS, one weight at a time."""
    v = None
    for g in grads:
        if w.ndim > 1:
            ratio = trust * w.norm() / (g.norm() + decay * w.norm())
            if clip:
                ratio = min(ratio / lr, torch.tensor(1.0))
            g = (g + decay * w) * ratio
        v = g if v is None else 0.9 * v + g
        w = w - lr * v
    return w


@pytest.mark.parametrize("clip", [False, True])
def test_lars_by_hand_leaves_biases_and_norms_alone(clip: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    start = [p.detach().clone() for p in module.parameters()]
    grads = [[torch.randn_like(p) for p in module.parameters()] for _ in range(3)]
    optimizer = LARS(module.parameters(), 0.5, 0.9, 1e-2, 0.02, clip)
    for step in grads:
        for p, g in zip(module.parameters(), step, strict=True):
            p.grad = g.clone()
        optimizer.step()
    for i, p in enumerate(module.parameters()):
        expected = by_hand(start[i], [step[i] for step in grads], 0.5, 1e-2, 0.02, clip)
        assert torch.allclose(p, expected, atol=1e-6)


def step_with(optimizer: torch.optim.Optimizer, params: Iterable[nn.Parameter], grads: Iterable[Tensor]) -> None:
    for p, g in zip(params, grads, strict=True):
        p.grad = g.clone()
    optimizer.step()


def random_grads(module: nn.Module, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator) for p in module.parameters() if p.requires_grad]


def in_group(optimizer: torch.optim.Optimizer, objective: Objective, i: int) -> set[str]:
    names = {id(p): name for name, p in objective.named_parameters()}
    return {names[id(p)] for p in optimizer.param_groups[i]["params"]}


def test_adamw_equals_torchs_and_does_not_decay_norms_and_biases() -> None:
    objective = make("rotation", optimizer={"name": "adamw", "weight_decay": 0.1, "betas": [0.8, 0.95]})
    twin = copy.deepcopy(objective)
    optimizer = build_optimizer(objective.config.optimizer, objective, 0.01)
    weights = [p for p in twin.parameters() if p.ndim > 1]
    others = [p for p in twin.parameters() if p.ndim == 1]
    plain = {"lr": 0.01, "betas": (0.8, 0.95), "foreach": False}
    references = [
        torch.optim.AdamW(weights, weight_decay=0.1, **plain),
        torch.optim.AdamW(others, weight_decay=0.0, **plain),
    ]
    for seed in range(3):
        grads = random_grads(objective, seed)
        step_with(optimizer, objective.parameters(), grads)
        for p, g in zip(twin.parameters(), grads, strict=True):
            p.grad = g.clone()
        for reference in references:
            reference.step()
    for p, expected in zip(objective.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(p, expected, atol=1e-6)

    fresh = make("rotation", optimizer={"name": "adamw", "weight_decay": 0.1})
    start = [p.detach().clone() for p in fresh.parameters()]
    step_with(
        build_optimizer(fresh.config.optimizer, fresh, 0.01), fresh.parameters(), [torch.zeros_like(p) for p in start]
    )
    for p, before in zip(fresh.parameters(), start, strict=True):
        assert torch.allclose(p, before * (1 - 0.01 * 0.1) if p.ndim > 1 else before, atol=0, rtol=1e-6)


A, B, C = 3.4445, -4.7750, 2.0315


def newton_schulz(x: np.ndarray) -> np.ndarray:
    """The published iteration on X itself, one matrix, in double precision."""
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        x = A * x + B * gram @ x + C * gram @ gram @ x
    return x.T if tall else x


def matrices(rows: int, cols: int, n: int = 3) -> np.ndarray:
    """Random matrices with singular values between 0.1 and 1."""
    u, _, v = np.linalg.svd(np.random.default_rng(rows).normal(size=(n, rows, cols)), full_matrices=False)
    return u * np.linspace(0.1, 1, min(rows, cols)) @ v


SHAPES = [(16, 16), (8, 72), (64, 27), (40, 8), (128, 128)]


@pytest.mark.parametrize(("rows", "cols"), SHAPES)
@pytest.mark.parametrize("length", [1e-8, 1.0, 1e4])
def test_orthogonalized_matrices_have_singular_values_near_1_and_equal_newton_schulz(
    rows: int, cols: int, length: float
) -> None:
    x = matrices(rows, cols)
    found = orthogonalize(torch.from_numpy(x * length).float()).numpy()
    values = np.linalg.svd(found, compute_uv=False)
    assert 0.6 < values.min() <= values.max() < 1.3
    for one, given in zip(found, x, strict=True):
        assert np.abs(one - newton_schulz(given)).max() < 1e-3
        u, _, v = np.linalg.svd(given, full_matrices=False)
        aligned = u.T @ one @ v.T  # the same singular vectors: nothing off the diagonal
        assert np.abs(aligned - np.diag(np.diag(aligned))).max() < 1e-3


def test_orthogonalization_takes_gradients_without_full_rank_and_none_at_all() -> None:
    x = np.random.default_rng(0).normal(size=(2, 32, 2)) @ np.random.default_rng(1).normal(size=(2, 2, 64))
    found = orthogonalize(torch.from_numpy(x).float()).numpy()
    values = np.linalg.svd(found, compute_uv=False)
    assert (values[:, :2] > 0.6).all()
    assert (values[:, 2:] < 0.01).all()
    assert torch.equal(orthogonalize(torch.zeros(2, 8, 9)), torch.zeros(2, 8, 9))


def muon_by_hand(w: np.ndarray, grads: list[np.ndarray], lr: float, decay: float, nesterov: bool) -> np.ndarray:
    shape = w.shape
    w = w.reshape(shape[0], -1)
    v = np.zeros_like(w)
    for g in grads:
        g = g.reshape(w.shape)
        v = 0.9 * v + g
        update = newton_schulz(g + 0.9 * v if nesterov else v)
        w = w * (1 - lr * decay) - lr * max(1, w.shape[0] / w.shape[1]) ** 0.5 * update
    return w.reshape(shape)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_muon_by_hand(nesterov: bool, memory_format: torch.memory_format) -> None:
    """Weights of the same flattened shape share a batch, a linear one and a convolution among them."""
    rng = np.random.default_rng(0)
    shapes = [(16, 8, 3, 3), (16, 72), (16, 8, 3, 3), (40, 10), (12, 12)]
    start = [rng.normal(size=shape) for shape in shapes]
    grads = [[rng.normal(size=shape) for shape in shapes] for _ in range(3)]
    params = [nn.Parameter(torch.from_numpy(w).float()) for w in start]
    for p in params:
        if p.ndim == 4:
            p.data = p.data.to(memory_format=memory_format)
    optimizer = Muon(params, 0.1, 0.9, 0.2, nesterov)
    for step in grads:
        step_with(optimizer, params, [torch.from_numpy(g).float() for g in step])
    for i, p in enumerate(params):
        expected = muon_by_hand(start[i], [step[i] for step in grads], 0.1, 0.2, nesterov)
        assert np.abs(p.detach().numpy() - expected).max() < 1e-3, shapes[i]


ANGLES = [45.0 * i for i in range(8)]
MUON = {"name": "muon", "nesterov": True, "weight_decay": 0.1, "adamw_lr": 0.004}


def test_muon_leaves_norms_biases_thin_weights_and_embeddings_to_adamw() -> None:
    rotated = ROTATED_ONLINE | {"angles": ANGLES}
    objective = make("byol+rotation", optimizer=MUON, views={"rotated": rotated})
    thin = make("rotation", optimizer=MUON)
    for built in (objective, thin):
        optimizer = build_optimizer(built.config.optimizer, built, 0.02)
        assert [group["adamw"] for group in optimizer.param_groups] == [False, True]
        first, rest = in_group(optimizer, built, 0), in_group(optimizer, built, 1)
        assert first | rest == {name for name, p in built.named_parameters() if p.requires_grad}
        for name, p in built.named_parameters():
            if p.requires_grad:
                output = name in ("terms.byol.q.3.weight", "terms.rotation.r.3.weight")
                expected = p.ndim > 1 and len(p) >= 8 and not output and name != "angle_embedding.weight"
                assert (name in first) == expected, name
    assert objective.terms["byol"].q[3].weight.ndim == 2
    assert objective.terms["rotation"].r[3].out_features == 8
    assert objective.angle_embedding.weight.shape[0] == 8
    assert any(p.ndim > 1 and len(p) == 4 for p in thin.terms["rotation"].parameters())  # four angles: a thin weight


def test_muon_keeps_the_matrices_of_a_branch_that_is_not_shared() -> None:
    flags = {"encoder": "timm:vit_tiny_patch4", "image_size": 32, "optimizer": MUON, "rotation": {"shared": 12}}
    objective = make("rotation", **flags)
    optimizer = build_optimizer(objective.config.optimizer, objective, 0.02)
    branch = {name for name, p in objective.named_parameters() if "branch" in name and p.ndim > 1 and p.requires_grad}
    assert {name for name in branch if name.endswith("qkv.weight")} <= in_group(optimizer, objective, 0)
    assert any(name.endswith("qkv.weight") for name in branch)


def test_tokens_and_positions_of_a_transformer_are_not_decayed() -> None:
    objective = make("simclr", encoder="timm:vit_tiny_patch4", image_size=32, optimizer={"name": "adamw"})
    optimizer = build_optimizer(objective.config.optimizer, objective, 0.02)
    assert [group["weight_decay"] > 0 for group in optimizer.param_groups] == [True, False]
    rest = {name.rpartition("backbone.")[2] for name in in_group(optimizer, objective, 1)}
    assert {"cls_token", "pos_embed", "blocks.0.attn.qkv.bias", "norm.weight"} <= rest
    assert "blocks.0.attn.qkv.weight" not in rest


def test_other_parameters_of_muon_take_steps_of_adamw_without_decay() -> None:
    objective = make("rotation", optimizer=MUON)
    twin = copy.deepcopy(objective)
    optimizer = build_optimizer(objective.config.optimizer, objective, 0.02)
    rest = in_group(optimizer, objective, 1)
    others = [p for name, p in twin.named_parameters() if name in rest]
    reference = torch.optim.AdamW(others, 0.004, (0.9, 0.98), weight_decay=0.0)
    for seed in range(3):
        grads = random_grads(objective, seed)
        step_with(optimizer, objective.parameters(), grads)
        named = zip(twin.named_parameters(), grads, strict=True)
        step_with(reference, others, [g for (name, _), g in named if name in rest])
    found = [p for name, p in objective.named_parameters() if name in rest]
    assert all(torch.allclose(p, expected, atol=1e-6) for p, expected in zip(found, others, strict=True))


def test_muon_leaves_parameters_without_gradient_alone() -> None:
    """SwAV takes the gradient of its prototypes away in the first steps."""
    params = [nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(8))]
    optimizer = Muon([{"params": params[:1]}, {"params": params[1:], "adamw": True}], 0.1, 0.9, 0.5, True)
    optimizer.step()
    assert all(torch.equal(p, torch.ones_like(p)) for p in params)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_state_of_an_optimizer_continues_to_the_bit(name: str, tmp_path: Path) -> None:
    objective = make("simsiam+rotation", optimizer=MUON | {"name": name, "nesterov": name == "muon"})
    settings = objective.config.optimizer
    optimizer = build_optimizer(settings, objective, 0.02)
    for seed in range(3):
        set_learning_rate(optimizer, 0.02 / (seed + 1))
        step_with(optimizer, objective.parameters(), random_grads(objective, seed))
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    twin = copy.deepcopy(objective)
    resumed = build_optimizer(settings, twin, 0.02)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for seed in range(3, 6):
        for one, module in ((optimizer, objective), (resumed, twin)):
            set_learning_rate(one, 0.02 / (seed + 1))
            step_with(one, module.parameters(), random_grads(module, seed))
    assert all(torch.equal(a, b) for a, b in zip(objective.parameters(), twin.parameters(), strict=True))
    old, new = optimizer.state_dict(), resumed.state_dict()
    assert old["param_groups"] == new["param_groups"]
    assert all(torch.equal(old["state"][i][key], new["state"][i][key]) for i in old["state"] for key in old["state"][i])


def test_the_schedule_scales_both_learning_rates_of_muon() -> None:
    objective = make("simsiam+rotation", optimizer=MUON)
    optimizer = build_optimizer(objective.config.optimizer, objective, 0.02)
    groups = optimizer.param_groups
    assert [g["scheduled"] for g in groups] == [True, True, False, False]
    assert [g["adamw"] for g in groups] == [False, True, False, True]
    assert [g["lr"] for g in groups] == [0.02, 0.004, 0.02, 0.004]
    set_learning_rate(optimizer, 0.005)
    assert [g["lr"] for g in groups] == pytest.approx([0.005, 0.001, 0.02, 0.004])
    set_learning_rate(optimizer, 0.0)
    before = {name: p.detach().clone() for name, p in objective.named_parameters()}
    step_with(optimizer, objective.parameters(), random_grads(objective, 0))
    held = in_group(optimizer, objective, 2) | in_group(optimizer, objective, 3)
    predictor = {f"terms.simsiam.q.{name}" for name, _ in objective.terms["simsiam"].q.named_parameters()}
    assert held == predictor
    for name, p in objective.named_parameters():
        assert torch.equal(p, before[name]) == (name not in held), name


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_step_never_waits_for_its_device(name: str, tiny_photos: Tensor) -> None:
    """A step that looked at a value on its device could not run on torch's meta device."""
    data = Data("photos", ArrayImages(tiny_photos, torch.arange(len(tiny_photos)) % 4, list("abcd")))
    trainer = Trainer(plan("simsiam+rotation", optimizer={"name": name}, batch_size=16), data, torch.device("meta"))
    batches = trainer.loader.epoch(0)
    for _ in range(2):
        loss, _ = trainer.step(next(batches))
        assert loss.device.type == "meta"
    assert trainer.lr == trainer.clock.learning_rate(1)


QUICK = {"quiet": True, "encoder": "small", "batch_size": 64, "subset": 512, "epochs": 3}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_run_learns_and_resumes_to_the_bit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lr = {"adamw": 0.002, "muon": 0.02}[name]
    settings = QUICK | {"optimizer": {"name": name, "nesterov": name == "muon"}, "lr": lr}
    whole = effssl.pretrain("digits", "simsiam+rotation", out=tmp_path / "whole", **settings)
    losses = [line["loss"] for line in whole.metrics() if line["epoch"]]
    assert losses[1] < losses[0]
    assert losses[2] < 0.8 * losses[0]
    real = Trainer.step
    calls = 0

    def dies_in_the_second_epoch(self, batch):
        nonlocal calls
        calls += 1
        if calls == 11:
            raise KeyboardInterrupt
        return real(self, batch)

    monkeypatch.setattr(Trainer, "step", dies_in_the_second_epoch)
    with pytest.raises(KeyboardInterrupt):
        effssl.pretrain("digits", "simsiam+rotation", out=tmp_path / "cut", **settings)
    monkeypatch.setattr(Trainer, "step", real)
    cut = effssl.pretrain("digits", "simsiam+rotation", out=tmp_path / "cut", resume="auto", **settings)
    a, b = load_file(whole.encoder_path), load_file(cut.encoder_path)
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert losses == [line["loss"] for line in cut.metrics() if line["epoch"]]


def test_learning_rates_of_adamw_and_muon_follow_the_root_of_the_batch_size(tmp_path: Path) -> None:
    def resolved(**flags) -> Plan:
        return resolve({"data": "x", "recipe": "cifar10-byol", "batch_size": 128} | flags)  # the recipe's is 512

    for name in ("adamw", "muon"):
        found = resolved(optimizer={"name": name})
        assert found.config.lr == pytest.approx(0.4)
        note = "lr 0.8 holds for batch 512; scaled to 0.4 for batch 128, by the square root of their ratio"
        assert note in found.notes
        assert found.config.optimizer.adamw_lr == pytest.approx(0.001 if name == "muon" else 0.002)
    assert any("optimizer.adamw_lr 0.002 holds for batch 512; scaled to 0.001" in note for note in found.notes)
    given = resolved(lr=0.03, optimizer={"name": "muon", "adamw_lr": 0.005}).config
    assert (given.lr, given.optimizer.adamw_lr) == (0.03, 0.005)
    assert resolved(lr=0.03, optimizer={"name": "muon"}).config.optimizer.adamw_lr == pytest.approx(0.001)
    assert resolved(batch_size=512, optimizer={"name": "muon"}).config.lr == 0.8
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(to_dict(found.config) | {"versions": {"effssl": "0"}}))
    assert resolve({}, file).config == found.config  # a run's own configuration is not scaled again


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        ({"name": "adam"}, "choose one of sgd, lars, adamw, muon"),
        ({"name": "adamw", "nesterov": True}, "nesterov needs sgd with momentum, or muon"),
        ({"name": "muon", "nesterov": True, "momentum": 0.0}, "nesterov needs sgd with momentum, or muon"),
        ({"name": "adamw", "betas": [0.9, 1.0]}, r"optimizer.betas is \[0.9, 1.0\]; it must be between 0 and"),
        ({"name": "adamw", "betas": [0.9]}, "betas takes 2 values"),
        ({"name": "muon", "adamw_lr": 0.0}, "optimizer.adamw_lr is 0.0"),
    ],
)
def test_wrong_settings_are_refused(optimizer: dict, says: str) -> None:
    assert resolve({"data": "x", "optimizer": MUON}).config.optimizer.nesterov
    with pytest.raises(RequestError, match=says):
        resolve({"data": "x", "optimizer": optimizer})
