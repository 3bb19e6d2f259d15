"""A card whose numbers a CPU has: tensors that say they are on a GPU, and are as strict about it.

Behind `cardless.pretend()`. Every operation is done by the CPU's kernels, where all of its tensors are on one device;
else it fails, as on a GPU. What makes the host wait for the card is counted.
"""

import contextlib
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.cuda.amp.common
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CPU, CARD = torch.device("cpu"), torch.device("cuda", 0)
COPIES = {"_to_copy", "to", "copy_"}
"""Operations of tensors of two devices."""
TAKES_PLACES = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""What is on the card may be asked for at places that the CPU knows, but not the other way round."""
WAITS = {"_local_scalar_dense", "nonzero", "masked_select"}
waits: Counter[str] = Counter()
"""How often each line of ours made the host wait: for a number, or for a copy from memory that is not pinned."""


class OnCard(Tensor):
    """A tensor that is said to be on the card; `numbers` are on the CPU."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "OnCard":
        tensor = Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=CARD,
        )
        tensor.numbers = numbers
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, args, kwargs or {})

    def tolist(self) -> Any:
        _note_wait()
        return self.numbers.tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.numbers.untyped_storage()


class Emulation(TorchDispatchMode):
    """Tensors are made on the card where that is asked for."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, args, kwargs or {})


def _run(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = operation.overloadpacket.__name__
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    is_on_card = any(isinstance(tensor, OnCard) for tensor in tensors)
    together = [args[0], *args[2:3]] if name in TAKES_PLACES and isinstance(args[0], OnCard) else tensors
    if is_on_card and name not in COPIES and not all(t.dim() == 0 or isinstance(t, OnCard) for t in together):
        shapes = [(type(tensor).__name__, tuple(tensor.shape)) for tensor in tensors]
        raise RuntimeError(f"{operation} of tensors of two devices: {shapes}")
    if name == "_pin_memory":
        return args[0]
    if is_on_card and (name in WAITS or _takes_a_mask(name, args)):
        _note_wait()
    asked = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.device)]
    if asked:
        goes_to_card = asked[0].type == "cuda"
        is_copy = name in COPIES and goes_to_card != is_on_card
        if is_copy and not (goes_to_card and kwargs.get("non_blocking")):
            _note_wait()
        is_on_card = goes_to_card
    given, options = tree_map(_numbers, args), tree_map(_numbers, kwargs)
    found = _product_in_another_dtype(name, given, options) if _names_a_dtype(name, given, options) else None
    if found is None:
        found = operation(*given, **options)
    same = {id(_numbers(tensor)): tensor for tensor in tensors}

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        there = same.get(id(value))
        if there is not None and isinstance(there, OnCard) == is_on_card:
            return there
        value = value if there is None else value.clone()  # a CPU would not have copied it to itself
        return OnCard(value) if is_on_card else value

    return tree_map(placed, found)


def _numbers(value: Any) -> Any:
    if isinstance(value, torch.device):
        return CPU
    return value.numbers if isinstance(value, OnCard) else value


def _takes_a_mask(name: str, args: Any) -> bool:
    return name == "index" and any(isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1])


def _names_a_dtype(name: str, args: Any, options: dict[str, Any]) -> bool:
    return name in ("mm", "addmm") and any(isinstance(v, torch.dtype) for v in (*args, *options.values()))


def _product_in_another_dtype(name: str, args: Any, options: dict[str, Any]) -> Tensor:
    """Sums in the dtype that is asked for, which a CPU's kernels do not offer."""
    dtype = next(v for v in (*args, *options.values()) if isinstance(v, torch.dtype))
    tensors = [value.to(dtype) for value in args if isinstance(value, Tensor)]
    product = {"mm": torch.mm, "addmm": torch.addmm}[name](*tensors)
    return product if options.get("out") is None else options["out"].copy_(product)


def _note_wait() -> None:
    ours = [frame for frame in traceback.extract_stack() if "/apo_lightning/" in frame.filename]
    place = ours[-1] if ours else None
    waits[f"{place.filename.rpartition('/apo_lightning/')[2]}:{place.lineno}" if place else "elsewhere"] += 1


@contextlib.contextmanager
def emulation() -> Iterator[None]:
    """A card to run on, without compilers; attention by definition, since flex attention's kernels are compiled."""
    from apo_lightning.model import attention

    lift = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device=…) would take memory of the card itself
    try:
        with (
            mock.patch.object(torch.cuda, "_lazy_init"),
            mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", return_value=False),
            mock.patch.object(torch, "inference_mode", torch.no_grad),  # torch 2.11 knows no such tensors of a subclass
            mock.patch.object(torch, "compile", lambda function, **options: function),
            mock.patch.object(attention, "compiled_flex", return_value=_attend_by_definition),
            mock.patch.object(attention, "compiled_block_mask", return_value=attention.create_block_mask),
            Emulation(),
        ):
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(lift)


def _attend_by_definition(
    query: Tensor, key: Tensor, value: Tensor, *, block_mask: Any, scale: float, **options: Any
) -> Tensor:
    places = torch.arange(query.shape[2], device=query.device)
    mask = block_mask.mask_mod(None, None, places[:, None], places[None, :])
    key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value))
    scores = (scale * query.float() @ key.float().mT).where(mask, -torch.inf)
    return (scores.softmax(-1) @ value.float()).to(query.dtype)


def move_to_card(module: nn.Module) -> None:
    """All parameters and buffers; what is tied stays so."""
    moved: dict[int, Tensor] = {}
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is None or isinstance(tensor, OnCard):
                    continue
                if id(tensor) not in moved:
                    there = OnCard(tensor.detach().clone())
                    moved[id(tensor)] = (
                        nn.Parameter(there, tensor.requires_grad) if tensors is part._parameters else there
                    )
                tensors[name] = moved[id(tensor)]


@contextlib.contextmanager
def training_on_card() -> Iterator[None]:
    """Lightning's one CPU process trains on the emulated card: policy, reference and engine lie there."""
    from lightning.pytorch.strategies import SingleDeviceStrategy

    from apo_lightning.model.reference import Reference
    from apo_lightning.module import RLVRModule

    def move_reference(self: Reference, device: torch.device) -> None:
        move_to_card(self.policy)
        self.policy.round_matrices()

    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # `.data` cannot become another kind of tensor
    try:
        with (
            emulation(),
            mock.patch.object(SingleDeviceStrategy, "model_to_device", lambda self: move_to_card(self.model)),
            mock.patch.object(Reference, "to", move_reference),
            mock.patch.object(RLVRModule, "device", CARD),
        ):
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
