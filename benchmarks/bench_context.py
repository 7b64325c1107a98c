"""Context strategies on recorded sessions; ``python -m benchmarks.context --help`` has the options."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    runpy.run_module("benchmarks.context", run_name="__main__")
