"""Run a Python program and write the peak of its GPU memory, in bytes, to a file.

    python benchmarks/peak_memory.py peak.txt -m csekit train --help
    python benchmarks/peak_memory.py peak.txt benchmarks/st_training.py --help

The number is that of torch's allocator in this process (`torch.cuda.max_memory_allocated`); 0 without CUDA.
"""

import runpy
import sys
from pathlib import Path

import torch


def main() -> None:
    peak, name, *arguments = sys.argv[1:]
    module = name == "-m"
    sys.argv = arguments if module else [name, *arguments]
    sys.path[0] = "" if module else str(Path(name).parent)
    try:
        if module:
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    finally:
        used = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        Path(peak).write_text(f"{used}\n", encoding="ascii")


if __name__ == "__main__":
    main()
