"""How the scripts of the search answer: a line of JSON for each line that they read."""

import json
import math
import sys


def numbers(values):
    """The numbers of an array as a list; what is not finite is null."""
    return [x if math.isfinite(x) else None for x in values.reshape(-1).tolist()]


def answer(gradients):
    """Answers each request with the lists that the function makes of it, or with why it makes none."""
    for line in sys.stdin:
        try:
            answer = {"gradients": gradients(json.loads(line))}
        except Exception as error:  # What cannot be done is told, and the search goes on.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
