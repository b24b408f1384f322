"""Plain classification: the reference that self-supervision is measured against."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from effssl.network.network import Network
from effssl.objectives.labels import noisy_labels, required_labels
from effssl.objectives.options import SupervisedOptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term


class Supervised(Term):
    """Cross-entropy of a linear layer on h, over all online views."""

    reads = ("online",)

    def __init__(self, options: SupervisedOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        labels = required_labels(info, "supervised")
        self.labels = noisy_labels(labels, info.classes, options.label_noise, info.seed)
        self.classifier = nn.Linear(network.h_dim, info.classes)

    def loss(self, step: Step) -> Outcome:
        logits = step.run(self.classifier, step.online("h")).flatten(0, 1)  # (V·B)×classes
        labels = self.labels[step.views.index].to(logits.device, non_blocking=True)
        labels = labels.repeat(len(logits) // len(labels))
        accuracy = (logits.detach().argmax(1) == labels).float().mean()
        return Outcome(F.cross_entropy(logits, labels), accuracy, chance=1 / self.classifier.out_features)
