"""What Keras' timeseries_dataset_from_array makes of a series of numbers that count up, and of targets that do from 1000 on: windows.json."""

from golden import keras, np, write

# rows, whether a row is one number, targets, length, stride, sampling rate, start, end
CASES = [
    (10, True, None, 3, 1, 1, None, None),
    (10, False, None, 3, 1, 1, None, None),
    (23, False, None, 4, 3, 2, None, None),
    (23, False, 20, 4, 2, 2, None, None),
    (23, True, 19, 4, 1, 1, None, None),
    (30, False, 30, 5, 2, 3, 4, 25),
    (30, True, 30, 1, 7, 1, 3, None),
    (30, True, None, 6, 6, 1, None, 29),
    (12, False, 12, 12, 1, 1, None, None),
    (40, False, 40, 3, 4, 5, 2, 39),
]


def record(rows, flat, targets, length, stride, rate, start, end):
    data = np.arange(rows if flat else 2 * rows, dtype="float32")
    data = data if flat else data.reshape(rows, 2)
    labels = None if targets is None else 1000 + np.arange(targets)
    config = {"sequence_stride": stride, "sampling_rate": rate, "start_index": start, "end_index": end}
    made = keras.utils.timeseries_dataset_from_array(data, labels, length, batch_size=1, **config)
    windows = []
    for batch in made:
        x, y = (batch, None) if targets is None else batch
        windows.append({"x": x.numpy()[0].tolist(), "y": [] if y is None else y.numpy().tolist()})
    name = f"{rows}/{'flat' if flat else 'two'}/{targets}/{length}/{stride}/{rate}/{start}/{end}"
    return {"name": name, "rows": rows, "flat": flat, "targets": targets, "sequence_length": length, **config, "windows": windows}


if __name__ == "__main__":
    write("windows", [record(*case) for case in CASES])
