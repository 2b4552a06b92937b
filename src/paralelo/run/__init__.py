"""PyTorch: the ideas of `predict` on real ranks."""
