"""Distillation: both losses by numpy, targets of images and of views, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import effssl
from effssl.augment.color import normalize
from effssl.data import Data
from effssl.network.foreign import open_foreign
from effssl.runtime.errors import RequestError
from effssl.training import teacher as teachers
from tests.objectives.making import BATCH, first_views, losses_of_epochs, make, trainer_of

VIEWS = {"large": {"count": 2, "target": False}}
FLAGS = {"recipe": "cpu-distill", "views": VIEWS, "distill": {"teacher": "pixels-8"}}


def flags(**options) -> dict:
    return FLAGS | {"distill": FLAGS["distill"] | options}


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def centered_features(data: Data) -> np.ndarray:
    """What the teacher makes of the training images, minus the mean."""
    h = open_foreign("pixels-8")(data.train.pixels / 255).double().numpy()
    return h - h.mean(0)


def predictions(objective, views) -> np.ndarray:
    head = objective.terms["distill"].head
    return head(objective.step(views).online("h")).detach().double().numpy()  # V×B×D


def test_the_cosine_loss_by_numpy(data: Data) -> None:
    objective, views = make("distill", data, **FLAGS), first_views(data, "distill", **FLAGS)
    outcome = objective.outcomes(views)["distill"]
    p, t = unit(predictions(objective, views)), unit(centered_features(data)[views.index.numpy()])
    cosines = [float(p[v, i] @ t[i]) for v in range(2) for i in range(BATCH)]
    assert float(outcome.loss.detach()) == pytest.approx(1 - np.mean(cosines), abs=1e-5)
    nearest = np.array([[int(np.argmax(t @ p[v, i])) for i in range(BATCH)] for v in range(2)])
    assert float(outcome.accuracy) == pytest.approx(float((nearest == np.arange(BATCH)).mean()))
    assert outcome.chance == 1 / BATCH


def test_the_relational_loss_by_numpy(data: Data) -> None:
    objective = make("distill", data, **flags(loss="relational"))
    views = first_views(data, "distill", **flags(loss="relational"))
    outcome = objective.outcomes(views)["distill"]
    p, t = unit(predictions(objective, views)), unit(centered_features(data)[views.index.numpy()])
    squares = [
        (float(p[v, i] @ p[v, j]) - float(t[i] @ t[j])) ** 2
        for v in range(2)
        for i in range(BATCH)
        for j in range(BATCH)
        if i != j
    ]
    assert float(outcome.loss.detach()) == pytest.approx(np.mean(squares), rel=1e-4)
    assert outcome.accuracy is None


def test_with_targets_of_views_the_teacher_sees_each_view_in_its_own_preprocessing(data: Data) -> None:
    settings = flags(targets="view") | {"views": VIEWS | {"small": {"count": 1, "size": 16}}}
    objective, views = make("distill", data, **settings), first_views(data, "distill", **settings)
    term, augment = objective.terms["distill"], objective.config.augment
    found = term.targets(objective.step(views))
    pixels = open_foreign("pixels-8").with_transform(1.0, "bilinear")
    std, mean = (torch.tensor(x).view(3, 1, 1) for x in (augment.std, augment.mean))
    expected = [pixels(x * std + mean) for x in (*views.pixels["large"], *views.pixels["small"])]
    expected = torch.nn.functional.normalize(torch.stack(expected) - term.mean, dim=2)
    assert found.shape == (3, BATCH, 3 * 64)
    assert torch.allclose(found, expected, atol=1e-4)
    raw = torch.rand(4, 3, 24, 24)
    assert torch.allclose(term.teacher(normalize(raw, augment.mean, augment.std)), pixels(raw), atol=1e-5)


def test_features_are_computed_once_and_only_if_they_fit(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = teachers.run_over
    monkeypatch.setattr(teachers, "_last", None)
    monkeypatch.setattr(teachers, "run_over", lambda *args: calls.append(args) or real(*args))
    first, second = (make("distill", data, seed=seed, **FLAGS).terms["distill"] for seed in (0, 1))
    assert len(calls) == 1
    assert first.features is second.features
    with pytest.raises(
        RequestError, match=r"256 images × 3072 features of the teacher take 3 MB; raise distill.memory"
    ):
        make("distill", data, **flags(teacher="pixels-32", memory=2))
    make("distill", data, **flags(teacher="pixels-32", memory=2, targets="view"))


def test_the_teacher_is_neither_trained_nor_saved(data: Data) -> None:
    trainer = trainer_of("distill+rotation", data, **flags())
    state = trainer.state()
    assert {key for key in state["objective"] if key.startswith("terms.distill.")} == {
        "terms.distill.head.weight", "terms.distill.head.bias", "terms.distill._extra_state",
    }  # fmt: skip
    assert not any("teacher" in name for name, _ in trainer.objective.named_parameters())


@pytest.mark.parametrize("options", [{}, {"loss": "relational"}, {"targets": "view"}])
@pytest.mark.parametrize("objective", ["distill", "simclr+distill"])
def test_it_learns_alone_and_beside_a_base(data: Data, objective: str, options: dict) -> None:
    settings = flags(**options) | ({"views": {}, "recipe": "cpu-simclr"} if "simclr" in objective else {})
    losses = list(losses_of_epochs(trainer_of(objective, data, epochs=4, **settings), 4, "loss/distill"))
    assert losses[-1] < 0.97 * losses[0]


def test_a_run_teaches_another_and_a_changed_teacher_is_noticed(tmp_path: Path) -> None:
    quick = {"quiet": True, "encoder": "tiny", "batch_size": 64, "subset": 256, "report": False, "epochs": 1}
    teacher = effssl.pretrain("digits", "supervised", out=tmp_path / "t", **quick)
    settings = quick | {"distill": {"teacher": str(tmp_path / "t")}}
    run = effssl.pretrain("digits", "distill", out=tmp_path / "s", **settings)
    assert run.metrics()[-1]["loss/distill"] < 1
    other = effssl.pretrain("digits", "supervised", out=tmp_path / "other", seed=1, **quick)
    run.encoder_path.unlink()
    teacher.encoder_path.write_bytes(other.encoder_path.read_bytes())
    with pytest.raises(RequestError, match="has changed since the run was started"):
        effssl.pretrain("digits", "distill", out=tmp_path / "s", resume="auto", **settings)
    for file in (teacher.encoder_path, *teacher.folder.glob("checkpoint*")):
        file.unlink()
    with pytest.raises(RequestError, match=r"distill.teacher: the run .* has no checkpoint yet"):
        effssl.pretrain("digits", "distill", out=tmp_path / "n", **settings)
    assert not (tmp_path / "n").exists()


def test_a_run_records_its_teacher_by_place_and_digest(in_tmp: Path) -> None:
    quick = {"quiet": True, "encoder": "tiny", "batch_size": 64, "subset": 256, "report": False, "epochs": 1}
    teacher = effssl.pretrain("digits", "supervised", out="t", **quick)
    effssl.pretrain("digits", "supervised", out="other", seed=1, **quick)
    settings = quick | {"distill": {"teacher": "t"}}
    run = effssl.pretrain("digits", "distill", out="s", **settings)
    digest = teacher.encoder().fingerprint()
    recorded = run.config.distill
    assert (recorded.teacher, recorded.digest) == (str(in_tmp / "t"), digest)
    card = effssl.export(run, "safetensors", "e.safetensors").with_name("e.safetensors.md").read_text()
    assert f"| teacher | t, digest {digest} |" in card
    assert str(in_tmp) not in card
    again = effssl.pretrain("digits", "distill", out="s", resume="auto", **settings)
    assert again.config == run.config
    with pytest.raises(RequestError, match=f"was started with other settings .distill.teacher: {in_tmp}/t → "):
        effssl.pretrain("digits", "distill", out="s", resume="auto", **quick | {"distill": {"teacher": "other"}})
    teacher.encoder_path.write_bytes(Path("other/encoder.safetensors").read_bytes())
    with pytest.raises(RequestError, match=f"distill.teacher .* has changed: its digest is .*, not {digest} as in"):
        effssl.pretrain(config=run.config_path, out="new", quiet=True, report=False)


@pytest.mark.parametrize(
    ("teacher", "says"),
    [
        ("", "distill needs a teacher"),
        ("nowhere/at/all", "distill.teacher: no run folder or weight file at nowhere/at/all"),
        ("resnet1", "distill.teacher: .*did you mean resnet18"),
        ("small", "distill.teacher: small has no pretrained weights"),
    ],
)
def test_a_teacher_that_cannot_be_opened_is_refused(data: Data, teacher: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        make("distill", data, **flags(teacher=teacher))


def test_a_weight_file_needs_its_architecture(data: Data, tmp_path: Path, tiny_photos: Tensor) -> None:
    encoder = open_foreign("small", weights="random")
    torch.save(encoder.backbone.state_dict(), tmp_path / "w.pth")
    path = str(tmp_path / "w.pth")
    with pytest.raises(RequestError, match=r'add distill.encoder, e.g. distill={"encoder": "resnet50"}'):
        make("distill", data, **flags(teacher=path))
    term = make("distill", data, **flags(teacher=path, encoder="small")).terms["distill"]
    assert torch.allclose(term.features[:8], encoder(tiny_photos[:8] / 255), atol=1e-4)


def test_without_images_it_is_refused() -> None:
    with pytest.raises(RequestError, match="give data"):
        make("distill", **FLAGS)
