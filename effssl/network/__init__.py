"""The network: an encoder f that is kept, a projector g on which losses act, and momentum copies of both."""
