"""How free an event loop is."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

BEAT = 0.005


@asynccontextmanager
async def beats() -> AsyncIterator[list[float]]:
    """Measure the processor time [s] of this process from one turn of the loop to the next.

    What other processes take of the machine is not in it; what holds the interpreter is.
    """
    turns: list[float] = []

    async def beat() -> None:
        while True:
            before = time.process_time()
            await asyncio.sleep(BEAT)
            turns.append(time.process_time() - before)

    task = asyncio.create_task(beat())
    yield turns
    task.cancel()
