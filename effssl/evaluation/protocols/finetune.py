"""Top-1 accuracy of a copy of the encoder and a new linear layer, fine-tuned on all labels."""

from __future__ import annotations

from dataclasses import dataclass

from effssl.data import Data
from effssl.evaluation.fine_tuning import FineTuning, fine_tune
from effssl.evaluation.protocol import BatchSize, EvaluationProtocol, LearningRate
from effssl.evaluation.score import Score
from effssl.features.extract import labelled
from effssl.network.loaded import LoadedEncoder
from effssl.schema import Positive, Seed


@dataclass(frozen=True)
class FinetuneOptions:
    """Options of fine-tuning."""

    epochs: Positive = 20
    batch: BatchSize = 256
    lr: LearningRate = 0.01
    """of the encoder"""
    head_lr: LearningRate = 0.2
    """of the linear layer"""
    seed: Seed = 0


def evaluate_finetune(encoder: LoadedEncoder, data: Data, options: FinetuneOptions) -> Score:
    """Top-1 accuracy after fine-tuning on all training labels."""
    train, test = labelled(data, "finetune")
    settings = FineTuning(options.epochs, options.batch, options.lr, options.head_lr, options.seed)
    tuned = fine_tune(encoder, train, test, settings)
    score = Score("finetune", tuned.top1, "top-1", settings.constants(), tuned.also)
    return score.on(data, train=(train, tuned.train_rows), test=(test, tuned.test_rows))


PROTOCOL = EvaluationProtocol("finetune", FinetuneOptions, evaluate_finetune)
