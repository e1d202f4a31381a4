"""Runs jobs on all cores with flat memory, in processes that never outlive the program."""

import ctypes
import os
import signal
import sys
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from fairseq_rope.errors import UserError

_PR_SET_PDEATHSIG = 1


def cores():
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def die_with_parent():
    """Let the kernel kill this process when its parent ends, however that happens (Linux; elsewhere no effect)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start():
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_jobs(function, jobs, workers):
    """Yield ``function(job)`` for each of ``jobs``, in their order.

    Args:
        function: a module's function.
        jobs: an iterable; it is read only a few jobs ahead.
        workers: number of processes; 1 computes here, without a process.

    Raises:
        UserError: a worker was killed (most often for want of memory); whatever ``function`` raises.
    """
    if workers == 1:
        yield from map(function, jobs)
        return
    # fork: a worker needs none of the seconds that importing fairseq takes
    pool = ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_start)
    waiting = deque()
    try:
        for job in jobs:
            waiting.append(pool.submit(function, job))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, most often because memory ran out: try a smaller --workers; "
            "the same command goes on from here"
        ) from error
    finally:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        if waiting:  # an error or Ctrl-C: what the workers are at is not needed
            for process in processes:
                process.kill()
        for process in processes:
            process.join()
