"""Tabular problems on which every expectation is a finite sum: a bandit is one softmax, a tree has one per prefix."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """All completions of L tokens over V: a reference at every prefix, a probability of reward at every leaf.

    Nodes are numbered level by level: the child of node n by token v is n·V + v + 1; leaves follow the last node.

    Example:
        Two tokens twice: three nodes and four leaves.

        >>> tree = Tree(ref=torch.full((3, 2), 0.5), success=torch.tensor([1.0, 0.0, 0.0, 0.0]))
        >>> tree.depth, tree.success_of_tokens(tree.ref)[0]
        (2, tensor([0.5000, 0.0000]))
    """

    ref: Float[Tensor, "nodes vocab"]
    """π_ref, rows that sum to 1; (V^L − 1)/(V − 1) nodes."""
    success: Float[Tensor, "leaves"]
    """Q in [0, 1]: 0 and 1 are verdicts; values between stand for a prefix that right and wrong completions share."""

    @property
    def levels(self) -> list[slice]:
        """The nodes of each level; the root's level first."""
        vocab, start, width, found = self.ref.shape[1], 0, 1, []
        while width < len(self.success):
            found.append(slice(start, start + width))
            start, width = start + width, width * vocab
        return found

    @property
    def depth(self) -> int:
        """L, the number of tokens of a completion."""
        return len(self.levels)

    def success_of_tokens(self, probs: Float[Tensor, "nodes vocab"]) -> Float[Tensor, "nodes vocab"]:
        """Q(node, v): the probability that a completion is right if v follows the node."""
        quality = torch.empty_like(probs)
        below = self.success.to(probs)
        for level in reversed(self.levels):
            quality[level] = below.view(-1, probs.shape[1])
            below = (probs[level] * quality[level]).sum(1)
        return quality

    def visits(self, probs: Float[Tensor, "nodes vocab"]) -> Float[Tensor, "nodes"]:
        """The probability that a completion passes through each node; 1 at the root."""
        reached, here = [], torch.ones(1, dtype=probs.dtype)
        for level in self.levels:
            reached.append(here)
            here = (here[:, None] * probs[level]).flatten()
        return torch.cat(reached)

    def accuracy(self, probs: Float[Tensor, "nodes vocab"]) -> float:
        """J = P(right) in [0, 1], pass@1."""
        return (probs[0] * self.success_of_tokens(probs)[0]).sum().item()

    def children(self, nodes: Int[Tensor, "*batch"], tokens: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        """The node that a token leads to; numbers past the last node are leaves."""
        return nodes * self.ref.shape[1] + tokens + 1


def bandit(ref: Float[Tensor, "vocab"], success: Float[Tensor, "vocab"]) -> Tree:
    """A tree of one token."""
    return Tree(ref=ref[None], success=success)


def dist(*values: float | int) -> Float[Tensor, "vocab"]:
    """A float64 vector."""
    return torch.tensor(values, dtype=torch.float64)


def constant(value: float, size: int) -> Float[Tensor, "vocab"]:
    """A float64 vector of equal entries."""
    return torch.full((size,), value, dtype=torch.float64)


def seeded(seed: int) -> torch.Generator:
    """A separate generator for each check, so that no check depends on another."""
    return torch.Generator().manual_seed(seed)


def random_probs(rows: int, vocab: int, generator: torch.Generator, spread: float = 2.0) -> Float[Tensor, "rows vocab"]:
    """Softmaxes of normal logits with standard deviation `spread` [nats]."""
    logits = torch.randn(rows, vocab, generator=generator, dtype=torch.float64) * spread
    return logits.softmax(1)


def random_tokens(probs: Float[Tensor, "rows vocab"], generator: torch.Generator) -> Int[Tensor, "rows"]:
    """One token per row, drawn uniformly."""
    return torch.randint(probs.shape[1], (len(probs),), generator=generator)


def random_states(
    rows: int, vocab: int, generator: torch.Generator, spread: float = 2.0
) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows vocab"], Int[Tensor, "rows"]]:
    """(π, π_ref, y) of independent tokens."""
    probs, ref = (random_probs(rows, vocab, generator, spread) for _ in range(2))
    return probs, ref, random_tokens(probs, generator)
