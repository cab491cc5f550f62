"""A process that imports csekit once and forks for every job: a line of JSON in, one out.

A job is ``{"argv": [...]}`` (of ``csekit``, or of the script named by ``"script"``) or ``{"code": "..."}``, whose
``print`` is the answer; with ``env``, ``file_size``, a limit in bytes for every file written, as of a full disk, and
``kill_after``, seconds after which a signal ends it.
"""

import contextlib
import json
import os
import runpy
import sys
import tempfile
import time
import traceback
from typing import Any


def run(job: dict[str, Any]) -> None:
    os.environ.update(job.get("env", {}))
    if "file_size" in job:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_size"], resource.RLIM_INFINITY))
    if "kill_after" in job:
        import signal

        signal.setitimer(signal.ITIMER_REAL, job["kill_after"])
    if "code" in job:
        exec(compile(job["code"], "job", "exec"), {"__name__": "job"})
        return
    sys.argv = [job.get("script", "csekit"), *job["argv"]]
    if "script" in job:
        runpy.run_path(job["script"], run_name="__main__")
    else:
        from csekit.cli import main

        main()


def child(job: dict[str, Any], output: Any, errors: Any) -> None:
    os.dup2(output.fileno(), 1)
    os.dup2(errors.fileno(), 2)
    code = 0
    try:
        run(job)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def main() -> None:
    import torch

    torch.set_num_threads(1)

    import csekit.cli
    import csekit.trainers.hub.publishing
    import csekit.trainers.scripts.runs  # noqa: F401

    time.sleep = lambda seconds: None  # the client waits half a minute between its tries
    for line in sys.stdin:
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            began = time.monotonic()
            if (pid := os.fork()) == 0:
                child(json.loads(line), output, errors)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            texts, seconds = [], time.monotonic() - began
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read().decode())
        print(json.dumps({"code": code, "output": texts[0], "errors": texts[1], "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
