"""Whether the engine samples from the policy that is measured: asked once, before the first sample."""

from collections.abc import Sequence

import torch

from apo_lightning.evaluation.scoring import microbatches, pack
from apo_lightning.policy import Policy
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.weight_sync import check_logprob_gap, logprob_gap
from apo_lightning.types import GenerationRequest, Prompt

NUM_PROMPTS, NUM_TOKENS = 4, 16


@torch.no_grad()
def check_engine(
    engine: RolloutEngine, policy: Policy, prompts: Sequence[Prompt], *, max_new_tokens: int, version: int
) -> float:
    """Mean |engine − policy| log-prob over a few tokens sampled at temperature 1 [nats].

    Raises:
        StaleWeightsError: it is above the tolerance of the policy's dtype: all scores would be those of another model.
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
    sequences = pack(probes, [completion.token_ids for completion in completions])
    reported = torch.tensor([logprob for completion in completions for logprob in completion.logprobs])
    recomputed = torch.empty_like(reported)
    for microbatch in microbatches(sequences, [policy], tokens_per_microbatch=1):
        recomputed[microbatch.token_index.cpu()] = policy(microbatch).logprobs.float().cpu()
    gap = logprob_gap(reported, recomputed)
    check_logprob_gap(gap, policy.compute_dtype, version, policy.max_logprob_gap)
    return gap
