"""Prints as JSON what TensorBoard reads in a folder: `python read_as_tensorboard.py FOLDER`.

    pip install tensorboard==2.20.0 "setuptools<81"

Exits with 3 where the package is missing.
"""

import json
import sys

try:
    from tensorboard.backend.event_processing import plugin_event_accumulator as accumulators
    from tensorboard.backend.event_processing import plugin_event_multiplexer
    from tensorboard.compat.proto import graph_pb2
    from tensorboard.plugins.hparams import metadata as hparams_metadata
    from tensorboard.util import tensor_util
except ImportError:
    sys.exit(3)


def run_of(accumulator):
    run = {"scalars": {}, "histograms": {}, "images": {}, "graph": {}}
    for tag in accumulator.Tags()[accumulators.TENSORS]:
        plugin = accumulator.SummaryMetadata(tag).plugin_data.plugin_name
        events = [(event.step, tensor_util.make_ndarray(event.tensor_proto)) for event in accumulator.Tensors(tag)]
        if plugin == "scalars":
            run["scalars"][tag] = [(step, float(value)) for step, value in events]
        elif plugin == "histograms":
            run["histograms"][tag] = [(step, value.tolist()) for step, value in events]
        elif plugin == "images":
            run["images"][tag] = [(step, int(value[0]), int(value[1])) for step, value in events]
    if accumulator.Tags()[accumulators.GRAPH]:
        graph = graph_pb2.GraphDef.FromString(accumulator.SerializedGraph())
        for node in graph.node:
            shapes = node.attr["_output_shapes"].list.shape
            shapes = [[dim.size for dim in shape.dim] for shape in shapes]
            run["graph"][node.name] = {"op": node.op, "inputs": list(node.input), "shape": shapes}
    return run


def settings_of(accumulator):
    tag = hparams_metadata.SESSION_START_INFO_TAG
    if tag not in accumulator.Tags()[accumulators.TENSORS]:
        return {}
    content = accumulator.SummaryMetadata(tag).plugin_data.content
    info = hparams_metadata.parse_session_start_info_plugin_data(content)
    return {name: value.number_value for name, value in info.hparams.items()}


def main():
    # Keeps all of what there is, where TensorBoard shows a sample.
    everything = {kind: 0 for kind in ("scalars", "histograms", "images", "hparams")}
    multiplexer = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance=everything)
    multiplexer.AddRunsFromDirectory(sys.argv[1])
    multiplexer.Reload()
    accumulators_by_run = {name: multiplexer.GetAccumulator(name) for name in multiplexer.Runs()}
    runs = {name: run_of(accumulator) for name, accumulator in accumulators_by_run.items()}
    settings = settings_of(accumulators_by_run["."]) if "." in accumulators_by_run else {}
    json.dump({"runs": runs, "hparams": settings}, sys.stdout)


if __name__ == "__main__":
    main()
