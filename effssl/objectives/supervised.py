"""Plain classification: the reference that self-supervision is measured against."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from effssl.data.views import Needs
from effssl.network import Network
from effssl.objectives.labels import noisy_labels, required_labels
from effssl.objectives.objective import Outcome, Setting, Step, Term
from effssl.objectives.options import Supervised as Options


class Supervised(Term):
    """Cross-entropy of a linear layer on h, over all views there are."""

    needs = Needs(large=1)

    def __init__(self, options: Options, network: Network, setting: Setting) -> None:
        super().__init__(options, network, setting)
        labels = required_labels(setting, "supervised")
        self.labels = noisy_labels(labels, setting.classes, options.label_noise, setting.seed, options.noise_to)
        self.classifier = nn.Linear(network.h_dim, setting.classes)

    def loss(self, step: Step) -> Outcome:
        logits = step.run(self.classifier, step.h())
        labels = self.labels[step.views.index].to(logits.device, non_blocking=True)
        labels = labels.repeat(len(step.views.large))
        right = (logits.detach().argmax(1) == labels).float().mean()
        return Outcome(F.cross_entropy(logits, labels), {"train_accuracy": right})
