"""The one kind of error that a user can cause: told in one line, without a traceback."""


class UserError(ValueError):
    """Something in the command line, the data or a file is wrong; the message names it and what is valid.

    The message is one sentence (no line breaks), since a program prints it as its last line and exits with 1.
    """
