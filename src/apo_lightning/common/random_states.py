"""The states of this process's random generators."""

import random
from collections.abc import Mapping
from typing import Any

import numpy
import torch


def random_states() -> dict[str, Any]:
    """The state of every random generator of this process, as plain data."""
    algorithm, keys, position, has_gauss, gauss = numpy.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (algorithm, torch.from_numpy(numpy.asarray(keys).copy()), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        **({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else {}),
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Restore every generator's state from `random_states`."""
    random.setstate(states["python"])
    algorithm, keys, position, has_gauss, gauss = states["numpy"]
    numpy.random.set_state((algorithm, keys.numpy(), position, has_gauss, gauss))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
