"""``python -m csekit``, also for launchers: ``torchrun --nproc_per_node 2 -m csekit train …``."""

from csekit.cli import main

if __name__ == "__main__":
    main(prog_name="csekit")
