"""Shards: which part of a state a rank holds, and where it lies in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .errors import LayoutError
from .words import DType

_DTYPES = {
    "bfloat16": DType.BF16,
    "float16": DType.F16,
    "float32": DType.F32,
    "float8_e4m3fn": DType.F8E4M3,
    "uint8": DType.U8,
}

# What a dimension of a tensor may be called, and what it is.
_WORDS = {
    "layer": "layer",
    "item": "item",
    "block": "item",
    "slot": "item",
    "row": "row",
    "token": "row",
    "column": "row",
    "unit": "unit",
    "head": "unit",
    "group": "unit",
    "elem": "elem",
}


@dataclass(frozen=True)
class Shard:
    """A box of one state, layers x units in the model's own coordinates, and the strides, in
    bytes, by which it lies in this process's memory or on a GPU. Made by `Shard.of`."""

    state: str
    layers: tuple[int, int]  #: [first, behind the last)
    units: tuple[int, int]
    rows: int  #: of one item: tokens of a block, columns of a window, or 1
    items: int  #: blocks or slots that the tensor has
    elems: int  #: of one unit in one row
    dtype: DType
    address: int  #: of (first layer, item 0, row 0, first unit, element 0)
    layer_stride: int
    item_stride: int
    row_stride: int
    unit_stride: int
    elem_stride: int
    device: int | None = None  #: GPU as CUDA numbers it here; None: host memory
    tensor: Any = field(default=None, repr=False, compare=False)  #: kept alive

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to behind the last."""
        n = self.dtype.size
        for count, stride in (
            (self.layers[1] - self.layers[0], self.layer_stride),
            (self.items, self.item_stride),
            (self.rows, self.row_stride),
            (self.units[1] - self.units[0], self.unit_stride),
            (self.elems, self.elem_stride),
        ):
            n += (count - 1) * stride
        return n

    @staticmethod
    def of(tensor: Any, state: str, dims: str, *, layer: int = 0, unit: int = 0, dtype: DType | None = None) -> Shard:
        """States a numpy array or a torch tensor, or a view of one.

        dims names each dimension of the tensor, in its order, out of `layer`, `block` or `slot`,
        `token` or `column`, `unit` and `elem`. One that is left out is 1. A word may come twice
        in a row where the tensor is contiguous over both, as for a recurrent state whose unit
        is a matrix: "layer slot unit elem elem". Leave a dimension out by slicing first: K of
        `[2, L, B, T, H, d]` is `of(kv[0], "attn.k", "layer block token unit elem")`.

        layer and unit are which layer and unit of the whole model the tensor's first ones are:
        rank 1 of TP 2 of a model with 8 KV heads states its 4 with unit=4. dtype says what the
        elements are where the tensor's own type cannot, such as bf16 kept as numpy uint16.

        Raises LayoutError. The tensor lies in `shm` memory, or on a GPU as `cudaMalloc`, torch's caching
        allocator or its expandable segments make it; the shard keeps it.
        """
        words = dims.split()
        shape, strides, size = _geometry(tensor)
        if len(words) != len(shape):
            raise LayoutError(f"shard of {state}: {len(words)} names for the {len(shape)} dimensions of {tuple(shape)}")
        count = dict.fromkeys(("layer", "item", "row", "unit", "elem"), 1)
        stride = dict.fromkeys(count, size)
        before = ""
        for word, n, step in zip(words, shape, strides):
            kind = _WORDS.get(word)
            if kind is None:
                raise LayoutError(f"shard of {state}: dimension {word!r}: want {', '.join(_WORDS)}")
            if n < 1 or step < 0:
                raise LayoutError(f"shard of {state}: dimension {word} of {n} with stride {step}: want at least one, ahead")
            if kind in before.split():
                if before.split()[-1] != kind or (n > 1 and count[kind] > 1 and stride[kind] != n * step):
                    raise LayoutError(f"shard of {state}: {word} comes twice, and the tensor is not contiguous over both")
            count[kind] *= n
            if n > 1 or kind not in before.split():
                stride[kind] = step
            before += " " + kind
        return Shard(
            state, (layer, layer + count["layer"]), (unit, unit + count["unit"]), count["row"], count["item"], count["elem"],
            _dtype(tensor, dtype, size), _address(tensor), stride["layer"], stride["item"], stride["row"], stride["unit"],
            stride["elem"], _device(tensor), tensor)


def _geometry(tensor: Any) -> tuple[list[int], list[int], int]:
    """Shape, strides in bytes, and bytes of an element."""
    if hasattr(tensor, "data_ptr"):
        size = int(tensor.element_size())
        return [int(n) for n in tensor.shape], [int(s) * size for s in tensor.stride()], size
    if hasattr(tensor, "__array_interface__"):
        return [int(n) for n in tensor.shape], [int(s) for s in tensor.strides], int(tensor.itemsize)
    raise LayoutError(f"shard of a {type(tensor).__name__}: want a numpy array or a torch tensor")


def _address(tensor: Any) -> int:
    if hasattr(tensor, "data_ptr"):
        return int(tensor.data_ptr())
    return int(tensor.__array_interface__["data"][0])


def _device(tensor: Any) -> int | None:
    device = getattr(tensor, "device", None)
    if getattr(device, "type", "cpu") != "cuda":
        return None
    return int(getattr(device, "index", None) or 0)


def _dtype(tensor: Any, said: DType | None, size: int) -> DType:
    if said is None:
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in _DTYPES:
            raise LayoutError(f"elements of type {name}: say dtype=, one of {', '.join(d.name for d in DType)}")
        said = _DTYPES[name]
    if said.size != size:
        raise LayoutError(f"elements of {size} bytes are not {said.name}, which has {said.size}")
    return said
