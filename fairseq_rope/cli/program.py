"""What this package's command-line programs share: one-line errors and orderly stops."""

import argparse
import contextlib
import logging
import signal
import sys
import threading

from fairseq_rope.errors import UserError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line (argparse prints the whole usage before each)."""

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _stop(number, frame):
    # An ordinary exception, so that `finally` blocks remove half-written files.
    raise SystemExit(128 + number)


@contextlib.contextmanager
def one_line_errors(prog):
    """Turn what a user can cause into one line on standard error and exit code 1.

    :class:`UserError` becomes ``PROG: error: …``; Ctrl-C and SIGTERM end the program with 130 and 143 after
    temporary files have been removed. Any other exception is a fault of the program and passes through.
    Within, only warnings are logged: importing fairseq switches every library's debugging messages on.
    """
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.WARNING)
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _stop) if in_main_thread else None
    try:
        yield
    except UserError as error:
        print(f"{prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(1) from error
    except KeyboardInterrupt:
        print(f"{prog}: stopped", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    finally:
        root.setLevel(level)
        if before is not None:  # None: another language's handler, which Python cannot put back
            signal.signal(signal.SIGTERM, before)
