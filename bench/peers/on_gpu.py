"""Whole models on a GPU, in turns: python on_gpu.py BENCH_MODELS [NAME | -PROGRAM]...

BENCH_MODELS is our program, `target/release/bench-models`; the Python that runs this needs torch with CUDA and jax with its CUDA plugin,
flax and optax. `"-torch compiled"` leaves that program out. One program after another takes its first step, which compiles, with two
processors each; then they take turns. Each step copies its batch from the host, as ours does. Prints a table.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Steps of a turn, and the work.
WORKS = {
    "resnet50": (20, "ResNet-50, 224x224, batch 64", ["resnet50", "64"]),
    "resnet50_bf16": (20, "ResNet-50, mixed bfloat16, batch 64", ["resnet50_bf16", "64"]),
    "transformer": (20, "Transformer, 128 tokens, batch 64", ["transformer", "64"]),
    "transformer_bf16": (20, "Transformer, mixed bfloat16, batch 64", ["transformer_bf16", "64"]),
    "cnn": (100, "CNN on 28x28x1, batch 64", ["cnn", "64"]),
    "predict": (50, "ResNet-50, outputs of batch 64", ["resnet50", "64", "--work", "predict"]),
}
ROUNDS = 5


class Program:
    """A program of the turns of README.md."""

    def __init__(self, name, command, number):
        # The GPU is shared by all that take turns.
        environment = dict(os.environ, XLA_PYTHON_CLIENT_PREALLOCATE="false", TF_CPP_MIN_LOG_LEVEL="3")
        first = 2 * number % os.cpu_count()
        command = ["taskset", "-c", f"{first},{first + 1}", *command]
        self.log = os.path.join(tempfile.gettempdir(), f"on_gpu_{number}.log")
        pipe = subprocess.PIPE
        self.name, self.medians, self.loss, self.first = name, [], None, None
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment)
        self.hello = None

    def line(self):
        """The next line of JSON."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{self.name} ended")

    def steps(self, count):
        """Has steps taken."""
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self.line()

    def start(self, warm_up):
        """The first step, and some more."""
        self.hello = self.line()
        begin = time.perf_counter()
        self.steps(1)
        self.first = time.perf_counter() - begin
        self.steps(warm_up)

    def turn(self, count):
        """Times steps."""
        told = self.steps(count)
        self.medians.append(told["median_ms"])
        self.loss = told["loss"]


def is_started(program, warm_up):
    """Whether a program took its first steps; tells why it did not."""
    try:
        program.start(warm_up)
        return True
    except (RuntimeError, OSError) as error:
        with open(program.log, encoding="utf-8") as log:
            print(f"{error}: {log.read()[-600:]}", file=sys.stderr)
        return False


def measure(ours, steps, work, left_out):
    """The programs that were timed."""
    script = lambda name: [sys.executable, os.path.join(HERE, f"models_{name}.py"), *work, "--host-batch"]
    commands = [
        ("phalanx", [ours, *work]), ("jax", script("jax")), ("torch", [*script("torch"), "--device", "cuda"]),
        ("torch compiled", [*script("torch"), "--device", "cuda", "--variant", "compiled"]),
    ]
    commands = [(name, command) for name, command in commands if name not in left_out]
    programs = [Program(name, command, number) for number, (name, command) in enumerate(commands)]
    programs = [program for program in programs if is_started(program, steps)]
    for _ in range(ROUNDS):
        for program in programs:
            program.turn(steps)
    for program in programs:
        program.process.stdin.close()
        program.process.wait(timeout=60)
    return programs


def main():
    """Prints a table."""
    ours, *words = sys.argv[1:]
    left_out = [word[1:] for word in words if word.startswith("-")]
    names = [word for word in words if not word.startswith("-")]
    print("| work | framework | step | rounds | ours is faster by | first step | loss |\n|---|---|---:|---:|---:|---:|---:|")
    for name in names or WORKS:
        steps, shown, work = WORKS[name]
        programs = measure(ours, steps, work, left_out)
        medians = {program.name: statistics.median(program.medians) for program in programs}
        for program in programs:
            median, ends = medians[program.name], (min(program.medians), max(program.medians))
            ratio = "" if program.name == "phalanx" or "phalanx" not in medians else f"{median / medians['phalanx']:.2f}x"
            label = f"{program.name} {program.hello['version']}"
            rounds = f"{ends[0]:.2f} .. {ends[1]:.2f} ms"
            print(f"| {shown} | {label} | {median:.2f} ms | {rounds} | {ratio} | {program.first:.1f} s | {program.loss} |", flush=True)


if __name__ == "__main__":
    main()
