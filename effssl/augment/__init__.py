"""Batched random views: parameters are drawn on the CPU, images are changed where they are stored."""
