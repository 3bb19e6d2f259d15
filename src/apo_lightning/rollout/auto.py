"""`engine=auto`: the fastest engine that is installed."""

import logging

from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.rollout.vllm_engine import VLLMEngine, is_vllm_importable

LOGGER = logging.getLogger(__name__)


def auto_engine(vllm: VLLMEngine, transformers: TransformersEngine) -> RolloutEngine:
    """Return `vllm` if vLLM can be imported, else `transformers`; the log names the choice.

    A model that vLLM cannot run here is refused (`RolloutEngine.check_model`) and does not fall back to transformers:
    the engine decides a run's speed and the last bits of its results, so it must not change silently.
    """
    engine = vllm if is_vllm_importable() else transformers
    LOGGER.info("engine=auto: %s", engine.name)
    return engine
