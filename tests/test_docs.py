"""The documentation names files that exist and commands that can be given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_documentation() -> None:
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "docs/check.py"], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
