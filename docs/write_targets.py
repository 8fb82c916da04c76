"""Write docs/targets.md from the capability table."""

from pathlib import Path

from trainwright.frameworks.targets_page import targets_page

if __name__ == "__main__":
    Path(__file__).with_name("targets.md").write_text(targets_page(), encoding="utf-8")
