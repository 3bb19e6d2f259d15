"""Every loss for one token, from the equations: plain Python in float64, sharing no code with the package.

The gradient with respect to the logits is analytic; `tests/losses/test_battery.py` checks it by finite differences.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LIMIT = 20.0
INF = math.inf


@dataclass(frozen=True, kw_only=True)
class Token:
    logits: Sequence[float]
    y: int
    old_logprob: float
    advantage: float
    is_correct: bool
    ref_logits: Sequence[float] | None  # None: the reference was not run
    importance_weight: float = 1.0
    mark: float = 0.0
    sequence_value: float = 0.0
    proxy_logprob: float = -INF


def log_softmax(logits: Sequence[float]) -> list[float]:
    largest = max(logits)
    log_sum = math.log(math.fsum(math.exp(z - largest) for z in logits))
    return [z - largest - log_sum for z in logits]


def entropy_of(p: Sequence[float], logp: Sequence[float]) -> float:
    return -math.fsum(p[v] * logp[v] for v in range(len(p)) if p[v] > 0)


def top_k(logits: Sequence[float], k: int) -> list[int]:
    return [v for v in sorted(range(len(logits)), key=lambda v: (-logits[v], v))[:k] if logits[v] > -INF]


def loss_and_gradient(settings: Mapping[str, Any], token: Token) -> tuple[float, list[float]]:
    logp = log_softmax(token.logits)
    p = [math.exp(x) for x in logp]
    vocab = range(len(p))
    a = token.advantage
    kind = settings["loss"]
    if kind == "ClipCov" and token.mark:
        a = 0.0
    if kind == "DroppedErrors" and a < 0 and draw_of(token) < settings["drop_fraction"]:
        a = 0.0
    if kind == "EntropyAdvantage":
        a += min(settings["alpha"] * entropy_of(p, logp), abs(a) / settings["kappa"])

    # r and dr/dz
    raw = logp[token.y] - token.old_logprob
    r = math.exp(min(max(raw, -LIMIT), LIMIT))
    dlogp_y = [(v == token.y) - p[v] for v in vocab]
    rho, drho = r, [r * d if abs(raw) <= LIMIT else 0.0 for d in dlogp_y]
    if kind == "GSPO":
        rho = math.exp(token.sequence_value)
        drho = [rho * d for d in dlogp_y]

    # rho = push * r - pull * r_anchor on triggered errors, r + pull * r_anchor on other triggered tokens
    penalty, dpenalty = 0.0, [0.0] * len(p)
    if "push_coef" in settings:
        topology = settings.get("topology", "ratio")
        coef = 0.0 if topology == "none" else settings["pull_coef"]
        everywhere = a != 0 or (topology != "ratio" and coef != 0)
        wrong = a < 0 and not token.is_correct
        triggered = {"negative_advantage": a < 0, "incorrect": wrong, "always": everywhere}[settings["trigger"]]
        if triggered:
            force = settings.get("force", "both")
            pushed, pulled = settings["push_coef"] if a < 0 else 1.0, 0.0
            r_anchor, danchor = anchor(settings, token, logp, p)
            if topology == "ratio":
                pulled = -coef if a < 0 else coef
            elif coef and token.sequence_value < (settings.get("first_tokens") or math.inf):
                scale = coef * (abs(a) if settings["scale"] == "abs_advantage" else 1.0)
                scale *= token.importance_weight if topology == "support_ratio_aux" else 1.0
                value, slope = grid_divergence(settings, token, logp, p, dlogp_y)
                penalty, dpenalty = scale * value, [scale * d for d in slope]
            rho = pushed * r + pulled * r_anchor
            push_slope, pull_slope = pushed * (force != "pull_only"), pulled * (force != "push_only")
            drho = [push_slope * x + pull_slope * y for x, y in zip(drho, danchor, strict=True)]

    low = 1 - settings["clip_eps"]
    high = 1 + (settings["clip_eps"] if settings["clip_eps_high"] is None else settings["clip_eps_high"])
    objective, flat = rho * a, False
    if a > 0 and rho > high:
        objective, flat = high * a, True
    if a < 0 and rho < low:
        objective, flat = low * a, True
    dual = settings["dual_clip"]
    if dual is not None and a < 0 and objective < dual * a:
        objective, flat = dual * a, True
    slopes = [0.0 if flat else a * d for d in drho]
    if kind == "LpReg" and a < 0 and logp[token.y] < token.proxy_logprob:
        objective, slopes = r * a, [a * d for d in drho]
        value, dkl = sampled_kl("k3", token.proxy_logprob - logp[token.y], 10.0, dlogp_y)
        penalty, dpenalty = settings["kl_coef"] * value, [settings["kl_coef"] * d for d in dkl]
    if kind == "CISPO":
        capped = min(r, settings["cap"])
        objective, slopes = capped * a * (logp[token.y] if a else 0.0), [capped * a * d for d in dlogp_y]
    if kind == "GMPO":
        d, eps = min(max(raw, -LIMIT), LIMIT), settings["clip_eps"]
        is_clipped = d > eps if a > 0 else d < -eps
        mean = math.exp(token.sequence_value)
        objective, slopes = a * mean, [0.0 if is_clipped else a * mean * d for d in dlogp_y]
    weight = token.importance_weight
    loss = -weight * objective + penalty
    gradient = [-weight * d + e for d, e in zip(slopes, dpenalty, strict=True)]

    if settings["entropy_coef"]:
        entropy = entropy_of(p, logp)
        loss -= settings["entropy_coef"] * entropy
        for v in vocab:
            if p[v] > 0:
                gradient[v] += settings["entropy_coef"] * p[v] * (logp[v] + entropy)

    if kind == "KLCov" and token.mark:
        loss += settings["kl_coef"] * abs(raw)
        sign = (raw > 0) - (raw < 0)
        gradient = [g + settings["kl_coef"] * sign * d for g, d in zip(gradient, dlogp_y, strict=True)]
    if kind == "CorrectOnlyKL":
        is_penalised = token.is_correct
    else:
        is_penalised = "error_only" in settings and (a < 0 or not settings["error_only"])
    if is_penalised:
        value, dkl = divergence(settings, token, logp, p, dlogp_y)
        loss += settings["kl_coef"] * value
        gradient = [g + settings["kl_coef"] * d for g, d in zip(gradient, dkl, strict=True)]
    return loss, gradient


def top_set(settings, token):
    """T: the reference's top K, the prefix of it that holds p, or K tokens of a pool."""
    if token.ref_logits is None:
        return []
    source, k = settings.get("anchor_source", "reference"), settings["anchor_size"]
    if source == "random":
        return drawn(top_k(token.ref_logits, settings["pool_size"]), token.y, k)
    members = top_k(token.ref_logits, k)
    if source == "reference_top_p":
        ref = [math.exp(x) for x in log_softmax(token.ref_logits)]
        held = [math.fsum(ref[m] for m in members[:i]) for i in range(len(members))]
        members = [m for m, before in zip(members, held, strict=True) if before < settings["top_p"]]
    return members


