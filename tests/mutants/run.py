#!/usr/bin/env python3
"""Puts the mistakes of list.txt into a copy of the repository and prints which of them no test notices.

    tests/mutants/run.py COPY [FIRST [LAST]] > results.md

COPY is a clean checkout that may be changed (`git worktree add --detach target/mutants`). All mistakes are compiled at once, each
behind a condition on PHALANX_MUTANT, so there is one build; then the tests named for a file run once for each of its mistakes, until one
fails. A run of more than LIMIT seconds counts as noticed. The tests must pass without a mistake: that is tried first.
"""

import json
import os
import pathlib
import subprocess
import sys

LIMIT = 600
HERE = pathlib.Path(__file__).parent


def listed():
    """(number, file, tests, right, occurrence, wrong) of each mistake."""
    mutants, file, tests, right = [], None, None, None
    for line in (HERE / "list.txt").read_text().splitlines():
        kind, text = line[:2], line[2:]
        if kind == "= ":
            file, tests = (part.strip() for part in text.split("|"))
        elif kind == "- ":
            right = text
        elif kind == "+ ":
            right, _, occurrence = right.partition(" #")
            mutants.append((len(mutants) + 1, file, tests.split(), right, int(occurrence or 0), text))
    return mutants


def pattern(right):
    """Where rustfmt may have put white space."""
    import re

    parts = [re.escape(part) for part in re.findall(r"\w+|\W", right) if not part.isspace()]
    return re.compile(r"\s*".join(parts).replace(r"\)", r",?\s*\)"))


def inject(copy, mutants):
    for file in dict.fromkeys(mutant[1] for mutant in mutants):
        path = copy / file
        text = path.read_text()
        head, mark, tail = text.partition("#[cfg(test)]")
        places = []
        for number, _, _, right, occurrence, wrong in (m for m in mutants if m[1] == file):
            found = list(pattern(right).finditer(head))
            if occurrence == 0 and len(found) != 1 or occurrence > len(found):
                sys.exit(f"{file}: `{right}` is there {len(found)} times")
            where = found[max(occurrence, 1) - 1]
            changed = f"(if crate::mutant({number}) {{ {wrong} }} else {{ {where[0]} }})"
            places.append((where.start(), where.end(), changed))
        for start, end, changed in sorted(places, reverse=True):
            head = head[:start] + changed + head[end:]
        path.write_text(head + mark + tail)
    library = copy / "crates/phalanx/src/lib.rs"
    library.write_text(
        library.read_text()
        + """
pub(crate) fn mutant(number: u32) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
    let chosen = || std::env::var("PHALANX_MUTANT").ok()?.parse().ok();
    *CHOSEN.get_or_init(chosen) == Some(number)
}
"""
    )


def build(copy, tests):
    names = sorted({test.split(":")[0] for test in tests})
    targets = [part for name in names for part in (["--lib"] if name == "lib" else ["--test", name])]
    command = ["cargo", "test", "-p", "phalanx", "--no-run", "--message-format=json", *targets]
    built = subprocess.run(command, cwd=copy, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        sys.exit("the copy does not compile")
    binaries = {}
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            kind = message["target"]["kind"][0]
            binaries["lib" if kind == "lib" else message["target"]["name"]] = message["executable"]
    return binaries


def run(copy, binaries, test, number):
    """The first test that fails, if one does."""
    name, _, filtered = test.partition(":")
    command = [binaries[name], *([filtered] if filtered else [])]
    environment = {**os.environ, "PHALANX_MUTANT": str(number)}
    try:
        ran = subprocess.run(
            command, cwd=copy / "crates/phalanx", capture_output=True, text=True, env=environment, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return f"{name} did not end"
    if ran.returncode == 0:
        return None
    failed = [line[5:-11] for line in ran.stdout.splitlines() if line.startswith("test ") and line.endswith("... FAILED")]
    return f"{name}: {failed[0]}" if failed else f"{name} ended with {ran.returncode}"


def main():
    copy = pathlib.Path(sys.argv[1]).resolve()
    mutants = listed()
    inject(copy, mutants)
    first, last = (int(sys.argv[2]) if len(sys.argv) > 2 else 1), (int(sys.argv[3]) if len(sys.argv) > 3 else len(mutants))
    chosen = [mutant for mutant in mutants if first <= mutant[0] <= last]
    every = {test for mutant in chosen for test in mutant[2]}
    binaries = build(copy, every)
    for test in sorted(every):
        failed = run(copy, binaries, test, 0)
        if failed:
            sys.exit(f"{test} fails without a mistake: {failed}")
    survivors = 0
    for number, file, tests, right, _, wrong in chosen:
        failures = (run(copy, binaries, test, number) for test in tests)
        noticed = next((failure for failure in failures if failure), None)
        survivors += noticed is None
        short = file.removeprefix("crates/phalanx/src/")
        cells = [str(number), short, f"`{right}`", f"`{wrong}`", noticed or "**none**"]
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |", flush=True)
    print(f"{len(chosen)} mistakes, {survivors} not noticed", file=sys.stderr)


main()
