"""The mathematics of the losses: tensors in, tensors out, one row per token.

Log-probs are in nats, of full-vocabulary softmaxes. *Objectives* are maximised; a loss is minus an objective.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

KL_ESTIMATORS = ("k1", "k2", "k3", "k3_plus")

Number = float | int
"""A setting: YAML and users write 3.0 as 3, which run-time type checkers do not accept as a float."""

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ±20 before exp: e²⁰ ≈ 5·10⁸ still leaves float32 products finite."""
LOG_ZERO = -1e30
"""log 0, but finite: exp of it is exactly 0 and so is its gradient; −∞ would make the backward of logsumexp NaN."""


def log_ratio(logprobs: Float[Tensor, "tokens"], old_logprobs: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """Log π(y) − log π_old(y), not clamped.

    Example:
        >>> log_ratio(torch.tensor([-1.0]), torch.tensor([-1.5]))
        tensor([0.5000])
    """
    return logprobs - old_logprobs.detach()


def importance_ratio(
    logprobs: Float[Tensor, "tokens"], old_logprobs: Float[Tensor, "tokens"]
) -> Float[Tensor, "tokens"]:
    """How many times more likely the token is now than when it was sampled.

        r = exp(clamp(log π(y) − log π_old(y), −20, 20))

    Source: Schulman et al. 2017 (PPO), Eq. 6.

    Returns:
        r in [e⁻²⁰, e²⁰]; no gradient where the clamp acts.

    Example:
        >>> importance_ratio(torch.tensor([0.5]).log(), torch.tensor([0.25]).log())
        tensor([2.])
    """
    return log_ratio(logprobs, old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def gradient_of(values: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """0, with the gradient of the values; added to a constant it moves the constant as they move."""
    return (values - values.detach()).nan_to_num(0.0)


def clipped_objective(
    ratio: Float[Tensor, "tokens"],
    advantages: Float[Tensor, "tokens"],
    *,
    clip_eps: Number,
    clip_eps_high: Number | None = None,
    dual_clip: Number | None = None,
) -> Float[Tensor, "tokens"]:
    """PPO's pessimistic surrogate of the policy improvement.

        objective(ρ, A) = min(ρ·A, clip(ρ, 1 − ε_low, 1 + ε_high)·A);   with dual clip c, where A < 0: max(·, c·A)

    Source: Schulman et al. 2017, Eq. 7; dual clip: Ye et al. 2020, Eq. 5; Wang et al. 2026 (APO), Eqs. 1 and 23.

    Departure: the APO paper's Eq. 24 has no gradient outside [1 − ε, 1 + ε]. The `min` of its Eq. 23 is one-sided: for
    A < 0 the gradient flows for every ρ > 1 + ε too. This is the `min`.

    Args:
        ratio: ρ, which may be negative for a rectified ratio; for A < 0 that is the flat part.
        advantages: A, constant.
        clip_eps: ε_low, and ε_high where `clip_eps_high` is None.
        clip_eps_high: ε_high.
        dual_clip: c > 1; None: no second clip.

    Returns:
        The objective, to be maximised.

    Example:
        A bad token that became half as likely earns only what a fall to 0.8 would: the rest is flat.

        >>> clipped_objective(torch.tensor([0.5, 1.5]), torch.tensor([-1.0, -1.0]), clip_eps=0.2)
        tensor([-0.8000, -1.5000])
    """
    high = clip_eps if clip_eps_high is None else clip_eps_high
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_eps, 1 + high) * advantages)
    if dual_clip is None:
        return objective
    floor = dual_clip * advantages
    return torch.where((advantages < 0) & (objective < floor), floor, objective)


def is_clipped(
    ratio: Float[Tensor, "tokens"],
    advantages: Float[Tensor, "tokens"],
    *,
    clip_eps: Number,
    clip_eps_high: Number | None = None,
    dual_clip: Number | None = None,
) -> Bool[Tensor, "tokens"]:
    """True where A ≠ 0 and `clipped_objective` is flat in ρ, so that the token has no gradient.

    Example:
        >>> is_clipped(torch.tensor([0.5, 0.5, 1.5]), torch.tensor([-1.0, 1.0, -1.0]), clip_eps=0.2)
        tensor([ True, False, False])
    """
    high = clip_eps if clip_eps_high is None else clip_eps_high
    clipped = ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - clip_eps))
    if dual_clip is None:
        return clipped
    return clipped | ((advantages < 0) & (ratio > dual_clip))


