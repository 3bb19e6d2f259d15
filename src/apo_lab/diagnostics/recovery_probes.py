"""Prefixes of the untrained policy's completions, with the reference's likeliest next tokens and their success."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from apo_lab.diagnostics.settings import present
from apo_lightning.common.files import to_json, write_atomically
from apo_lightning.common.hashing import hash64
from apo_lightning.common.process_group import num_processes, process_rank
from apo_lightning.distributed.gathering import items_of_all_ranks
from apo_lightning.errors import ConfigError
from apo_lightning.module import RLVRModule
from apo_lightning.parts.probes import Probing
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.types import Completion, GenerationRequest, Probe, Prompt, Verdict

UNJUDGED = ("timeout", "error")
"""Verdicts of the verifier that say nothing about the completion."""
NAME = "recovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryProbe:
    """A prefix, and the reference's likeliest tokens after it."""

    prompt_id: str
    prompt: tuple[int, ...]
    """The prompt's tokens."""
    prefix: tuple[int, ...]
    """The completion's tokens up to the sampled position; may be empty."""
    weight: float
    """1/P(this position was sampled from its completion): the completion's length."""
    prefix_logprob: float
    """log π(prefix) of the untrained policy [nats]."""
    alternatives: tuple[int, ...]
    """The reference's 2K likeliest next tokens, in descending order."""
    ref_logprobs: tuple[float, ...]
    """log π_ref of the alternatives [nats]."""
    logprobs: tuple[float, ...]
    """log π of the alternatives by the untrained policy [nats]."""
    success: tuple[float | None, ...]
    """v̂ of the first K alternatives: the share of right ones among the judged continuations; None: none was judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """How many probes are made, and of how many samples."""

    anchor_size: int
    num_prompts: int
    completions_per_prompt: int
    continuations: int
    """Sampled after each alternative."""

    def origin(self, module: RLVRModule, prompts: Sequence[Prompt]) -> dict[str, Any]:
        """Everything but the policy's weights that decides which probes are made."""
        data = hashlib.sha256()
        for prompt in prompts:
            data.update(f"{prompt.id}\x1f{prompt.token_ids}\x1f{prompt.answer}\x1e".encode())
        return asdict(self) | {
            "seed": module.seed,
            "temperature": module.settings.temperature,
            "max_completion_tokens": module.settings.max_completion_tokens,
            "data": data.hexdigest(),
        }


def build_probes(plan: ProbePlan, module: RLVRModule, prompts: Sequence[Prompt]) -> list[RecoveryProbe]:
    """Sample completions and continuations of the untrained policy, and score them. Collective.

    - Prompts are sampled by hash; each has R completions with separate seeds.
    - In each completion one position is sampled uniformly.
    - *All* of the reference's 2K likeliest tokens there are alternatives; the first K are continued.

    Nothing is selected by what happens in training and nothing is left out: alternatives sampled later, or that
    survive longer, are those that did well, and would bias the measurement.
    """
    chosen = sorted(prompts, key=lambda prompt: hash64(f"{module.seed}\x1f{NAME}\x1f{prompt.id}"))[: plan.num_prompts]
    # This rank's share; sorting by place at the end makes the order independent of the number of ranks.
    places = range(process_rank(), len(chosen), num_processes())
    wanted = [(place, sample) for place in places for sample in range(plan.completions_per_prompt)]
    owners = [chosen[place] for place, _ in wanted]
    requests = [_request(module, prompt, (), NAME, sample) for prompt, (_, sample) in zip(owners, wanted, strict=True)]
    # A rank may have no prompt.
    completions = module.engine.generate(requests) if requests else []
    logprobs, ids, ref_logprobs, anchor_logprobs = _scores(plan, module, owners, completions)
    probes, start = [], 0
    for prompt, (_, sample), completion in zip(owners, wanted, completions, strict=True):
        length = len(completion.token_ids)
        position = sample_seed(module.seed, f"{NAME}-position", 0, prompt.id, sample) % length
        row = start + position
        probes.append(
            RecoveryProbe(
                prompt_id=prompt.id,
                prompt=prompt.token_ids,
                prefix=completion.token_ids[:position],
                weight=float(length),
                prefix_logprob=float(logprobs[start:row].double().sum()),
                alternatives=tuple(ids[row].tolist()),
                ref_logprobs=tuple(ref_logprobs[row].tolist()),
                logprobs=tuple(anchor_logprobs[row].tolist()),
                success=(),
            )
        )
        start += length
    success = _success(plan, module, owners, [sample for _, sample in wanted], probes)
    own = [
        (place, replace(probe, success=shares))
        for (place, _), probe, shares in zip(wanted, probes, success, strict=True)
    ]
    return [probe for _, probe in sorted(items_of_all_ranks(own), key=lambda item: item[0])]


