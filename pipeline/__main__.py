"""`tuff-pipeline`, which is started by its path, like the server (tuff/launch.py): the name
`pipeline` is too general for a top-level package in site-packages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.command import main

if __name__ == "__main__":
    main()