def kl_estimate(
    logprobs: Float[Tensor, "tokens"],
    ref_logprobs: Float[Tensor, "tokens"],
    estimator: str,
    *,
    clamp: Number | None = None,
) -> Float[Tensor, "tokens"]:
    """An estimate of KL(π‖π_ref) from one sampled token.

        Δ = clamp(log π_ref(y) − log π(y), −20, 20);   k1 = −Δ,   k2 = Δ²/2,   k3 = e^Δ − Δ − 1

    All three estimate the *value*: k1 and k3 without bias. Minimised as a *loss* on tokens drawn from π they do
    different things: the gradient of k1 is 0 in expectation, that of k2 is ∇KL(π‖π_ref), that of k3 is ∇KL(π_ref‖π).
    So there is `k3_plus`: the value of k3 with the gradient of k2 (straight-through).

    Source: Schulman 2020, "Approximating KL divergence"; k3 in GRPO: Shao et al. 2024, Eq. 4.

    Args:
        logprobs: log π(y); carries the gradient.
        ref_logprobs: log π_ref(y).
        estimator: one of `KL_ESTIMATORS`.
        clamp: caps the value of k3 (also inside k3_plus); k3 has no gradient beyond it, which for 10 means Δ > 2.61
            or Δ < −11. None: no cap.

    Returns:
        The estimate [nats]; ≥ 0 except for k1.

    Raises:
        ValueError: there is no such estimator.

    Example:
        The reference finds the token twice as likely: k3 = 2 − log 2 − 1.

        >>> kl_estimate(torch.tensor([0.25]).log(), torch.tensor([0.5]).log(), "k3")
        tensor([0.3069])
    """
    if estimator not in KL_ESTIMATORS:
        raise ValueError(f"kl_estimator is {estimator!r}: choose one of {', '.join(KL_ESTIMATORS)}")
    delta = (ref_logprobs.detach() - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if estimator == "k1":
        return -delta
    k2 = delta.square() / 2
    if estimator == "k2":
        return k2
    k3 = torch.expm1(delta) - delta
    k3 = k3 if clamp is None else k3.clamp(max=clamp)
    return k3 if estimator == "k3" else k3.detach() + (k2 - k2.detach())


def anchor_set(
    anchor_ids: Int[Tensor, "tokens anchors"],
    ref_logprobs: Float[Tensor, "tokens anchors"],
    token_ids: Int[Tensor, "tokens"],
    *,
    exclude_sampled: bool = True,
) -> Bool[Tensor, "tokens anchors"]:
    """True for the anchors of a position: the reference's top-K tokens without the one that was sampled.

        S = {k ∈ T_K : k ≠ y, π_ref(k) > 0}

    Source: Wang et al. 2026, Eq. 6. `exclude_sampled=False` is the naive set of its appendix C.1, which keeps y.

    Example:
        The sampled token 5 is no anchor, nor is the absent slot.

        >>> ids, ref = torch.tensor([[5, 7, -1]]), torch.tensor([[0.5, 0.25, 0.0]]).log()
        >>> anchor_set(ids, ref, torch.tensor([5]))
        tensor([[False,  True, False]])
    """
    members = (anchor_ids >= 0) & (ref_logprobs > -torch.inf)
    return members & (anchor_ids != token_ids.unsqueeze(1)) if exclude_sampled else members


def log_mass(
    logprobs: Float[Tensor, "tokens anchors"], members: Bool[Tensor, "tokens anchors"]
) -> Float[Tensor, "tokens"]:
    """Log of the probability that the members hold together.

        log Σ_{k∈S} π(k)

    Returns:
        Log-mass [nats]; about −10³⁰ where S is empty or holds nothing, with a gradient of exactly 0.

    Example:
        >>> log_mass(torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[True, True, False]])).exp()
        tensor([0.7500])
    """
    present = members & (logprobs > -torch.inf)
    return torch.where(present, logprobs, LOG_ZERO).logsumexp(1)


def anchor_log_ratio(
    logprobs: Float[Tensor, "tokens anchors"],
    ref_logprobs: Float[Tensor, "tokens anchors"],
    members: Bool[Tensor, "tokens anchors"],
) -> Float[Tensor, "tokens"]:
    """The policy's probability mass on the anchor set in units of the reference's, as a log.

        r_anchor = (1/Z_ref)·Σ_{k∈S} π(k),   Z_ref = Σ_{k∈S} π_ref(k)

    A difference of logs rather than a quotient with an additive epsilon, which would bias tokens of which the
    reference is sure: their Z_ref is tiny.

    Source: Wang et al. 2026, Eqs. 7 and 8.

    Departure: the paper leaves S = {} open (K = 1 and the sampled token is the reference's favourite). Here r_anchor
    is 0 there, with a gradient of exactly 0.

    Args:
        logprobs: log π at the top-K ids; carries the gradient.
        ref_logprobs: log π_ref at the same ids; constant.
        members: True for the members of S.

    Returns:
        log r_anchor [nats], not clamped; 0 where the policy equals the reference, about −10³⁰ where S is empty.

    Example:
        The policy gives the anchors half the mass that the reference does.

        >>> policy, reference = torch.tensor([[0.2, 0.1]]).log(), torch.tensor([[0.4, 0.2]]).log()
        >>> anchor_log_ratio(policy, reference, torch.tensor([[True, True]])).exp()
        tensor([0.5000])
    """
    log_z_ref = log_mass(ref_logprobs.detach(), members)
    # Without this an empty S would be log 0 − log 0 = 0, a ratio of 1.
    return log_mass(logprobs, members) - torch.where(members.any(1), log_z_ref, 0.0)


def sequence_totals(
    values: Float[Tensor, "tokens"], sequence_ids: Int[Tensor, "tokens"]
) -> tuple[Float[Tensor, "tokens"], Int[Tensor, "tokens"]]:
    """The sum of a value over the tokens of each completion, in float64, and their number, at every token.

    Example:
        >>> sequence_totals(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([4, 4, 7]))
        (tensor([4., 4., 5.], dtype=torch.float64), tensor([2, 2, 1]))
    """
    _, place, counts = sequence_ids.unique_consecutive(return_inverse=True, return_counts=True)
    totals = torch.zeros(len(counts), dtype=torch.float64, device=values.device).index_add(0, place, values.double())
    return totals[place], counts[place]


def sequence_means(values: Float[Tensor, "tokens"], sequence_ids: Int[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """The mean of a value over the tokens of each completion, at every token.

    Example:
        >>> sequence_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([4, 4, 7]))
        tensor([2., 2., 5.])
    """
    totals, counts = sequence_totals(values, sequence_ids)
    return (totals / counts).to(values.dtype)
