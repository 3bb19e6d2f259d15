"""The best engine that is installed."""

import logging

from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.rollout.vllm_engine import VLLMEngine, is_vllm_importable

LOGGER = logging.getLogger(__name__)


def auto_engine(vllm: VLLMEngine, transformers: TransformersEngine) -> RolloutEngine:
    """vLLM where it is installed, else transformers; the log says which.

    A model that vLLM cannot run here is refused (`RolloutEngine.check_model`), and not sampled by the other: a run's
    speed and its last bits would depend on a choice that nobody made.

    Args:
        vllm: Taken when vLLM can be imported (nothing is imported here).
        transformers: Taken otherwise.
    """
    if is_vllm_importable():
        LOGGER.info("engine=auto: vllm")
        return vllm
    LOGGER.info("engine=auto: transformers, since vLLM is not installed")
    return transformers
