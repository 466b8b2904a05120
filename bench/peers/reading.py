"""Shared by the scripts that read data: two processors, epochs for some seconds, a JSON line. Import before the framework."""

import json
import os
import sys
import time

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def report(framework, version, variant, batches, rows):
    """Reads epochs of `batches` until the seconds are over, after a warm-up of a fifth of them; prints items and seconds."""
    limit = float(sys.argv[3])
    read(batches, limit / 5, rows)
    items, seconds = read(batches, limit, rows)
    line = {"framework": framework, "version": version, "variant": variant, "work": sys.argv[1], "items": items, "seconds": seconds}
    print(json.dumps(line), flush=True)


def read(batches, limit, rows):
    items, start = 0, time.perf_counter()
    while time.perf_counter() - start < limit:
        for batch in batches:
            items += rows(batch)
            if time.perf_counter() - start >= limit:
                break
    return items, time.perf_counter() - start
