"""The backward of one stage for one microbatch: whole (`B`), or first for the input (`I`), later for the weights (`W`).

The graph of a stage runs from its output down to its input and to its parameters. A node on a way to the input is on
the **path**; where a node of the path also leads, by another edge, to a parameter, it is a **junction**: a linear layer
Y = X Wᵀ is one.

    I    gradients run down the path only; at every junction what arrives (dY) is kept      dX = dY W
    W    from each junction, with what was kept, to its parameters only                     dW = dYᵀ X

Autograd computes only what leads to the leaves that are asked for, so each half does its own half of the work, and the
sum of both is what the whole backward does. What a forward saved is held until `W` ends.

Three cases. A parameter that several junctions lead to (weights tied inside a stage) gets its gradient with `I`, since
what arrives at one junction reaches it through another as well. The first stage has no input that wants a gradient: its
path is the longest way down, to the parameter at its end (an embedding). Collectives inside a stage run once, on the
path with `I`, those of a parameter with `W`; a `Function` of one's own that is a junction runs its backward twice.

Source: Qi et al. 2023, Zero Bubble Pipeline Parallelism (B there is `I` here). Both halves leave `.grad` added to and
fire the parameters' hooks.
"""

import torch
from torch.autograd.graph import GradientEdge


class Backward:
    """What is held of a forward: `roots`, the edges of its outputs that want a gradient, and its `inputs`."""

    def __init__(self, roots: list[GradientEdge], inputs: tuple):
        self.roots, self.inputs = roots, inputs
        self.later = []                                   # (edges, gradients, parameters) for W

    def whole(self, gradients: list) -> tuple:
        """`B`: adds to every parameter's `.grad`; the gradients of the inputs (None where none is wanted)."""
        if self.roots:
            torch.autograd.backward(self.roots, gradients)
        return self._release()

    def of_inputs(self, gradients: list) -> tuple:
        """`I`: the gradients of the inputs; keeps what `of_weights` needs."""
        wanted = [x for x in self.inputs if x.requires_grad]
        junctions, now, aside = split(self.roots, wanted)
        kept, hooks = {}, []
        for node in junctions:
            hooks.append(node.register_prehook(_keeper(kept, node)))
        if wanted or now:
            torch.autograd.backward(self.roots, gradients, inputs=[*wanted, *now], retain_graph=True)
        for hook in hooks:
            hook.remove()
        for node, arrived in kept.items():
            at = [i for i, g in enumerate(arrived) if g is not None]
            self.later.append(([GradientEdge(node, i) for i in at], [arrived[i] for i in at], junctions[node]))
        for i, leaves in aside.items():
            self.later.append(([self.roots[i]], [gradients[i]], leaves))
        return self._gradients()

    def of_weights(self) -> None:
        """`W`: adds to `.grad` of the parameters; frees what the forward saved."""
        for edges, gradients, leaves in self.later:
            torch.autograd.backward(edges, gradients, inputs=leaves, retain_graph=True)
        self.later = []
        self._release()

    def _release(self):
        gradients = self._gradients()
        self.roots, self.inputs = [], ()
        return gradients

    def _gradients(self):
        # what is no leaf is the caller's own, cut from a whole batch; its gradient goes on to where it was cut from
        return tuple((torch.zeros_like(x) if x.grad is None else x.grad) if x.requires_grad and x.is_leaf else None
                     for x in self.inputs)


def _keeper(kept, node):
    def keep(gradients):
        kept[node] = gradients

    return keep


def split(roots: list[GradientEdge], inputs: list[torch.Tensor]) -> tuple[dict, list, dict]:
    """Divide the leaves below `roots`: (junction → its parameters, parameters to do with I, root → parameters aside).

    `aside` are the parameters of outputs from which no way leads to an input.
    """
    order, depth = _walk(roots)
    leaf = {node: node.variable for node in order if hasattr(node, "variable")}
    inputs = {id(x) for x in inputs}
    ends = {node for node, x in leaf.items() if id(x) in inputs}
    now = []
    if not ends and leaf:                                 # a first stage: the longest way down is the path
        last = max(leaf, key=lambda node: depth[node])
        ends, now = {last}, [leaf[last]]

    path, below = set(ends), {}                           # below: the leaves of a node off the path
    for node in order:                                    # children first
        children = [child for child, _ in node.next_functions if child is not None]
        if node in path or any(child in path for child in children):
            path.add(node)
        else:
            below[node] = {node} if node in leaf else set().union(*(below[child] for child in children))

    found = {node: set().union(*(below[c] for c, _ in node.next_functions if c is not None and c not in path))
             for node in order if node in path}
    aside = {i: below[root.node] for i, root in enumerate(roots) if root.node not in path}
    count = {}
    for leaves in [*found.values(), *aside.values()]:
        for node in leaves:
            count[node] = count.get(node, 0) + 1
    now += [leaf[node] for node in order if count.get(node, 0) > 1]

    def once(places):
        kept = {place: [leaf[n] for n in order if n in leaves and count[n] == 1] for place, leaves in places.items()}
        return {place: leaves for place, leaves in kept.items() if leaves}

    return once(found), now, once(aside)


def _walk(roots) -> tuple[list, dict]:
    """All nodes below the roots, children before parents, and each one's longest distance from a root."""
    order, seen = [], set()
    for root in roots:
        stack = [(root.node, False)]
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack += [(child, False) for child, _ in node.next_functions if child is not None]
    depth = dict.fromkeys(order, 0)
    for node in reversed(order):
        for child, _ in node.next_functions:
            if child is not None:
                depth[child] = max(depth[child], depth[node] + 1)
    return order, depth
