"""TensorFlow (Keras) on workers: python workers_tf.py MODEL BATCH WORKERS (see README.md).

`MultiWorkerMirroredStrategy` with its RING. This process is the first worker; it starts the others, and tells them the turns by
their input.
"""

import json
import os
import socket
import subprocess
import sys

import replicas

COUNT = replicas.ASKED.replicas
RANK = int(os.environ.get("BENCH_RANK", "0"))


def start_others():
    """Gives the cluster to this process and starts the others with it; their processes."""
    sockets = [socket.socket() for _ in range(COUNT)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    workers = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()

    def config(rank):
        return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})

    os.environ["TF_CONFIG"] = config(0)
    return [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, "BENCH_RANK": str(rank), "TF_CONFIG": config(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(1, COUNT)
    ]


# The others inherit the processors of all, so they start before this process keeps to its own.
OTHERS = start_others() if RANK == 0 else []
os.sched_setaffinity(0, {replicas.PROCESSORS[RANK]})

import scaling_tf  # noqa: E402
import tensorflow as tf  # noqa: E402

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


def stepper(asked):
    """A function that begins a step of all workers and gives its loss."""
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        network = scaling_tf.build(asked.model)
        optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(network.trainable_variables)
        loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    x, y = map(tf.convert_to_tensor, replicas.data(asked, RANK))

    def on_replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of(y, network(x, training=True))) / (COUNT * asked.batch)
        optimizer.apply_gradients(zip(tape.gradient(loss, network.trainable_variables), network.trainable_variables))
        return loss

    @tf.function
    def step(x, y):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(on_replica, args=(x, y)), axis=None)

    return lambda: step(x, y)


def tell(count):
    """The others take this turn too."""
    for other in OTHERS:
        other.stdin.write(f"{count}\n")
        other.stdin.flush()


def main():
    """Serves steps; a worker that this program started gets its turns from it."""
    step = stepper(replicas.ASKED)
    replicas.serve("tf", tf.__version__, "MWMS", step, before=tell)
    for other in OTHERS:
        other.stdin.close()
    # TensorFlow's servers do not end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main()
