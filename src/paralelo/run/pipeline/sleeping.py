"""A stage that takes known times and no processor: to measure a schedule on a machine with fewer cores than ranks."""

import time

import torch


class SleepingStage(torch.nn.Module):
    """Passes its input on, scaled by a weight of one, and sleeps: `forward` and `backward` seconds a microbatch.

    `weight` seconds of the backward belong to the gradient of the weight: a whole backward sleeps `backward`, `I` sleeps
    backward − weight and `W` sleeps `weight`.
    """

    def __init__(self, forward: float, backward: float, weight: float = 0.0):
        super().__init__()
        self.times = forward, backward - weight, weight
        self.shift = torch.nn.Parameter(torch.zeros(()))
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        forward, of_input, of_weight = self.times
        return _OfWeight.apply(self.scale, of_weight) * _OfInput.apply(x + self.shift, forward, of_input)


class _OfInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.seconds = backward
        time.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None, None


class _OfWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, backward):
        ctx.seconds = backward
        return w.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None