def anchors_of(settings, token):
    """S."""
    return [k for k in top_set(settings, token) if k != token.y or not settings["exclude_sampled"]]


def anchor(settings, token, logp, p):
    """r_anchor and its gradient, or the one that a variant puts in its place."""
    members, vocab = anchors_of(settings, token), range(len(p))
    if not members:
        return 0.0, [0.0] * len(p)
    ref, weights = log_softmax(token.ref_logits), settings.get("weights", "mass")
    if weights == "uniform":
        ratios = [math.exp(min(logp[k] - ref[k], LIMIT)) for k in members]
        moving = {k: x for k, x in zip(members, ratios, strict=True) if logp[k] - ref[k] <= LIMIT}
        total = math.fsum(moving.values())
        return math.fsum(ratios) / len(members), [(moving.get(v, 0.0) - p[v] * total) / len(members) for v in vocab]
    if weights == "geometric":
        mean = math.fsum(logp[k] - ref[k] for k in members) / len(members)
        value, moves = math.exp(min(mean, LIMIT)), mean <= LIMIT
        return value, [moves * value * ((v in members) / len(members) - p[v]) for v in vocab]
    mass, z_ref = math.fsum(p[k] for k in members), math.fsum(math.exp(ref[k]) for k in members)
    if mass > math.exp(LIMIT) * z_ref:
        return math.exp(LIMIT), [0.0] * len(p)
    gradient = {
        "mass": [p[v] * ((v in members) - mass) / z_ref for v in vocab],
        "log_mass": [p[v] * (v in members) / mass - p[v] if mass > 0 else 0.0 for v in vocab],
        "cross_entropy": [math.exp(ref[v]) * (v in members) / z_ref - p[v] for v in vocab],
    }[weights]
    return mass / z_ref, gradient


