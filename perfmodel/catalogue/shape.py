"""A model as a sequence of layers, and what follows from its shape alone.

Parameter counts and cache bytes are derived here; their spread over GPUs is in
``roofline/memory.py``, their time in ``roofline/operators.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from .layers import CompressedAttention, Dense, Experts, FeedForward, Layer, Mixer, StateMixer
from .precision import Precision


@dataclass(frozen=True)
class ModelArchitecture:
    """A decoder and the precision it is served in.

    ``stack``: its layers in order. ``max_length``: longest sequence [tokens].
    ``other_parameters``: of the embedding's side that no layer has (learned positions).
    ``uncertainty``: relative half-width of a 90 % interval on times, of a shape that is not sure.
    ``unserved``: modules that the checkpoint has and that are not counted.
    """

    name: str
    hidden: int
    vocabulary: int
    stack: tuple[Layer, ...]
    max_length: int
    precision: Precision
    tied_embeddings: bool = False
    other_parameters: int = 0
    unserved: tuple[str, ...] = ()
    uncertainty: float = 0.0

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.hidden, self.vocabulary, self.stack, self.precision))

    def __hash__(self) -> int:
        """Return the hash, made once: operators and weights are looked up by the model."""
        return self._hash

    @property
    def layers(self) -> int:
        """Return the number of layers."""
        return len(self.stack)

    @cached_property
    def mixers(self) -> tuple[Mixer, ...]:
        """Return the different mixers: what sees all of the context, then windows, then states."""
        found = dict.fromkeys(mixer for layer in self.stack for mixer in layer.mixers)
        return tuple(sorted(found, key=_reach_order))

    @cached_property
    def ffns(self) -> tuple[FeedForward, ...]:
        """Return the different feed-forwards, dense ones first."""
        found = dict.fromkeys(layer.ffn for layer in self.stack if layer.ffn is not None)
        return tuple(sorted(found, key=lambda ffn: isinstance(ffn, Experts)))

    @cached_property
    def prefix(self) -> tuple[tuple[int, ...], ...]:
        """Return how many mixers and feed-forwards of each kind the first n layers have, n >= 0."""
        places: dict[Mixer | FeedForward, int] = {m: i for i, m in enumerate(self.mixers)}
        places |= {f: len(self.mixers) + i for i, f in enumerate(self.ffns)}
        counts = [0] * len(places)
        rows = [tuple(counts)]
        for layer in self.stack:
            for part in (*layer.mixers, *((layer.ffn,) if layer.ffn is not None else ())):
                counts[places[part]] += 1
            rows.append(tuple(counts))
        return tuple(rows)

    @property
    def attention(self) -> Mixer:
        """Return the mixer that stands for the model: one that sees all of the context if any."""
        return self.mixers[0]

    @cached_property
    def experts(self) -> Experts | None:
        """Return the (first) experts; None if all layers are dense."""
        return next((ffn for ffn in self.ffns if isinstance(ffn, Experts)), None)

    @cached_property
    def intermediate(self) -> int:
        """Return the width of the widest dense feed-forward; 0 if there is none."""
        return max((ffn.width for ffn in self.ffns if isinstance(ffn, Dense)), default=0)

    @property
    def sparse_layers(self) -> int:
        """Return layers with routed experts."""
        return sum(isinstance(layer.ffn, Experts) for layer in self.stack)

    @property
    def dense_layers(self) -> int:
        """Return layers with one dense feed-forward."""
        return sum(isinstance(layer.ffn, Dense) for layer in self.stack)

    @property
    def windowed_layers(self) -> int:
        """Return layers that cache no more than a sliding window."""
        return sum(mixer.window is not None for mixer in self._every_mixer())

    @cached_property
    def window(self) -> int:
        """Return tokens that a windowed layer keeps per sequence at most; 0 if there is none."""
        return max((mixer.window or 0 for mixer in self.mixers), default=0)

    @property
    def embedding_parameters(self) -> int:
        """Return parameters of the embedding, and of the output head unless it is tied."""
        return self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)

    @cached_property
    def parameters(self) -> int:
        """Return all parameters, without modules that only speculative decoding uses."""
        total = self._total(lambda experts: experts.routed)
        return total + self.embedding_parameters + self.other_parameters

    @cached_property
    def active_parameters(self) -> int:
        """Return the parameters that one token uses: its experts, and the output head once."""
        return self._total(lambda experts: experts.per_token) + self.vocabulary * self.hidden

    def _every_mixer(self) -> Iterable[Mixer]:
        return (mixer for layer in self.stack for mixer in layer.mixers)

    def _total(self, visited: Callable[[Experts], int]) -> int:
        """Return parameters of all layers with ``visited`` routed experts in each sparse one."""
        total = self.hidden
        counts = self.prefix[-1]
        for mixer, count in zip(self.mixers, counts, strict=False):
            total += count * (mixer.parameters(self.hidden) + self.hidden)
        for ffn, count in zip(self.ffns, counts[len(self.mixers) :], strict=True):
            if isinstance(ffn, Dense):
                parameters = ffn.parameters(self.hidden)
            else:
                parameters = visited(ffn) * ffn.parameters_of_one(self.hidden)
                parameters += ffn.parameters_of_shared(self.hidden)
                parameters += ffn.router_parameters(self.hidden)
            total += count * (parameters + self.hidden)
        return total

    @cached_property
    def kv_bytes_per_token(self) -> float:
        """Return bytes of keys and values that one more token of context adds, all layers [B].

        Windowed layers stop growing at their window and are counted by ``kv_window_bytes``. Keys of
        indexers are counted by ``index_bytes_per_token``, states by ``state_bytes``.
        """
        grown = sum(m.kv_elements for m in self._every_mixer() if m.window is None)
        return grown * self.precision.kv

    @cached_property
    def windows(self) -> tuple[tuple[int, float], ...]:
        """Return windows [tokens] and the elements per token of the layers that have them."""
        found: dict[int, float] = {}
        for mixer in self._every_mixer():
            window = mixer.near if isinstance(mixer, CompressedAttention) else mixer.window
            if window is not None:
                elements = (
                    mixer.dim if isinstance(mixer, CompressedAttention) else mixer.kv_elements
                )
                found[window] = found.get(window, 0) + elements
        return tuple(sorted(found.items()))

    @cached_property
    def kv_window_bytes(self) -> float:
        """Return bytes [B] that the windowed layers keep per sequence with full windows."""
        return sum(window * elements for window, elements in self.windows) * self.precision.kv

    @cached_property
    def index_bytes_per_token(self) -> float:
        """Return bytes of indexers' keys that one more token of context adds, all layers [B]."""
        return sum(index_bytes(mixer) for mixer in self._every_mixer())

    @cached_property
    def state_bytes(self) -> float:
        """Return bytes [B] of recurrent state per sequence, over all layers."""
        return sum(m.sequence_bytes for m in self._every_mixer() if isinstance(m, StateMixer))


def index_bytes(mixer: Mixer) -> float:
    """Return bytes of indexer keys per token of context in one layer [B]."""
    if mixer.index is None:
        return 0.0
    ratio = mixer.ratio if isinstance(mixer, CompressedAttention) else 1
    return mixer.index.key_bytes / ratio


def _reach_order(mixer: Mixer) -> int:
    if isinstance(mixer, StateMixer):
        return 2
    return int(mixer.window is not None or mixer.kv_elements == 0)
