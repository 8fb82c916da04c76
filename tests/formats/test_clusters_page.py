"""The clusters that docs/formats.md shows are clusters."""

import re
import tomllib
from pathlib import Path

import pytest

from trainwright.formats import catalog
from trainwright.formats.cluster_toml import read_cluster

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```toml\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("block", "devices"), tuple(zip(BLOCKS, (256, 4, 1024, 24), strict=True)))
def test_a_cluster_of_the_page_can_be_read(block: str, devices: int) -> None:
    cluster = read_cluster(tomllib.loads(block), name="page", accelerators=catalog.accelerators())
    assert cluster.num_devices == devices
    assert (cluster.joint is None) == (len(cluster.pools) == 1)
