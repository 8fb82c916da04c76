"""Integers and masks of a pass on the meta device, computed beside it (extra `[torch]`).

Tensors of the meta device have no content, yet a model asks some of them: which tokens are padding,
where an image's tokens lie, how many tokens an expert has. These follow from token ids, lengths and
shapes alone. So what follows from known values is computed on the host too, if it is small; `item`,
`tolist`, `nonzero` and indexing by a mask then find it. What depends on weights is unknown, and of
it choices alone are made up: the largest of some scores are others for each row, in turn, so that
experts get equal shares; an order is that in which things lie. A check of an unknown value is
answered with yes, as of valid data; where `truth` is false with no or zero, and then nothing is
picked by an unknown mask.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from trainwright.model import RunShape

_ATEN: Final = torch.ops.aten
_MOST_ELEMENTS: Final = 1 << 20  # of a tensor whose values are computed
_INDEXED: Final = {
    getattr(_ATEN, name)
    for name in ("index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put")
}
_LIKE: Final = ("_like", "new_zeros", "new_ones", "new_full", "new_empty")
_VALUES: Final = (torch.tensor, torch.as_tensor)


class KnownValues(TorchDispatchMode):
    """Runs kernels on the meta device, and on the host those whose operands are known."""

    def __init__(self, *, truth: bool = True) -> None:
        super().__init__()
        self._truth = truth
        self._values: Any = WeakTensorKeyDictionary()
        self._spoiled: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, kernel = kwargs or {}, getattr(func, "_overloadpacket", None)
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is not None and first.is_meta:
            if kernel is _ATEN._local_scalar_dense:
                return self._scalar(first)
            if kernel is _ATEN._to_copy and str(kwargs.get("device", "meta")) != "meta":
                return func(self._content(first), **kwargs)
            if kernel is _ATEN.nonzero:
                return self._nonzero(first)
            if kernel is _ATEN.masked_scatter_backward:  # gradients of what the mask picked
                return torch.empty(args[2], dtype=first.dtype, device="meta")
        if not getattr(func, "_schema", None):
            return func(*args, **kwargs)
        args, kwargs = self._on_one_device(args, kwargs)
        if kernel in _INDEXED:
            args = (args[0], [p for each in args[1] for p in self._positions(each)], *args[2:])
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The kernel on the meta device, and its values where all that it is given has some."""
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if given and not any(t.is_meta for t in given) and "device" not in kwargs:
            return func(*args, **kwargs)  # on the host alone
        shapes_alone = func._overloadpacket.__name__.endswith(_LIKE)
        random = torch.Tag.nondeterministic_seeded in func.tags
        known = not random and all(shapes_alone or self._value(t) is not None for t in given)
        if known and torch.Tag.dynamic_output_shape in func.tags:
            found = func(*tree_map(self._host, args), **tree_map(self._host, kwargs))
            return tree_map(self._noted, found)
        try:
            made = func(*args, **kwargs)
        except NotImplementedError:
            if not random or not given:
                raise
            made = torch.empty_like(given[0])  # drawn for each of its parameters
        results = [t for t in tree_leaves(made) if isinstance(t, torch.Tensor) and t.is_meta]
        small = all(t.numel() <= _MOST_ELEMENTS for t in (*results, *given))
        from_nothing = shapes_alone or not given
        if known and small and results and (not from_nothing or _worth_knowing(func, results)):
            same = _ATEN.reshape if func is _ATEN.view.default else func  # strides may differ
            found = same(*tree_map(self._host, args), **tree_map(self._host, kwargs))
            for told, value in zip(tree_leaves(made), tree_leaves(found), strict=True):
                if isinstance(told, torch.Tensor) and told.is_meta and told.shape == value.shape:
                    self._values[told] = value
        else:
            self._spoil(func, args, kwargs)
            self._choose(func._overloadpacket, given, made)
        return made

    def _value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if not tensor.is_meta:
            return tensor
        found: torch.Tensor | None = self._values.get(tensor)
        if found is not None and _storage(found) in self._spoiled:
            return None
        return found

    def _host(self, leaf: Any) -> Any:
        """An operand as the host has it; one of which the shape alone counts is empty."""
        if isinstance(leaf, torch.device) and leaf.type == "meta":
            return torch.device("cpu")
        if not isinstance(leaf, torch.Tensor):
            return leaf
        value = self._value(leaf)
        return torch.zeros(leaf.shape, dtype=leaf.dtype, device="cpu") if value is None else value

    def _noted(self, value: Any) -> Any:
        """A tensor of the meta device that stands for one of the host."""
        if not isinstance(value, torch.Tensor):
            return value
        told = torch.empty_like(value, device="meta")
        self._values[told] = value
        return told

    def _on_one_device(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Tensors of the host beside some of the meta device, on the latter."""
        leaves = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if len({t.is_meta for t in leaves}) < 2:
            return args, kwargs

        def moved(leaf: Any) -> Any:
            here = isinstance(leaf, torch.Tensor) and not leaf.is_meta and leaf.dim()
            return self._noted(leaf) if here else leaf

        return tree_map(moved, args), tree_map(moved, kwargs)

    # What is asked
    # -------------

    def _scalar(self, tensor: torch.Tensor) -> Any:
        value = self._value(tensor)
        if value is not None:
            return value.item()
        return self._truth if tensor.dtype is torch.bool else 0

    def _content(self, tensor: torch.Tensor) -> torch.Tensor:
        """Values on the host; zeros, or the answer to a check, where they are unknown."""
        value = self._value(tensor)
        if value is not None:
            return value
        filling = self._truth if tensor.dtype is torch.bool else 0
        return torch.full(tensor.shape, filling, dtype=tensor.dtype, device="cpu")

    def _nonzero(self, mask: torch.Tensor) -> torch.Tensor:
        value = self._value(mask)
        if value is None:
            if self._truth:
                return _ATEN.nonzero.default(mask)  # which says that it cannot
            return torch.empty((0, mask.dim()), dtype=torch.long, device="meta")
        found: torch.Tensor = self._noted(value.nonzero())
        return found

    def _positions(self, index: Any) -> list[Any]:
        """What an index picks: positions per dimension in place of a mask, whose values count."""
        if index is None or index.dtype is not torch.bool or not index.is_meta or not index.dim():
            return [index]
        return [*self._nonzero(index).unbind(1)]

    # What is unknown
    # ---------------

    def _spoil(self, func: Any, args: Any, kwargs: Any) -> None:
        """What an unknown value was written into is known no more, nor are its views."""
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                told = args[place] if place < len(args) else kwargs.get(argument.name)
                for leaf in tree_leaves(told):
                    if isinstance(leaf, torch.Tensor) and leaf.is_meta:
                        value = self._values.get(leaf)
                        if value is not None:
                            self._spoiled[_storage(value)] = value.untyped_storage()

    def _choose(self, kernel: Any, given: list[torch.Tensor], made: Any) -> None:
        """Choices among unknown scores: for each row those after the former row's."""
        if kernel not in _CHOICES or not given:
            return
        picked = made[1] if isinstance(made, (tuple, list)) else made
        if not given[0].dim() or not picked.is_meta or not 0 < picked.numel() <= _MOST_ELEMENTS:
            return
        number = given[0].shape[-1]
        if kernel in _ORDERS or (picked.dim() and picked.shape == given[0].shape):
            values = torch.arange(number, device="cpu").expand(picked.shape).clone()
        else:
            values = (torch.arange(picked.numel(), device="cpu") % number).view(picked.shape)
        self._values[picked] = values


_ORDERS: Final = {_ATEN.sort, _ATEN.argsort}
_CHOICES: Final = _ORDERS | {_ATEN.topk, _ATEN.argmax, _ATEN.argmin, _ATEN.multinomial}


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _worth_knowing(func: Any, made: list[torch.Tensor]) -> bool:
    """Of what is made from nothing: integers, masks, and few enough numbers, if it has some."""
    few = 0 if "empty" in func._overloadpacket.__name__ else _FEW_NUMBERS
    return all(not t.is_floating_point() or t.numel() <= few for t in made)


_FEW_NUMBERS: Final = 1 << 12


class ValuesFromPython(TorchFunctionMode):
    """Makes tensors from lists and numbers on the host first, so that their values are known."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _VALUES or isinstance(args[0] if args else None, torch.Tensor):
            return func(*args, **kwargs)
        device = torch.device(kwargs.pop("device", None) or "meta")
        made = func(*args, **kwargs, device="cpu")
        return made.to(device)


# What a pass is given: token ids, else sound or an image beside them
# -------------------------------------------------------------------

FEW: Final = 2  # of the shortest pass; the others are of up to four times as many


def inputs(module: Any, tokens: int, *, masked: bool, rows: int = 1) -> dict[str, Any]:
    """Token ids for every stack that takes some, `rows` sequences of them, and what they need."""
    taken = {*inspect.signature(module.forward).parameters}
    whole = {
        "attention_mask": (1, rows, tokens) if masked else None,
        "mm_token_type_ids": (0, rows, tokens),
        "bbox": (0, rows, tokens, 4),
        "lang_ids": (0, rows),
        "question_positions": (0, rows, 1),
    }
    patch, base = getattr(module.config, "patch_size", None), getattr(module, "base_model", None)
    if isinstance(patch, int) and base is not None and "kwargs" in taken:
        # How many bytes are read as one is told with the data (BLT), in words of the inner model.
        taken |= {"patch_lengths"} & {*inspect.signature(base.forward).parameters}
        whole["patch_lengths"] = (patch, rows, max(1, tokens // patch))
    plain = (_plain_token(module.config), rows, tokens)
    whole |= {"input_ids": plain, "decoder_input_ids": plain}
    given: dict[str, Any] = {
        name: torch.full(told[1:], told[0], dtype=torch.long, device="meta")
        for name, told in whole.items()
        if told is not None and name in taken
    }
    if "use_cache" in taken:
        given["use_cache"] = False
    return given


# What stands beside text: nothing, sound and an image in the one or the other form; ids of codes.
OF_CODES: Final = ("rows of codes", "codes last", "codes and text last")
BESIDE: Final = (None, "frames first", "bins first", *OF_CODES)


def codes_of(config: Any) -> int | None:
    """How many codes of sound stand at one place."""
    sizes = _sizes(config.to_dict())
    found = sizes.get("num_codebooks") or (
        sizes.get("num_channels") if "delay_pattern" in sizes else None
    )
    return found if isinstance(found, int) else None


def in_codes(given: Mapping[str, Any], *, form: str, codes: int) -> dict[str, Any]:
    """Ids of the last stack with so many codes at each place, in the rows or behind these."""
    name = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    ids = given[name]
    if form == "rows of codes":
        return {name: ids.repeat(codes, 1)}
    return {name: ids[..., None].repeat(1, 1, codes + (form == "codes and text last"))}


def _plain_token(config: Any) -> int:
    """The first token id to which no key of a configuration gives a meaning."""
    sizes = {v for v in _numbers(config.to_dict()) if isinstance(v, int)}
    return int(min({*range(1, len(sizes) + 2)} - sizes))


def _numbers(value: Any) -> Iterator[Any]:
    """The values in nested sections and lists."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _numbers(each)
    else:
        yield value


def beside_text(module: Any, run: RunShape, config: Any, *, form: str) -> dict[str, Any]:
    """Sound or an image for a module that does not run on text alone, of the sizes it states.

    Sound is as long as its encoder takes `run.sequence_length` steps to be, or as its table of
    positions; features lie in rows of bins or of frames. In the second form an image is one of
    several, and waves are told rather than features.
    """
    rows, tokens, bins_first = run.microbatch_size, run.sequence_length, form == "bins first"
    sizes = _sizes(config.to_dict())
    side, samples = sizes.get("image_size", 224), tokens
    side = side if isinstance(side, int) else max(side) if side else 224
    kernels, strides = sizes.get("conv_kernel"), sizes.get("conv_stride")
    if isinstance(kernels, Sequence) and isinstance(strides, Sequence):
        for kernel, stride in reversed([*zip(kernels, strides, strict=False)]):
            samples = (samples - 1) * stride + kernel
    else:
        samples = tokens * _SAMPLES
    bins = next((sizes[key] for key in _BINS if isinstance(sizes.get(key), int)), 80)
    first = next((m for m in module.modules() if isinstance(m, _TAKING_FEATURES)), None)
    if isinstance(first, torch.nn.Linear) and first.in_features in (n * bins for n in _FRAMES):
        bins = first.in_features  # of so many frames that are told as one
    steps = sizes.get("subsampling_factor") or 2 ** (sizes.get("num_conv_layers") or 1)
    frames = tokens * steps * (sizes.get("downsample_factor") or 1)
    sound = (bins, frames) if bins_first else (frames, bins)
    patch = sizes.get("patch_size", 16)
    image = (sizes.get("num_channels") or 3, side, side)
    images = sizes.get("num_frames") or 1
    shapes = {
        "pixel_values": (images, *image) if bins_first else image,
        "input_features": sound,
        "input_values": (samples,),
        "flattened_patches": (tokens, 2 + 3 * patch * patch if isinstance(patch, int) else 770),
        "visual_feats": (_REGIONS, sizes.get("visual_feat_dim") or 2048),
        "visual_pos": (_REGIONS, 4),
        "state": (sizes.get("max_state_dim") or 32,),
    }
    taken, dtype = inspect.signature(module.forward).parameters, module.dtype
    if {"input_features", "input_values"} <= taken.keys():
        del shapes["input_features" if bins_first else "input_values"]
    elif bins_first:  # waves with the channel of their first convolution
        shapes["input_values"] = (1, samples)
    given = {
        k: torch.zeros((rows, *v), dtype=dtype, device="meta")
        for k, v in shapes.items()
        if k in taken
    }
    if "qformer_input_ids" in taken:
        given["qformer_input_ids"] = torch.zeros((rows, tokens), dtype=torch.long, device="meta")
    if "image_attention_mask" in taken:  # each token sees all images
        given["image_attention_mask"] = torch.ones((rows, tokens, images), device="meta")
    if "bool_masked_pos" in taken and isinstance(patch, int):  # every other patch is hidden
        depth = images // (sizes.get("tubelet_size") or 1) if bins_first else 1
        places = torch.arange(depth * (side // patch) ** 2, device="meta") % 2 == 1
        given["bool_masked_pos"] = places.repeat(rows, 1)
    return given


_SAMPLES: Final = 384  # of a step, where no kernels are stated
_FRAMES: Final = range(1, 9)
_TAKING_FEATURES: Final = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d)
_REGIONS: Final = 36  # of an image, as detectors hand them over
_BINS: Final = (
    "feature_projection_input_dim",
    "input_feat_per_channel",
    "num_mel_bins",
    "input_dim",
    "feature_size",
)


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a configuration and of its sections, those of the outer ones first."""
    found: dict[str, Any] = {}
    for value in config.values():
        if isinstance(value, Mapping):
            found |= {k: v for k, v in _sizes(value).items() if k not in found}
    return found | {k: v for k, v in config.items() if not isinstance(v, Mapping) and v is not None}