def write_probes(path: Path, probes: Sequence[RecoveryProbe], origin: Mapping[str, Any]) -> None:
    """Write a first line with the origin and a hash of the rest, then one line per probe."""
    body = b"".join(to_json(asdict(probe)) + b"\n" for probe in probes)
    head = {"origin": dict(origin), "sha256": hashlib.sha256(body).hexdigest()}
    write_atomically(path, to_json(head) + b"\n" + body)


def read_probes(path: Path, origin: Mapping[str, Any]) -> list[RecoveryProbe]:
    """Read the probes of a file that was made from `origin`.

    Raises:
        ConfigError: it was made from another origin, or was changed since.
    """
    first, _, body = path.read_bytes().partition(b"\n")
    head = json.loads(first)
    for name, value in origin.items():
        if head["origin"].get(name) != value:
            raise ConfigError(
                f"{path}: the probes were made with {name}={head['origin'].get(name)}, and this run has {value}: give "
                "the run another folder, or resume it with its first settings"
            )
    if hashlib.sha256(body).hexdigest() != head["sha256"]:
        raise ConfigError(f"{path}: the probes are not those that were written: give the run another folder")
    return [_probe_of(json.loads(line)) for line in body.splitlines()]


def _probe_of(record: Mapping[str, Any]) -> RecoveryProbe:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}
    return RecoveryProbe(**fields)


def _scores(
    plan: ProbePlan, module: RLVRModule, owners: Sequence[Prompt], completions: Sequence[Completion]
) -> list[Tensor]:
    """Of all tokens log π [T]; the ids of the reference's 2K likeliest, their log π_ref and log π [T, 2K]."""
    probe = Probe(
        prompts=[prompt.token_ids for prompt in owners],
        completions=[completion.token_ids for completion in completions],
        anchors=2 * plan.anchor_size,
        before=True,
    )
    probing = Probing({NAME: probe}, module.device)
    probing.score_before(module)
    reference, policy = probing.references[NAME], probing.policies_before[NAME]
    parts = (policy.logprobs, reference.anchor_ids, reference.anchor_logprobs, policy.anchor_logprobs)
    return [present(part).cpu() for part in parts]


def _success(
    plan: ProbePlan,
    module: RLVRModule,
    owners: Sequence[Prompt],
    samples: Sequence[int],
    probes: Sequence[RecoveryProbe],
) -> list[tuple[float | None, ...]]:
    """v̂ of every probe's first K alternatives."""
    collector, size = module.collector, plan.continuations
    wanted = [
        (prompt, (*probe.prefix, token), f"{NAME}-continuation/{sample}/{token}", number)
        for prompt, sample, probe in zip(owners, samples, probes, strict=True)
        for token in probe.alternatives[: plan.anchor_size]
        for number in range(size)
    ]
    is_open = [
        given[-1] not in collector.stop_token_ids and len(given) < collector.max_completion_tokens
        for _, given, _, _ in wanted
    ]
    requests = [_request(module, *one) for one, more in zip(wanted, is_open, strict=True) if more]
    grown = iter(module.engine.generate(requests) if requests else ())
    token_ids = [
        [*given, *(next(grown).token_ids if more else ())]
        for (_, given, _, _), more in zip(wanted, is_open, strict=True)
    ]
    _, verdicts = collector.score([prompt for prompt, _, _, _ in wanted], token_ids)
    shares = [_share_right(verdicts[at : at + size]) for at in range(0, len(verdicts), size)]
    return [tuple(shares[at : at + plan.anchor_size]) for at in range(0, len(shares), plan.anchor_size)]


def _request(module: RLVRModule, prompt: Prompt, given: tuple[int, ...], stream: str, sample: int) -> GenerationRequest:
    return GenerationRequest(
        prompt_token_ids=(*prompt.token_ids, *given),
        seed=sample_seed(module.seed, stream, len(given), prompt.id, sample),
        max_new_tokens=module.collector.max_completion_tokens - len(given),
        temperature=module.settings.temperature,
        stop_token_ids=module.collector.stop_token_ids,
    )


def _share_right(verdicts: Sequence[Verdict]) -> float | None:
    judged = [verdict.status == "correct" for verdict in verdicts if verdict.status not in UNJUDGED]
    return sum(judged) / len(judged) if judged else None
