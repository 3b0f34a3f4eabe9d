"""Reads a published Hugging Face ``config.json``: fields of any family become layers.

The order is that of questions to a document: which layers mix tokens how, what each mixer's shape
is, which layers have experts, what is tied. A family (``model_type``) only says what its documents
leave out (``families.py``). What no question has read is refused by ``Fields.refuse_rest``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import PerfModelError
from ..layers import Experts, Layer
from ..precision import named_precision
from ..shape import ModelArchitecture
from .families import Family, family
from .feedforward import feed_forwards
from .fields import MOST_LAYERS, NESTED, Fields
from .mixers import mixers
from .quantisation import published_precision

_MTP = (
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_modules",
    "mtp_transformer_layers",
    "num_mtp_layers",
)
"""Layers that only propose tokens: known, not served, not counted."""

_FLATTENED = ("attn_config", "ffn_config")
"""Objects in which DBRX and MPT have fields of the shape."""


def from_config(
    config: Mapping[str, Any], name: str, precision: str | None = None
) -> ModelArchitecture:
    """Return a model from its published Hugging Face ``config.json``.

    Args:
        config: The parsed document; a multimodal one has ``text_config``.
        name: What to call the model.
        precision: A name of ``precision.PRECISIONS``; None takes the ``quantization_config``, and
            BF16 without one.

    Raises:
        PerfModelError: names the field that is missing, not understood or of another kind.
    """
    if not isinstance(config, Mapping):
        raise PerfModelError(f"config.json of {name}: valid is a JSON object, not {config!r:.80}")
    fields = Fields(_language_model(config, name), name)
    layers = _layer_count(fields)
    known = family(fields)
    for field, value in known.defaults:
        fields.config.setdefault(field, value)
    hidden = fields.count("hidden_size", "n_embd", "n_embed", "d_model", "hidden_dim")
    stack = _stack(fields, known, layers, hidden)
    if not any(layer.mixers for layer in stack):
        raise PerfModelError(f"config.json of {name}: no layer mixes tokens")
    vocabulary = fields.count("vocab_size", "padded_vocab_size")
    length = fields.count(
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "n_ctx",
        "max_sequence_length",
        "model_max_length",
        default=known.length,
    )
    positions = length + known.position_offset if known.learned_positions else 0
    tied = _tied(fields, known)
    unserved = tuple(field for field in _MTP if fields.has(field))
    fields.taken((*_MTP, *NESTED, "use_mtp", "torch_dtype", "dtype"))
    _embedding_width(fields, hidden)
    fields.refuse_rest()
    sparse = any(isinstance(layer.ffn, Experts) for layer in stack)
    if precision:
        chosen = named_precision(precision, experts=sparse)
    else:
        chosen = published_precision(fields.config, stack, hidden, name)
    return ModelArchitecture(
        name=name,
        hidden=hidden,
        vocabulary=vocabulary,
        stack=stack,
        max_length=length,
        precision=chosen,
        tied_embeddings=tied,
        other_parameters=positions * hidden,
        unserved=unserved,
    )


def _language_model(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of the language model: those nested in a multimodal document first."""
    merged = dict(config)
    for key in NESTED:
        nested = merged.get(key)
        if nested is None:
            continue
        if not isinstance(nested, dict):
            raise PerfModelError(
                f"config.json of {name}: {key} is {nested!r:.80}, valid are objects"
            )
        outer = {k: v for k, v in merged.items() if k != key}
        merged = {**outer, **_language_model(nested, name)}
    for key in _FLATTENED:
        if isinstance(merged.get(key), dict):
            merged = {**merged.pop(key), **merged}
    return merged


def _layer_count(fields: Fields) -> int:
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    listed = fields.items("layers_block_type")
    layers = fields.count(*names, default=len(listed) if listed else None)
    if layers > MOST_LAYERS:
        raise fields.fail(names[0], f"valid are 1 to {MOST_LAYERS} layers")
    return layers


def _stack(fields: Fields, known: Family, layers: int, hidden: int) -> tuple[Layer, ...]:
    """Return the layers in order."""
    mixed = mixers(fields, known, layers, hidden)
    fed = feed_forwards(fields, known, layers, hidden, mixed)
    return tuple(Layer(mixer.mixers, ffn) for mixer, ffn in zip(mixed, fed, strict=True))


def _tied(fields: Fields, known: Family) -> bool:
    if known.tied is None and fields.config.get("tie_word_embeddings") is None:
        raise PerfModelError(
            f"config.json of {fields.name}: the field tie_word_embeddings is missing, and "
            f"model_type {fields.config.get('model_type')!r} is not known; add it"
        )
    names = ("tie_word_embeddings", "tie_embeddings", "tie_lm_head")
    return fields.flag(*names, default=bool(known.tied))


def _embedding_width(fields: Fields, hidden: int) -> None:
    width = fields.integer("word_embed_proj_dim", "embedding_size", default=hidden)
    if width != hidden:
        raise fields.fail("word_embed_proj_dim", f"valid is the hidden size, {hidden}")
    if fields.integer("hidden_size_per_layer_input", default=0):
        raise fields.fail(
            "hidden_size_per_layer_input", "embeddings of each layer are not understood yet"
        )
    fields.taken(("vocab_size_per_layer_input",))
