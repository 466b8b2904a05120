"""Prints as JSON what TensorBoard's profiler plug-in shows of a run: `python read_as_xprof.py RUN`.

    pip install tensorboard==2.21.0 xprof==2.24.2 "setuptools<81"

Exits with 3 where a package is missing.
"""

import glob
import json
import os
import sys
import types

try:
    from tensorboard.plugins import base_plugin
    from xprof import profile_plugin
    from xprof.convert import raw_to_tool_data
except ImportError:
    sys.exit(3)


def spans_of(trace):
    """Thread, name, begin and length in microseconds of each span."""
    events = trace["traceEvents"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    return [(threads[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e.get("ph") == "X"]


def main():
    folder = sys.argv[1]
    flags = types.SimpleNamespace(master_tpu_unsecure_channel="")
    plugin = profile_plugin.ProfilePlugin(base_plugin.TBContext(logdir=folder, flags=flags))
    runs = sorted(plugin.generate_runs())
    tools = sorted({tool for run in runs for tool in plugin.run_tools_imp(run)})
    paths = glob.glob(os.path.join(folder, "plugins", "profile", "*", "*.xplane.pb"))
    trace, _ = raw_to_tool_data.xspace_to_tool_data(paths, "trace_viewer", {})
    json.dump({"runs": runs, "tools": tools, "spans": spans_of(json.loads(trace))}, sys.stdout)


if __name__ == "__main__":
    main()
