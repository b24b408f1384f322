"""Words: predict from every view which visual words the whole image shows. After Gidaris et al. 2020.

The words are k-means patches, as of 2011: their filters are computed from the training images before the run, so that
the target of an image is exact and does not move while the network learns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.network.network import Network
from effssl.network.patches import PatchResponses
from effssl.network.readout import Whitening
from effssl.objectives.options import WordsOptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator

BATCH = 250  # images whose responses are held at once


class Words(Term):
    """L = 1 − mean over online views v of cos(W h_v, t), t the pooled and whitened patch responses of the clean image.

    Targets are computed with each batch: no pass over the set before training, nothing to keep in a checkpoint.
    """

    reads = ("online", "clean")

    def __init__(self, options: WordsOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        if info.sample is None:
            raise RequestError("words computes its filters from the training images; give data")
        images = info.sample()  # N×C×S×S
        self.patches = PatchResponses(options.filters, stride=options.stride, channels=images.shape[1])
        self.whitening = Whitening(self.patches.dim, options.dim)
        self.patches.fit(images, generator(info.seed, "words"))
        with torch.no_grad():
            self.whitening.fit(self.patches(part) for part in images.split(BATCH))
        self.head = nn.Linear(network.h_dim, len(self.whitening.matrix))

    @torch.no_grad()
    def target(self, clean: Tensor) -> Tensor:
        """Words of the clean images B×C×S×S, as unit vectors B×dim."""
        return F.normalize(self.whitening(self.patches(clean)), dim=1)

    def loss(self, step: Step) -> Outcome:
        assert step.views.clean is not None
        t = self.target(step.views.clean)  # B×dim
        p = F.normalize(step.run(self.head, step.online("h")), dim=2)  # V×B×dim
        cosine = p @ t.T  # V×B×B
        loss = 1 - cosine.diagonal(dim1=1, dim2=2).mean()
        # An image is recognized if its own words are the nearest to the prediction, among those of the batch.
        own = torch.arange(len(t), device=t.device)
        accuracy = (cosine.detach().argmax(2) == own).float().mean()
        return Outcome(loss, accuracy, chance=1 / len(t))
