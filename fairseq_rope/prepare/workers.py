"""Runs jobs on all cores with flat memory, in processes that never outlive the program."""

import ctypes
import os
import signal
import sys
from multiprocessing import connection, get_context

from fairseq_rope.errors import UserError

_PR_SET_PDEATHSIG = 1


def cores():
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def die_with_parent():
    """Let the kernel kill this process when its parent ends, however that happens (Linux; elsewhere no effect)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run_jobs(function, jobs, workers):
    """Yield ``function(job)`` for each of ``jobs``, in their order.

    Each worker has a pipe of its own and there is no thread and no lock, so that killing workers in the middle of
    anything (an error, Ctrl-C, SIGTERM) leaves nothing to wait for; multiprocessing's and concurrent.futures' pools
    then wait for the rest of a message for ever.

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
    team = []  # (process, the parent's end of its pipe)
    try:
        for _ in range(workers):
            team.append(_hire(function))
        yield from _in_order(iter(jobs), [end for _, end in team])
    finally:
        for process, end in team:
            process.kill()
            process.join()
            end.close()


def _hire(function):
    context = get_context("fork")  # a worker needs none of the seconds that importing fairseq takes
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(function, theirs), daemon=True)
    process.start()
    theirs.close()  # so that the pipe ends with the worker
    return process, ours


def _serve(function, end):
    """A worker's life: jobs in, ``(whether it went well, result or exception)`` out."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        job = end.recv()
        try:
            answer = True, function(job)
        except Exception as error:
            answer = False, error
        end.send(answer)


def _in_order(jobs, idle):
    running, finished = {}, {}  # {worker: number of its job}, {number: result}
    given = wanted = 0
    while True:
        while idle and given - wanted < 3 * (len(idle) + len(running)):
            try:
                job = next(jobs)
            except StopIteration:
                break
            worker = idle.pop()
            worker.send(job)
            running[worker] = given
            given += 1
        if wanted in finished:
            yield finished.pop(wanted)
            wanted += 1
        elif not running:
            return
        else:
            for worker in connection.wait(list(running)):
                finished[running.pop(worker)] = _receive(worker)
                idle.append(worker)


def _receive(worker):
    try:
        well, result = worker.recv()
    except (EOFError, OSError) as error:
        raise UserError(
            "a worker process was killed, most often because memory ran out: try a smaller --workers; "
            "the same command goes on from here"
        ) from error
    if not well:
        raise result
    return result
