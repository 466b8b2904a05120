"""TensorFlow's ParameterServerStrategy on this machine: `servers_tf.py mlp|recommender`.

Two workers, one server, a coordinator in this process. Prints a JSON line: steps a second of all workers, and the seconds from the
start to the end of the first step. Data cost nothing; each scheduled function is one step, the usual way.
"""

import json
import os
import socket
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
START = time.time()
MODEL = sys.argv[1]
WORKERS, SERVERS, BATCH, RATE, ROWS = 2, 1, 128, 0.01, 1_000_000


def ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found


def serve():
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    config = tf.compat.v1.ConfigProto()
    # The tutorial's advice: with one thread the first step hangs.
    config.inter_op_parallelism_threads = 4
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        config=config,
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        start=True,
    )
    server.join()


def variables(tf):
    def normal(*dims):
        return tf.Variable(tf.random.normal(dims, stddev=0.05))

    def zeros(*dims):
        return tf.Variable(tf.zeros(dims))

    if MODEL == "mlp":
        return [], [normal(784, 128), zeros(128), normal(128, 10), zeros(10)]
    towers = [(normal(32, 64), zeros(64), normal(64, 32), zeros(32)) for _ in range(2)]
    return [normal(ROWS, 32), normal(ROWS, 32)], [value for tower in towers for value in tower]


def data(tf):
    if MODEL == "mlp":
        x = tf.random.normal((BATCH, 784))
        y = tf.random.uniform((BATCH,), maxval=10, dtype=tf.int32)
        return tf.data.Dataset.from_tensors(((x,), y)).repeat().prefetch(4)
    ids = [tf.random.uniform((64, BATCH), maxval=ROWS, dtype=tf.int64) for _ in range(2)]
    y = tf.random.uniform((64, BATCH), maxval=2, dtype=tf.int32)
    return tf.data.Dataset.from_tensor_slices((tuple(ids), y)).repeat().prefetch(4)


def loss_of(tf, tables, dense, x, y):
    nn = tf.nn
    if MODEL == "mlp":
        logits = nn.relu(x[0] @ dense[0] + dense[1]) @ dense[2] + dense[3]
        return tf.reduce_mean(nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    vectors = []
    for at, ids in enumerate(x):
        a, b, c, d = dense[4 * at : 4 * at + 4]
        vectors.append(nn.relu(nn.embedding_lookup(tables[at], ids) @ a + b) @ c + d)
    score = tf.reduce_sum(vectors[0] * vectors[1], 1)
    y = tf.cast(y, tf.float32)
    return tf.reduce_mean(nn.sigmoid_cross_entropy_with_logits(y, score))


def coordinate(cluster):
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        tables, dense = variables(tf)
    batches = iter(
        coordinator.create_per_worker_dataset(
            lambda: strategy.distribute_datasets_from_function(lambda _: data(tf))
        )
    )

    def replica(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(tf, tables, dense, x, y)
        for variable, gradient in zip(tables + dense, tape.gradient(loss, tables + dense)):
            if isinstance(gradient, tf.IndexedSlices):
                variable.scatter_sub(tf.IndexedSlices(RATE * gradient.values, gradient.indices))
            else:
                variable.assign_sub(RATE * gradient)
        return loss

    @tf.function
    def step(iterator):
        return strategy.run(replica, args=next(iterator))

    coordinator.schedule(step, args=(batches,))
    coordinator.join()
    first = time.time() - START
    for _ in range(50):
        coordinator.schedule(step, args=(batches,))
    coordinator.join()
    rates = []
    for _ in range(4):
        begun = time.perf_counter()
        for _ in range(300):
            coordinator.schedule(step, args=(batches,))
        coordinator.join()
        rates.append(300 / (time.perf_counter() - begun))
    rates.sort()
    print(json.dumps({"steps_per_second": (rates[1] + rates[2]) / 2, "first_step": first}), flush=True)


def main():
    if "TF_CONFIG" in os.environ:
        serve()
    free = ports(WORKERS + SERVERS)
    addresses = [f"127.0.0.1:{port}" for port in free]
    cluster = {"worker": addresses[:WORKERS], "ps": addresses[WORKERS:]}
    others = []
    for kind, tasks in cluster.items():
        for index in range(len(tasks)):
            config = {"cluster": cluster, "task": {"type": kind, "index": index}}
            environment = dict(os.environ, TF_CONFIG=json.dumps(config))
            command = [sys.executable, *sys.argv]
            others.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
    try:
        coordinate(cluster)
    finally:
        for other in others:
            other.kill()
    # TensorFlow's threads wait for servers that are gone.
    os._exit(0)


main()
