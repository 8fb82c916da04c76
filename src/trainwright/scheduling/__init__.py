"""Numbers in, orders out: build, check, simulate and bound pipeline schedules.

Public here are building blocks, to define a schedule by the offsets of one microbatch.
"""

from trainwright.scheduling.block import BuildingBlock, Collision, Pace, path_block, repeat

__all__ = ["BuildingBlock", "Collision", "Pace", "path_block", "repeat"]
