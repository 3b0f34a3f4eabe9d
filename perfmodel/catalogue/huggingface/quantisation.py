"""The precision that a ``config.json`` publishes, by part: mixers, feed-forwards, experts, head.

Every method says a format, and which modules are left as they were. Modules are known by words of
their names; layers by their number. A part of which some layers are left out has the mean of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import PerfModelError
from ..layers import Dense, Experts, Layer
from ..precision import (
    BF16,
    BF16_BYTES,
    FP8,
    FP8_BLOCK,
    MXFP4,
    NVFP4,
    PRECISIONS,
    Format,
    Precision,
    integer,
)

MXFP8 = Format(1 + 1 / 32, "fp8")
"""Blocks of 32 eight-bit values share one 8-bit scale (OCP Microscaling 1.0, section 5)."""

_ALGORITHMS = {
    "FP8": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "FP8_PB_WO": FP8_BLOCK,
    "FP8_PB_REAL": FP8_BLOCK,
    "MXFP8": MXFP8,
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": Format(NVFP4.size),
    "W4A8_NVFP4_FP8": Format(NVFP4.size, "fp8"),
    "MXFP4": MXFP4,
    "W4A8_MXFP4_FP8": Format(MXFP4.size, "fp8"),
    "W4A16_AWQ": integer(4, 128),
    "W8A16": integer(8, None),
}
"""``quant_algo`` of NVIDIA modelopt -> format."""

_REMEDY = "state the precision instead (" + ", ".join(PRECISIONS) + ")"

_LAYER = re.compile(r"(?:layers|h|blocks|layer)\.(\d+)(?!\d)")
_TOWERS = re.compile(
    r"vision|visual|image|audio|video|mtp|projector|eagle|patch|merger|multi_modal|aligner|connector|"
    r"speech|talker|resampler|vpm|apm|tts"
)
_SMALL = re.compile(
    r"norm|bias|embed|wte|rotary|correction|conv1d|indexer|compressor|weights_proj|pos_emb|\.hc_|"
    r"sinks?$|a_log|dt_proj|x_proj"
)
_ROUTER = re.compile(r"router|(?:^|\.)gate\*?$|expert_gate|gate\.(?:weight|wg)|\.wg$|gate_weight")
_WHOLE = re.compile(r"(?:layers|h|blocks)\.(?:\d+|\*)\.?\*?$")

_IN, _OUT = "in", "out"
PARTS = ("attention", "linear", "shared", "expert", "head")


@dataclass
class _Weights:
    """Formats of the parts of a model, layer by layer, as a method and its exceptions say it."""

    base: dict[str, Format]
    present: dict[str, set[int]]
    out_share: float
    name: str
    beside: bool = False
    """``mlp`` is a dense feed-forward that stands beside the experts (Gemma 4)."""
    stated: dict[str, dict[tuple[int, str], Format]] = field(default_factory=dict)

    def state(self, module: str, form: Format) -> None:
        """Note that modules of a name (or pattern) have a format of their own."""
        for part, layers, sides in self._modules(module):
            for layer in layers:
                for side in sides:
                    self.stated.setdefault(part, {})[layer, side] = form

    def _modules(self, module: str) -> Iterable[tuple[str, Iterable[int], tuple[str, ...]]]:
        plain = module.removeprefix("re:").replace("\\.", ".").replace("\\", "").strip("^$")
        plain = plain.replace(".*", "*").lower()
        if re.search(r"layers\*?\.?[\[(]", plain):
            raise self.unknown(module)
        found = _LAYER.search(plain)
        only = {int(found.group(1))} if found and len(found.group(1)) < _DIGITS else None
        whole = only is not None and _WHOLE.search(plain)
        beyond = only is not None and not any(only & layers for layers in self.present.values())
        if beyond or _TOWERS.search(plain):
            return  # a layer behind the last proposes tokens
        if not whole and (_SMALL.search(plain) or _ROUTER.search(plain)):
            return
        if "lm_head" in plain or plain.strip("*.") in ("head", "output", "output_layer", "lm"):
            yield "head", (0,), (_IN, _OUT)
            return
        if whole:
            parts: tuple[str, ...] = ("attention", "linear", "shared", "expert")
        elif "shared" in plain:
            parts = ("shared",)
        elif "expert" in plain:
            parts = ("expert",)
        elif re.search(r"attn|attention|mixer|mamba|[qkv]_proj|qkv|o_proj|kv_[ab]", plain):
            parts = ("attention",)
        elif re.search(r"(mlp|feed_forward|ffn|moe|block_sparse_moe)\*?$", plain):
            parts = ("shared",) if self.beside else ("linear", "shared", "expert")
        elif re.search(r"mlp|feed_forward|ffn|(gate|up|down|gate_up)_proj|fc[12]", plain):
            parts = ("linear",)
        else:
            raise self.unknown(module)
        last = plain.rstrip("*").rpartition(".")[2]
        sides: tuple[str, ...] = (_IN, _OUT)
        if parts == ("attention",) and (last.endswith("proj") or "_proj_" in last):
            sides = (_OUT,) if last in ("o_proj", "out_proj") else (_IN,)
        for part in parts:
            layers = self.present[part]
            yield part, layers if only is None else layers & only, sides

    def unknown(self, module: str) -> PerfModelError:
        """Return the error about modules that no part is known by."""
        return PerfModelError(
            f"config.json of {self.name}: the quantisation names the modules {module!r:.80}, which "
            f"are not understood; {_REMEDY}"
        )

    def format(self, part: str) -> Format:
        """Return the mean format of a part: what most of its weights are multiplied in."""
        stated, layers = self.stated.get(part, {}), self.present[part]
        base = self.base[part]
        if not stated or not layers:
            return base
        shares = {_IN: 1 - self.out_share, _OUT: self.out_share}
        if part != "attention":
            shares = {_IN: 0.5, _OUT: 0.5}
        forms = {stated.get((layer, side), base) for layer in layers for side in shares}
        if len(forms) == 1:
            return forms.pop()
        size, computed = 0.0, dict[str, float]()
        for layer in layers:
            for side, share in shares.items():
                form = stated.get((layer, side), base)
                size += share * form.size / len(layers)
                computed[form.compute] = computed.get(form.compute, 0.0) + share
        compute = max(computed, key=lambda kind: computed[kind])
        return Format(size, compute, whole=any(form.whole for form in forms))


_DIGITS = 6

_NAMED = re.compile(
    r"(?:^|[-_./])(nvfp4|mxfp4|fp8|fp4|awq|gptq|int4|int8|w4a16|w8a8|w8a16|bnb|[48]bit)(?:[-_.]|$)",
    re.IGNORECASE,
)
"""Formats in names of quantised checkpoints."""


def published_precision(
    config: Mapping[str, Any], stack: tuple[Layer, ...], hidden: int, name: str
) -> Precision:
    """Return the precision of the published weights: BF16 unless a quantisation is stated.

    Args:
        config: Fields of the language model, with ``quantization_config`` or, from modelopt's own
            file, ``quantization``.
        stack: The layers.
        hidden: Width of the hidden state.
        name: What to call the model in errors.

    Raises:
        PerfModelError: names the method or the modules that are not understood.
    """
    stated = config.get("quantization_config") or config.get("quantization")
    stated = stated or config.get("compression_config")
    if not stated:
        if _NAMED.search(name):
            raise PerfModelError(
                f"config.json of {name} has no quantization_config, but the name speaks of one: "
                f"add the field 'quantization' of hf_quant_config.json, or {_REMEDY}"
            )
        return PRECISIONS["bf16"]
    if not isinstance(stated, dict):
        raise PerfModelError(
            f"config.json of {name}: quantization_config is {stated!r:.80}, valid are objects"
        )
    return _Quantisation(dict(stated), config, name).precision(stack, hidden)


class _Quantisation:
    """One ``quantization_config``."""

    def __init__(self, stated: dict[str, Any], config: Mapping[str, Any], name: str) -> None:
        self.stated, self.config, self.name = stated, config, name

    def fail(self, field: str, message: str) -> PerfModelError:
        return PerfModelError(
            f"config.json of {self.name}: quantization_config.{field} is "
            f"{self.stated.get(field)!r:.80}: {message}; {_REMEDY}"
        )

    def precision(self, stack: tuple[Layer, ...], hidden: int) -> Precision:
        method = str(self.stated.get("quant_method") or "").lower()
        if method.startswith("modelopt") or (not method and self.stated.get("quant_algo")):
            method = "modelopt"
        read = _METHODS.get(method)
        if read is None:
            known = ", ".join(sorted(_METHODS))
            raise self.fail("quant_method", f"{method!r:.40} is not known (known: {known})")
        weights = _weights(stack, hidden, self.name)
        weights.beside = str(self.config.get("model_type")).startswith("gemma4")
        read(self, weights)
        return self._built(weights)

    def _built(self, weights: _Weights) -> Precision:
        forms = {part: weights.format(part) for part in PARTS}
        has = weights.present
        stand_in = next((p for p in ("linear", "shared", "attention") if has[p]), "linear")
        linear = forms[stand_in]
        expert = forms["expert"] if has["expert"] else linear
        main = expert if has["expert"] or has["linear"] else forms["attention"]
        precision = Precision.of(_label(main), linear, expert)
        return replace(
            precision,
            attention=None if forms["attention"] == linear else forms["attention"],
            shared=None if forms["shared"] == linear else forms["shared"],
            head=forms["head"],
            kv=self._cache_bytes(),
        )

    def _cache_bytes(self) -> float:
        """Return bytes per cached element: FP8 if the checkpoint has scales for it."""
        scheme = self.stated.get("kv_cache_quant_algo") or self.stated.get("kv_cache_scheme")
        if not scheme:
            return BF16_BYTES
        bits = scheme.get("num_bits") if isinstance(scheme, dict) else None
        if bits == 8 or str(scheme).upper() in ("FP8", "INT8", "FP8_E4M3"):  # noqa: PLR2004
            return 1.0
        if str(scheme).upper() == "NVFP4":
            return NVFP4.size
        raise PerfModelError(
            f"config.json of {self.name}: the quantisation of the cache is {scheme!r:.80}, which "
            f"is not understood; {_REMEDY}"
        )

    def number(self, *names: str, default: int | None = None) -> int | None:
        found = next((n for n in names if self.stated.get(n) is not None), None)
        if found is None:
            return default
        value = self.stated[found]
        if not isinstance(value, int) or isinstance(value, bool) or value > _MOST_BITS:
            raise self.fail(found, "valid are whole numbers")
        return value

    def modules(self, *names: str) -> list[str]:
        """Return the modules that are left as they were."""
        found: list[str] = []
        for name in names:
            value = self.stated.get(name) or []
            if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
                raise self.fail(name, "valid are lists of names")
            found += value
        return found

    def set(self, weights: _Weights, form: Format, *ignored: str) -> None:
        """Give all parts but the head one format, but for the modules named in fields."""
        for part in ("attention", "linear", "shared", "expert"):
            weights.base[part] = form
        for module in self.modules(*ignored):
            weights.state(module, BF16)


_MOST_BITS = 1 << 20


def _label(form: Format) -> str:
    """Return the name of the precision that a format is nearest to."""
    if form.size > _EIGHT_BITS:
        return "bf16"
    bits = "4" if form.size < _FIVE_BITS else "8"
    return ("int" if form.whole else "fp") + bits


_EIGHT_BITS, _FIVE_BITS = 1.5, 0.75


def _weights(stack: tuple[Layer, ...], hidden: int, name: str) -> _Weights:
    """Return the parts that the layers have, all in BF16."""
    present: dict[str, set[int]] = {part: set() for part in PARTS}
    present["head"] = {0}
    total = out = 0
    for at, layer in enumerate(stack):
        for mixer in layer.mixers:
            present["attention"].add(at)
            total += mixer.parameters(hidden)
            out += mixer.output_parameters(hidden)
        if isinstance(layer.ffn, Dense):
            present["linear"].add(at)
        if isinstance(layer.ffn, Experts):
            present["expert"].add(at)
            if layer.ffn.shared:
                present["shared"].add(at)
    return _Weights(dict.fromkeys(PARTS, BF16), present, out / total if total else 0.5, name)


def _block(stated: object) -> Format | None:
    """Return FP8 with a scale per block of rows and columns; None if no block is stated."""
    if not stated:
        return None
    if isinstance(stated, list) and len(stated) == len(("rows", "columns")):
        rows, columns = stated
        if type(rows) is int and type(columns) is int and rows > 0 and columns > 0:
            return Format(1 + 4 / min(rows * columns, _MOST_BITS**2), FP8_BLOCK.compute)
    raise ValueError


def _fp8(self: _Quantisation, weights: _Weights) -> None:
    try:
        form = _block(self.stated.get("weight_block_size")) or FP8
    except ValueError:
        raise self.fail("weight_block_size", "valid are two whole numbers") from None
    kind = str(self.stated.get("fmt") or self.stated.get("fp8_format") or "e4m3").lower()
    if "e4m3" not in kind and "e5m2" not in kind:
        raise self.fail("fmt", "valid are e4m3 and e5m2")
    self.set(weights, form, "modules_to_not_convert", "ignored_layers", "ignored_modules")
    experts = self.stated.get("moe_quant_algo") or self.config.get("expert_dtype")
    if experts:
        known = {"FP4": MXFP4, "MXFP4": MXFP4, "NVFP4": NVFP4, "FP8": form, "BF16": BF16}
        if str(experts).upper() not in known:
            raise self.fail("moe_quant_algo", f"valid are {', '.join(known)}")
        weights.base["expert"] = known[str(experts).upper()]


def _modelopt(self: _Quantisation, weights: _Weights) -> None:
    algorithm = str(self.stated.get("quant_algo") or "").upper()
    if algorithm == "MIXED_PRECISION":
        layers = self.stated.get("quantized_layers")
        if not isinstance(layers, dict) or not layers:
            raise self.fail("quantized_layers", "valid are objects of modules and their formats")
        for module, each in layers.items():
            kind = str(each.get("quant_algo") if isinstance(each, dict) else each).upper()
            if kind not in _ALGORITHMS:
                raise self.fail("quantized_layers", f"{kind!r:.40} of {module!r:.80} is not known")
            weights.state(module, _ALGORITHMS[kind])
        return
    if algorithm not in _ALGORITHMS:
        raise self.fail("quant_algo", f"known are {', '.join(_ALGORITHMS)}")
    form = _ALGORITHMS[algorithm]
    self.set(weights, form, "ignore", "exclude_modules", "modules_to_not_convert")


def _compressed_tensors(self: _Quantisation, weights: _Weights) -> None:
    groups = self.stated.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise self.fail("config_groups", "valid are objects")
    sparsity = self.stated.get("sparsity_config")
    if isinstance(sparsity, dict) and str(sparsity.get("format") or "dense") != "dense":
        raise self.fail("sparsity_config", "sparse weights are not understood")
    for group in groups.values():
        if not isinstance(group, dict):
            raise self.fail("config_groups", "valid are objects of objects")
        form = _scheme(self, group.get("weights"), group.get("input_activations"))
        targets = group.get("targets") or ["Linear"]
        if not isinstance(targets, list) or not all(isinstance(t, str) for t in targets):
            raise self.fail("config_groups", "targets are not a list of names")
        for target in targets:
            if target in ("Linear", "FusedMoE", "MoE"):
                for part in ("attention", "linear", "shared", "expert"):
                    weights.base[part] = form
            else:
                weights.state(target, form)
    for module in self.modules("ignore"):
        weights.state(module, BF16)


def _scheme(self: _Quantisation, weight: object, inputs: object) -> Format:
    """Return the format of a scheme of compressed-tensors: numbers of bits, type and group."""
    if not isinstance(weight, dict):
        raise self.fail("config_groups", "weights without a scheme")
    bits, group = weight.get("num_bits"), weight.get("group_size")
    bits_in = inputs.get("num_bits") if isinstance(inputs, dict) else None
    kind = str(weight.get("type") or "int").lower()
    if type(bits) is not int or not 2 <= bits <= 8:  # noqa: PLR2004  # what such formats have
        raise self.fail("config_groups", f"weights of {bits!r:.20} bits are not understood")
    if group is not None and (type(group) is not int or group < -1 or group > _MOST_BITS):
        raise self.fail("config_groups", f"groups of {group!r:.20} are not understood")
    group = group if group and group > 0 else None
    if kind == "int":
        if bits_in is not None:
            raise self.fail("config_groups", f"INT{bits_in!r:.20} activations are not understood")
        zero = 0 if weight.get("symmetric", True) else bits
        return Format((bits + ((16 + zero) / group if group else 0.0)) / 8, whole=True)
    compute = {None: "bf16", 4: "fp4", 8: "fp8", 16: "bf16"}.get(
        bits_in if bits_in is None or type(bits_in) is int else 0
    )
    if kind != "float" or bits not in (4, 8) or compute is None:
        raise self.fail(
            "config_groups", f"{bits}-bit {kind!r:.20} weights with {bits_in!r:.20}-bit activations"
        )
    if bits == 4:  # noqa: PLR2004
        return Format((NVFP4 if group == 16 else MXFP4).size, compute)  # noqa: PLR2004  # blocks
    try:
        form = _block(weight.get("block_structure"))
    except ValueError:
        raise self.fail("config_groups", "block_structure is not two whole numbers") from None
    if form is not None:
        return Format(form.size, compute)
    return Format(1 + (1 / group if group else 0.0), compute)


def _awq(self: _Quantisation, weights: _Weights) -> None:
    bits = self.number("bits", "w_bit", default=4)
    group = self.number("group_size", "q_group_size", default=128)
    self.set(weights, _integers(self, bits, group), "modules_to_not_convert")


def _gptq(self: _Quantisation, weights: _Weights) -> None:
    bits, group = self.number("bits"), self.number("group_size", default=-1)
    for name in ("modules_in_block_to_quantize", "extra_config"):
        if self.stated.get(name):
            raise self.fail(name, "formats of single modules are not understood")
    self.set(weights, _integers(self, bits, group), "modules_to_not_convert")
    rules = self.stated.get("dynamic") or {}
    if not isinstance(rules, dict) or not all(str(rule).startswith("-:") for rule in rules):
        raise self.fail("dynamic", "rules other than those that leave modules out (-:)")
    for rule in rules:
        weights.state(str(rule)[2:], BF16)


def _integers(self: _Quantisation, bits: int | None, group: int | None) -> Format:
    if bits not in (2, 3, 4, 5, 6, 8):
        raise self.fail("bits", "valid are 2 to 8")
    return integer(bits, group if group and group > 0 else None)


def _mxfp4(self: _Quantisation, weights: _Weights) -> None:
    # Only the experts are converted, whatever the list says (transformers, quantizer_mxfp4.py).
    weights.base["expert"] = MXFP4
    if not weights.present["expert"]:
        raise self.fail("quant_method", "mxfp4 converts experts, but the model has none")
    for module in self.modules("modules_to_not_convert"):
        weights.state(module, BF16)


def _bitsandbytes(self: _Quantisation, weights: _Weights) -> None:
    if self.stated.get("load_in_4bit") or self.stated.get("_load_in_4bit"):
        # One FP32 scale for 64 values; doubly quantised it has 8 bits and a share of another.
        scale = 8 + 32 / 256 if self.stated.get("bnb_4bit_use_double_quant") else 32
        form = Format((4 + scale / 64) / 8, whole=True)
    elif self.stated.get("load_in_8bit") or self.stated.get("_load_in_8bit"):
        form = integer(8, None)
    else:
        raise self.fail("load_in_4bit", "neither 4 nor 8 bits are stated")
    self.set(weights, form, "llm_int8_skip_modules")


def _quark(self: _Quantisation, weights: _Weights) -> None:
    whole = self.stated.get("global_quant_config")
    if not isinstance(whole, dict):
        raise self.fail("global_quant_config", "valid are objects")
    self.set(weights, _quark_format(self, whole), "exclude")
    for key in ("layer_quant_config", "layer_type_quant_config"):
        rules = self.stated.get(key) or {}
        if not isinstance(rules, dict) or not all(isinstance(r, dict) for r in rules.values()):
            raise self.fail(key, "valid are objects of objects")
        for module, rule in rules.items():
            weights.state(module, _quark_format(self, rule))


def _quark_format(self: _Quantisation, stated: dict[str, Any]) -> Format:
    weight, inputs = stated.get("weight"), stated.get("input_tensors")
    if isinstance(weight, list):
        weight = weight[0] if len(weight) == 1 else None
    if not isinstance(weight, dict):
        raise self.fail("global_quant_config", "weights without one format")
    kind, group = str(weight.get("dtype")).lower(), weight.get("group_size")
    operand = str(inputs.get("dtype")).lower() if isinstance(inputs, dict) else ""
    if kind.startswith("fp8"):
        return FP8 if operand.startswith("fp8") else Format(1.0)
    if kind in ("fp4", "mxfp4"):
        compute = {"f": "fp4"}.get(operand[:1], "bf16") if "4" in operand else "bf16"
        return Format(MXFP4.size, "fp8" if operand.startswith("fp8") else compute)
    if kind in ("int4", "uint4", "int8", "uint8") and not operand.startswith(("int", "uint")):
        return integer(int(kind[-1]), group if type(group) is int and group > 0 else None)
    raise self.fail("global_quant_config", f"{kind:.20} weights with {operand:.20} inputs")


_METHODS: dict[str, Callable[[_Quantisation, _Weights], None]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed_tensors,
    "awq": _awq,
    "gptq": _gptq,
    "gptqmodel": _gptq,
    "auto-round": _gptq,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "quark": _quark,
}
