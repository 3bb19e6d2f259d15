"""Accuracy over the samples of each problem, as pure functions."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError


def pass_at_k(
    num_samples: Int[Tensor, "*problems"], num_correct: Int[Tensor, "*problems"], k: int
) -> Float[Tensor, "*problems"]:
    """The probability that at least one of k samples, drawn without replacement from the n given ones, is correct.

        pass@k = 1 − C(n−c, k)/C(n, k) = 1 − Π_{j<k} (n − c − j)/(n − j)

    Unbiased, with less variance than "any of the first k"; drawing with replacement would be biased.

    Source: Chen et al. 2021 (Codex), Eq. 1.

    Args:
        num_samples: n of each problem.
        num_correct: c of each problem, 0 ≤ c ≤ n.
        k: 1 ≤ k ≤ n.

    Returns:
        In [0, 1], float64; pass@1 is c/n.

    Raises:
        ConfigError: k or a count is out of range.

    Example:
        Three of the 6 pairs among 4 samples miss the one correct sample.

        >>> pass_at_k(torch.tensor([4]), torch.tensor([1]), k=2)
        tensor([0.5000], dtype=torch.float64)
    """
    return pass_at_k_curve(num_samples.flatten(), num_correct.flatten(), [k]).view(num_samples.shape)


def pass_at_k_curve(
    num_samples: Int[Tensor, "problems"], num_correct: Int[Tensor, "problems"], ks: Sequence[int]
) -> Float[Tensor, "problems ks"]:
    """`pass_at_k` of each problem at several k, in any order and at the cost of the largest; one column per k.

    Raises:
        ConfigError: a k or a count is out of range, or there is no k.

    Example:
        >>> pass_at_k_curve(torch.tensor([4]), torch.tensor([1]), [1, 2, 4])
        tensor([[0.2500, 0.5000, 1.0000]], dtype=torch.float64)
    """
    if not ks:
        raise ConfigError("pass@k at no k: give at least one")
    fewest = int(num_samples.min()) if num_samples.numel() else max(ks)
    if wrong_ks := [k for k in ks if not 1 <= k <= fewest]:
        raise ConfigError(
            f"pass@{wrong_ks[0]} of {fewest} samples: k must lie between 1 and the number of samples a problem"
        )
    if bool(((num_correct < 0) | (num_correct > num_samples)).any()):
        raise ConfigError("pass@k: a problem counts more correct samples than samples, or fewer than 0")
    drawn = torch.arange(max(ks), device=num_samples.device)
    wrong_left, left = (num_samples - num_correct)[:, None] - drawn, num_samples[:, None] - drawn
    # The product is 0 from the draw on that finds no wrong sample left, so the negative factors after it do no harm.
    all_wrong = (wrong_left.double() / left).cumprod(1)
    return 1 - all_wrong[:, torch.tensor(ks, device=drawn.device) - 1]


def majority_at_n(
    answers: Int[Tensor, "problems samples"], is_correct: Bool[Tensor, "problems samples"]
) -> Float[Tensor, "problems"]:
    """maj@n: whether the most frequent answer of the n samples is correct.

    Samples that could not be parsed do not vote. Tied answers win with equal probability, so the value is the fraction
    of them that is correct; an answer that was judged differently counts by the fraction of its votes that is correct.
    A problem without votes scores 0.

    Source: Wang et al. 2022, "Self-consistency improves chain of thought reasoning in language models" (unweighted
        sum). Departure: ties in expectation, not by order.

    Args:
        answers: the same number for equivalent answers of a problem; −1 for a sample that does not vote.
        is_correct: the verdict on each sample.

    Returns:
        In [0, 1], float64.

    Example:
        Two votes for answer 7, which is right; two for 5, which is wrong; one sample without an answer.

        >>> right = torch.tensor([[True, False, True, False, False]])
        >>> majority_at_n(torch.tensor([[7, 5, 7, 5, -1]]), right)
        tensor([0.5000], dtype=torch.float64)
    """
    shares = [_majority(*problem) for problem in zip(answers, is_correct, strict=True)]
    return torch.tensor(shares, dtype=torch.float64, device=answers.device)


def _majority(answers: Int[Tensor, "samples"], is_correct: Bool[Tensor, "samples"]) -> float:
    voting = answers >= 0
    if not bool(voting.any()):
        return 0.0
    _, answer_of_sample, votes = answers[voting].unique(return_inverse=True, return_counts=True)
    # Tied answers have equally many votes, so the mean over votes is the mean over answers.
    wins = votes[answer_of_sample] == votes.max()
    return is_correct[voting][wins].double().mean().item()
