"""Values of a configuration: each of the kind that the annotation of its argument says."""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError

from apo_lightning.errors import ConfigError
from apo_lightning.step.settings import StepSettings

STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)

SEED = Annotated[int, Field(ge=0, lt=2**32)]
"""NumPy takes no other, and Lightning would seed with 0 in its place."""
ANNOTATIONS = {"seed": SEED, **get_type_hints(StepSettings)}
"""What the settings of a training run are that belong to no `_target_`, for `check_values`."""


def check_values(cfg: DictConfig, annotations: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a value that the annotation of its argument excludes, such as `optimizer.lr=1e-6x`.

    Every `_target_` of the configuration is imported; `instantiate` has the message on one that cannot be. The
    `annotations` are of the configuration's own keys.
    """
    _check_node("", OmegaConf.to_container(cfg, resolve=True), annotations)


def _check_node(key: str, node: Any, annotations: Mapping[str, Any]) -> None:
    if isinstance(node, dict | list):
        inner = annotations if not key else _annotations(node)
        for name, value in node.items() if isinstance(node, dict) else enumerate(node):
            _check_node(f"{key}.{name}" if key else str(name), value, inner)
        return
    annotation = annotations.get(key.rpartition(".")[2], Any)
    try:
        TypeAdapter(annotation, config=STRICT).validate_python(node)
    except ValidationError as error:
        said = "null" if node is None else repr(node)
        raise ConfigError(f"{key} is {said}: {error.errors()[0]['msg'].replace('Input', 'it')}") from error
    except PydanticUserError:  # of an annotation that pydantic cannot read, the class itself is the judge
        return


def _annotations(node: Any) -> Mapping[str, Any]:
    """Annotations of the arguments of the node's `_target_`; none if it has none, or they cannot be read."""
    try:
        parameters = inspect.signature(get_object(node["_target_"]), eval_str=True).parameters.values()
        known = [each for each in parameters if each.annotation is not each.empty]
        return {each.name: each.annotation | None if each.default is None else each.annotation for each in known}
    except Exception:
        return {}
