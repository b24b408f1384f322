"""The network: an encoder f that is kept, a projector g on which losses act, and momentum copies of both."""

from effssl.network.encoders import Encoder, build_encoder
from effssl.network.momentum import follow, momentum_copy
from effssl.network.network import Network, build_network

__all__ = ["Encoder", "Network", "build_encoder", "build_network", "follow", "momentum_copy"]
