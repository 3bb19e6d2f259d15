"""An engine that differs from the trainer by more than float32 does, and by less than the engine check allows."""

import math
from dataclasses import replace

from apo_lightning.rollout.transformers_engine import TransformersEngine

SHIFT = 9e-4
"""The largest difference [nats]; the check of the engine allows 1e-3 on average."""


class ShiftedEngine(TransformersEngine):
    """`transformers`, whose reported log-probs are off by an amount that token and position decide."""

    def _sample(self, requests, finished):
        def shifted(request, completion):
            shifts = (SHIFT * math.cos(3 * t + token) for t, token in enumerate(completion.token_ids))
            logprobs = tuple(value + shift for value, shift in zip(completion.logprobs, shifts, strict=True))
            finished(request, replace(completion, logprobs=logprobs))

        super()._sample(requests, shifted)
