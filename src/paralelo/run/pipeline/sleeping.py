"""A stage that takes known times and no processor: to measure a schedule on a machine with fewer cores than ranks."""

import time

import torch


class SleepingStage(torch.nn.Module):
    """Passes its input on, scaled by a weight of one, and sleeps: `forward` and `backward` seconds a microbatch.

    `weight` seconds of the backward belong to the gradient of the weight: a whole backward sleeps `backward`, `I`
    sleeps backward − weight and `W` sleeps `weight`. `log` collects the start and end of every sleep.
    """

    def __init__(self, forward: float, backward: float, weight: float = 0.0):
        super().__init__()
        self.times, self.log = (forward, backward - weight, weight), []
        self.shift = torch.nn.Parameter(torch.zeros(()))
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        forward, of_input, of_weight = self.times
        scale = _Sleep.apply(self.scale, 0, of_weight, self.log)
        return scale * _Sleep.apply(x + self.shift, forward, of_input, self.log)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward, log):
        ctx.seconds, ctx.log = backward, log
        _sleep(forward, log)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        _sleep(ctx.seconds, ctx.log)
        return gradient, None, None, None


def _sleep(seconds, log):
    if seconds:
        start = time.perf_counter()
        time.sleep(seconds)
        log.append((start, time.perf_counter()))
