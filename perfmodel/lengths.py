"""Request lengths as a distribution: inputs jointly with outputs, and ranges over the inputs.

The distribution is a set of atoms: at each input length the probability of a request and what is
known of its output. Everything the planner needs is an expectation over the atoms of a range.
"""

from dataclasses import dataclass

from archipelago.perfmodel.model import FloatArray


@dataclass(frozen=True)
class LengthDistribution:
    """Atoms sorted by input length; arrays of equal shape (atoms,).

    ``probability`` sums to 1. ``output`` is E[o | l] and ``output_square`` E[o^2 | l], the first
    two moments of the output length [tokens, tokens^2] (the second enters the mean context).
    """

    length: FloatArray
    probability: FloatArray
    output: FloatArray
    output_square: FloatArray


@dataclass(frozen=True, order=True)
class Range:
    """Half-open interval ``[min, max)`` of input lengths [tokens]."""

    min: int
    max: int


@dataclass(frozen=True)
class RangeMoments:
    """Expectations per range, arrays of shape (ranges,).

    ``probability``: share of requests. ``output``: o_j = E[o | j] [tokens].
    ``context``: k_j = E[o l + o^2/2 | j] / E[o | j], the mean context of a decoded token [tokens].
    A range of probability 0 takes its midpoint as length and the outputs of the whole mix.
    """

    probability: FloatArray
    output: FloatArray
    context: FloatArray
