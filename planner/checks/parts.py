"""Do the parts of an island of several pools make one pipeline that holds the whole model?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.plan import Group


def wrong_parts(group: Group, layers: int) -> Iterator[str]:
    """What is wrong with the parts of a group; nothing where it is of one pool.

    Args:
        group: the group.
        layers: of its model.
    """
    if not group.parts:
        return
    split = group.parallelism
    pools = [part.pool for part in group.parts]
    if len(set(pools)) != len(pools) or len(pools) == 1:
        yield f"{len(pools)} of {', '.join(pools)}; an island has one part of each of its pools"
    if "+".join(pools) != group.pool:
        yield f"of {'+'.join(pools)}, the group is of {group.pool}"
    if sum(part.gpus for part in group.parts) != group.gpus:
        yield f"{sum(part.gpus for part in group.parts)} GPUs, the group states {group.gpus}"
    if (split.dp, split.ep) != (1, 1):
        yield f"{split} for a pipeline over several pools, which is one copy without dp or ep"
    for part in group.parts:
        if part.gpus % split.tp:
            yield f"{part.gpus} GPUs of {part.pool} are no whole stages of {split.tp} GPUs"
        elif part.layers < part.gpus // split.tp:
            stages = part.gpus // split.tp
            yield f"{part.layers} layers in {stages} stages of {part.pool}; each holds at least one"
    if sum(part.layers for part in group.parts) != layers:
        yield f"{sum(part.layers for part in group.parts)} layers, the model has {layers}"
