"""`tuff-pipeline`, started by its path as the server is: `pipeline` is too general a name to stand
at the top of somebody's site-packages (tuff/launch.py)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.program import main

if __name__ == "__main__":
    main()
