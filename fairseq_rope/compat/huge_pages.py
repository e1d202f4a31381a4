"""Memory of large tensors on the CPU."""

import os
import sys

from fairseq_rope.compat.mend import Mend

VARIABLE = "THP_MEM_ALLOC_ENABLE"  # torch's own: asks the kernel for transparent huge pages
SWITCH = "/sys/kernel/mm/transparent_hugepage/enabled"


def _huge_pages():
    if not sys.platform.startswith("linux"):
        return "only Linux has transparent huge pages"
    if os.environ.setdefault(VARIABLE, "1") != "1":
        return f"the environment says {VARIABLE}={os.environ[VARIABLE]}"
    try:
        with open(SWITCH, encoding="ascii") as file:
            if "[never]" in file.read():
                return "transparent huge pages are switched off on this machine"
    except OSError:
        return "this kernel has no transparent huge pages"
    return None


MENDS = [
    Mend(
        name="large tensors in huge pages",
        reason="the C library gives memory of 32 MB and more back at once, so the scores of a vocabulary are mapped "
        f"anew, 4 KiB at a time, for every batch; {VARIABLE}=0 in the environment leaves it so",
        apply=_huge_pages,
    )
]
