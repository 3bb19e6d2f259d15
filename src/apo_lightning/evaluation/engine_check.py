"""A check, before the first sample, that the engine samples from the measured policy."""

from collections.abc import Sequence

import torch

from apo_lightning.evaluation.scoring import microbatches, pack
from apo_lightning.model.policy import Policy
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.weight_sync import check_logprob_gap, check_policy_version, gap_tolerance, logprob_gap
from apo_lightning.types import GenerationRequest, Prompt
from apo_lightning.update.engine_check import rounding_noise

NUM_PROMPTS, NUM_TOKENS = 4, 16


@torch.no_grad()
def check_engine(
    engine: RolloutEngine, policy: Policy, prompts: Sequence[Prompt], *, max_new_tokens: int, version: int
) -> float:
    """Mean |engine − policy| log-prob over a few tokens sampled at temperature 1 [nats].

    Raises:
        StaleWeightsError: it exceeds rounding errors, so all scores would be those of another model.
    """
    probes = list(prompts[:NUM_PROMPTS])
    completions = engine.generate(
        [
            GenerationRequest(
                prompt_token_ids=prompt.token_ids,
                seed=sample_seed(0, "engine check", 0, prompt.id, 0),
                max_new_tokens=min(NUM_TOKENS, max_new_tokens),
            )
            for prompt in probes
        ]
    )
    check_policy_version(completions, version)
    sequences = pack(probes, [completion.token_ids for completion in completions])
    reported = torch.tensor([logprob for completion in completions for logprob in completion.logprobs])
    recomputed, noise = torch.empty_like(reported), torch.empty_like(reported, dtype=torch.float64)
    for microbatch in microbatches(sequences, [policy], tokens_per_microbatch=1):
        logprobs, index = policy(microbatch).logprobs, microbatch.token_index.cpu()
        recomputed[index] = logprobs.float().cpu()
        noise[index] = rounding_noise(policy, microbatch, logprobs).cpu()
    gap = logprob_gap(reported, recomputed)
    check_logprob_gap(gap, gap_tolerance(float(noise.mean()), len(noise)), version)
    return gap
