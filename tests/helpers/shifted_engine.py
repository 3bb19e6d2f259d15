"""An engine that differs from the trainer by more than float32 does, and by less than the engine check allows."""

import math
from dataclasses import replace

from apo_lightning.rollout.transformers_engine import TransformersEngine

UNIT = 3e-4
"""A difference is −3 to 3 of these [nats]; the check of the engine allows 1e-3 on average."""


class ShiftedEngine(TransformersEngine):
    """`transformers`, whose reported log-probs are off by a whole number of units that token and position decide.

    So the log-ratio of a token or a completion is near such a number, a completion's mean near one over its length, and
    a bound between them divides the same tokens on every processor.
    """

    def _sample(self, requests, finished):
        def shifted(request, completion):
            shifts = (UNIT * round(3 * math.cos(3 * t + token)) for t, token in enumerate(completion.token_ids))
            logprobs = tuple(value + shift for value, shift in zip(completion.logprobs, shifts, strict=True))
            finished(request, replace(completion, logprobs=logprobs))

        super()._sample(requests, shifted)
