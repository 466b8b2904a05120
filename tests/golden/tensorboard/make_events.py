"""Writes event files by TensorFlow's own writers.

    pip install tensorflow==2.21.0 tensorboard==2.20.0
    python make_events.py

`events.v2` holds scalars as `tf.summary.scalar` writes them; `session_start.v2` the events by which `tf.compat.v1` marks
the start of a session, at steps 0 and 7; `histograms.v2`, `images.v2`, `texts.v2`, `hparams.v2` and `graph.v2`
what their names say. Wall times are those of the machine: the test takes them from the files.
"""

import pathlib
import sys
import tempfile

import tensorflow as tf
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.plugins.hparams import api as hp
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams import summary as hp_summary

HERE = pathlib.Path(__file__).parent
SCALARS = [
    ("epoch_loss", 0.5, 0),
    ("epoch_accuracy", float("nan"), 0),
    ("epoch_loss", 0.25, 1),
    ("epoch_loss", float("inf"), 2),
    ("epoch_loss", 0.0, 127),
    ("epoch_learning_rate", -1e-3, 128),
    ("epoch_grösse", 1e30, 5_000_000_000),
    ("x" * 200, 3.0, 300),
]
HISTOGRAMS = [[0.1, -0.3, 0.25, 2.0, 0.1], [3.0, 3.0], [], [i * 0.37 for i in range(100)]]


def written(write):
    """The bytes of the one file that a writer leaves in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        (path,) = pathlib.Path(folder).glob("events.out.tfevents.*")
        return path.read_bytes()


def scalars(folder):
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default():
        for tag, value, step in SCALARS:
            tf.summary.scalar(tag, value, step=step)
    writer.close()


def histograms(folder):
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default():
        for step, values in enumerate(HISTOGRAMS):
            tf.summary.histogram("dense/kernel/histogram", tf.constant(values, tf.float32), step=step)
    writer.close()


def images(folder):
    pixels = [[[[0.0], [0.5], [1.0]], [[-1.0], [2.0], [0.25]]], [[[1.0]] * 3] * 2]
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default():
        tf.summary.image("dense/kernel/image", tf.constant(pixels, tf.float32), step=3)
    writer.close()


def texts(folder):
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default():
        tf.summary.text("notes", "a **bold** word", step=0)
        tf.summary.text("notes", "ü", step=300)
    writer.close()


def hparams(folder):
    infos = [api_pb2.HParamInfo(name="learning_rate", type=api_pb2.DATA_TYPE_FLOAT64)]
    name = api_pb2.MetricName(group="validation", tag="epoch_loss")
    metrics = [api_pb2.MetricInfo(name=name, display_name="loss")]
    messages = [
        hp_summary.experiment_pb(infos, metrics, time_created_secs=1.5),
        hp_summary.session_start_pb({"learning_rate": 0.001}, group_name="run-1", start_time_secs=2.5),
        hp_summary.session_start_pb({"optimizer": "adam"}, group_name="run-1", start_time_secs=2.5),
        hp_summary.session_start_pb({"shuffle": True}, group_name="run-1", start_time_secs=2.5),
        hp_summary.session_end_pb(api_pb2.STATUS_SUCCESS, end_time_secs=9.0),
    ]
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default():
        for message in messages:
            tf.summary.experimental.write_raw_pb(message.SerializeToString(), step=0)
    writer.close()


def graph(folder):
    graph = tf.compat.v1.GraphDef()
    graph.versions.producer = 2474
    x = graph.node.add(name="x", op="Input")
    shape = x.attr["_output_shapes"].list.shape.add()
    shape.dim.add(size=-1)
    shape.dim.add(size=4)
    y = graph.node.add(name="dense/y", op="Dense", input=["x"])
    y.attr["activation"].s = b"relu"
    with tf.Graph().as_default():
        writer = tf.compat.v1.summary.FileWriter(folder)
        event = tf.compat.v1.Event(wall_time=5.0, graph_def=graph.SerializeToString())
        writer.add_event(event)
        writer.close()


def session_start(folder):
    with tf.Graph().as_default():
        writer = tf.compat.v1.summary.FileWriter(folder)
        log = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        writer.add_session_log(log, 0)
        writer.add_session_log(log, 7)
        writer.close()


def read(folder):
    """Prints what TensorBoard reads in a folder."""
    # `event_accumulator`, the older one, keeps what a session replaces of scalars that are tensors.
    accumulator = plugin_event_accumulator.EventAccumulator(folder)
    accumulator.Reload()
    for tag in accumulator.Tags()[plugin_event_accumulator.TENSORS]:
        plugin = accumulator.SummaryMetadata(tag).plugin_data.plugin_name
        values = [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in accumulator.Tensors(tag)]
        print(plugin, tag, values)


def main():
    if sys.argv[1:2] == ["read"]:
        return read(sys.argv[2])
    (HERE / "events.v2").write_bytes(written(scalars))
    (HERE / "session_start.v2").write_bytes(written(session_start))
    for write in (histograms, images, texts, hparams, graph):
        (HERE / f"{write.__name__}.v2").write_bytes(written(write))


if __name__ == "__main__":
    main()
