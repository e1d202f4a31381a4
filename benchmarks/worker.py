"""A side in a process of its own, that stays alive: commands come as lines of JSON, answers go back likewise.

Started by :class:`Process`, not by hand. The parent waits for each answer before it asks another side, so that only one
side computes at any moment. A command names a method of the side and its arguments:

    {"do": "open", "kind": "training", "options": {...}}      {"do": "step", "args": [[3, 5, 8]]}
"""

import json
import logging
import os
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import torch
from sides import KINDS, as_json


class Local:
    """A side in this process, with the interface of :class:`Process`: for tests and for looking at one."""

    def __init__(self, kind, options, threads=None):
        self.side = KINDS[kind](**options)

    def __getattr__(self, name):
        return getattr(self.side, name)

    def close(self):
        self.side = None


class Process:
    """A side in a process of its own: its methods are called by name, as on the side itself.

    Args:
        kind: a key of ``sides.KINDS``.
        options: keyword arguments of that class.
        threads: CPU threads.

    Raises:
        SystemExit: from every call, where the side fails; the message names the command and the error's last line.
    """

    def __init__(self, kind, options, threads):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        environment.setdefault("KINETO_LOG_LEVEL", "99")  # else torch's profiler reports its starts
        self.process = subprocess.Popen(
            self.command(kind),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        try:
            self.ask({"do": "open", "kind": kind, "options": options, "threads": threads})
        except BaseException:
            self.close()
            raise

    @staticmethod
    def command(kind):
        """What the process runs."""
        return [sys.executable, str(Path(__file__).resolve())]

    def ask(self, command):
        """Send a command and wait for its answer."""
        try:
            print(json.dumps(command), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self.process.wait()
            why = "killed, perhaps for lack of memory" if code == -9 else f"exit code {code}"
            sys.exit(f"{command['do']}: a side's process has ended ({why})")
        answer = json.loads(line)
        if "error" in answer:
            print(answer["error"], file=sys.stderr)
            sys.exit(f"{command['do']}: a side failed: {answer['error'].strip().splitlines()[-1]}")
        return answer["result"]

    def __getattr__(self, name):
        return lambda *args: self.ask({"do": name, "args": args})

    def close(self):
        """End the process."""
        if self.process.poll() is None:
            self.process.kill()  # it holds nothing that needs an orderly end
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def check_origin(flags, modules=sys.modules):
    """Make sure that stock is stock, and that the others come from their own checkout.

    Args:
        flags: of :meth:`sides.Side.flags`.
        modules: dict of the imported modules.

    Raises:
        RuntimeError: fairseq_rope is imported beside stock, or comes from another folder than ``--user-dir``.
    """
    package = modules.get("fairseq_rope")
    origin = package and str(Path(package.__file__).resolve().parent)
    wanted = str(Path(flags[flags.index("--user-dir") + 1]).resolve()) if "--user-dir" in flags else None
    if origin != wanted:
        raise RuntimeError(f"fairseq_rope comes from {origin}, and should come from {wanted}")


def serve(commands, answers):
    """Answer commands until there are no more."""
    side = None
    for line in commands:
        command = json.loads(line)
        try:
            if command["do"] == "open":
                torch.set_num_threads(command["threads"])
                side, result = KINDS[command["kind"]](**command["options"]), None
                check_origin(command["options"]["flags"])
            else:
                result = getattr(side, command["do"])(*command["args"])
            answer = {"result": result}
        except (Exception, SystemExit):
            answer = {"error": traceback.format_exc()}
        print(as_json(answer), file=answers, flush=True)


def main():
    """Serve this process's parent."""
    # whatever fairseq prints must not come between the answers
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    try:
        serve(sys.stdin, answers)
    except KeyboardInterrupt:  # the parent hears it too and says so
        sys.exit(130)


if __name__ == "__main__":
    main()