def drawn(pool, y, count):
    """The members of the pool, y left out, of the smallest hash."""
    ranks = sum(rank * v for rank, v in enumerate(pool, start=1))
    keys = {v: scrambled(scrambled(scrambled(ranks) ^ y) ^ v) for v in pool if v != y}
    return sorted(keys, key=keys.__getitem__)[:count]


def draw_of(token):
    """u in [0, 1), from the float32 of log π_old as an integer, and from the sampled token."""
    (bits,) = struct.unpack("<I", struct.pack("<f", token.old_logprob))
    return scrambled(scrambled(bits) ^ token.y) / 2**31


def scrambled(x):
    x %= 2**31
    for _ in range(2):
        x = (x ^ (x >> 16)) * 73244475 % 2**31
    return x ^ (x >> 16)


def grid_divergence(settings, token, logp, p, dlogp_y):
    """D of a topology, and its gradient."""
    topology = settings["topology"]
    if topology == "kl":
        return divergence({"kl_estimator": "full"}, token, logp, p, dlogp_y)
    if topology == "support_ratio_aux":
        r_anchor, danchor = anchor(settings, token, logp, p)
        return -r_anchor, [-d for d in danchor]
    if topology == "support_mass":
        members = anchors_of(settings, token)
        mass = math.fsum(p[k] for k in members)
        return 1 - mass, [p[v] * (mass - (v in members)) for v in range(len(p))]
    return top_divergence(settings, token, logp, p)


def top_divergence(settings, token, logp, p):
    """KL over T and one bucket, in one direction or the other, and its gradient."""
    members, vocab = top_set(settings, token), range(len(p))
    if not members:
        return 0.0, [0.0] * len(p)
    ref, has_bucket = log_softmax(token.ref_logits), settings["tail"] == "bucket"
    inside, ref_inside = math.fsum(p[k] for k in members), math.fsum(math.exp(ref[k]) for k in members)
    tail, ref_tail = max(1 - inside, 1e-6), max(1 - ref_inside, 1e-6)
    dtail = [-p[v] * ((v in members) - inside) * (has_bucket and 1 - inside > 1e-6) for v in vocab]
    if settings["topology"] == "topk_forward_kl":
        value = math.fsum(math.exp(ref[k]) * (ref[k] - logp[k]) for k in members)
        value += has_bucket * ref_tail * math.log(ref_tail / tail)
        slopes = [ref_inside * p[v] - (v in members) * math.exp(ref[v]) - ref_tail / tail * dtail[v] for v in vocab]
        return value, slopes
    value = math.fsum(p[k] * (logp[k] - ref[k]) for k in members) + has_bucket * tail * math.log(tail / ref_tail)
    # d/dz of Σ_T π·s, with s = log(π/π_ref) + 1 held, and of the bucket's likewise
    score = {k: logp[k] - ref[k] + 1 for k in members}
    mean = math.fsum(p[k] * score[k] for k in members)
    return value, [p[v] * (score.get(v, 0.0) - mean) + (math.log(tail / ref_tail) + 1) * dtail[v] for v in vocab]


def divergence(settings, token, logp, p, dlogp_y):
    """The KL term and its gradient."""
    ref = log_softmax(token.ref_logits)
    estimator = settings["kl_estimator"]
    if estimator == "full":
        live = [v for v in range(len(p)) if p[v] > 0]
        kl = math.fsum(p[v] * (logp[v] - ref[v]) for v in live)
        return kl, [p[v] * (logp[v] - ref[v] - kl) if v in live else 0.0 for v in range(len(p))]
    raw = ref[token.y] - logp[token.y]
    if "guide_ratio" in settings:
        q = 1 + settings["guide_ratio"] * max(0.0, entropy_of(p, logp) - settings["guide_threshold"])
        raw += math.log(min(q, settings["highest_guide"]))
    return sampled_kl(estimator, raw, INF if settings["kl_clamp"] is None else settings["kl_clamp"], dlogp_y)


def sampled_kl(estimator, raw, cap, dlogp_y):
    """An estimate from the sampled token, raw = log π_ref − log π, and its gradient."""
    delta = min(max(raw, -LIMIT), LIMIT)
    k3 = math.exp(delta) - delta - 1
    value = {"k1": -delta, "k2": delta**2 / 2, "k3": min(k3, cap), "k3_plus": min(k3, cap)}[estimator]
    slope = {
        "k1": 1.0,
        "k2": -delta,
        "k3": 1 - math.exp(delta) if k3 <= cap else 0.0,
        "k3_plus": -delta,
    }[estimator]
    slope = slope if abs(raw) <= LIMIT else 0.0
    return value, [slope * d for d in dlogp_y]
