"""Runs every generator of this folder, each in its own process."""

import subprocess
import sys

from pathlib import Path

TOPICS = ["optimizers", "schedules", "losses", "metrics", "layers", "initializers", "curves",
          "categories", "fits", "loops", "outputs", "own_parts", "ports", "sequences", "texts", "transformer", "models", "weights", "windows",
          "winners"]

for topic in TOPICS:
    subprocess.run([sys.executable, Path(__file__).resolve().parent / f"make_{topic}.py"], check=True)
