"""Seconds of CPU of a process and of everything that it has started."""

import os
from pathlib import Path

seen, ended = {}, []


def cpu_of_all(but=frozenset()):
    """Seconds of CPU of this process and everything it has started, those included that have ended; a server that
    stands for somebody else's machine is left out by its number."""
    stats = {}
    for name in Path("/proc").iterdir():
        if name.name.isdigit():
            try:
                words = (name / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            stats[int(name.name)] = (int(words[1]), sum(map(int, words[11:15])))
    mine, before = {os.getpid()}, 0
    while len(mine) != before:
        before = len(mine)
        mine |= {pid for pid, (parent, _) in stats.items() if parent in mine and pid not in but}
    now = {pid: stats[pid] for pid in mine if pid in stats}
    # Who ended under a living parent is counted there; who ended together with it is counted by nobody else.
    ended.extend(ticks for pid, (parent, ticks) in seen.items() if pid not in now and parent not in now)
    seen.clear()
    seen.update(now)
    return (sum(ticks for _, ticks in now.values()) + sum(ended)) / os.sysconf("SC_CLK_TCK")
