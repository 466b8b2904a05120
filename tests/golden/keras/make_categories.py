"""categories.json: bins and vectors of categories, and boundaries found in data."""

from golden import array, keras, np, write

layers = keras.layers
MODES = ["int", "one_hot", "multi_hot", "count"]


def whole(values):
    """Integers as JSON, of 64 bits where 32 are too few."""
    values = np.asarray(values)
    wide = {"dtype": "i64"} if values.dtype == np.int64 else {}
    return {**array(values), **wide}


def record(name, layer, config, given):
    """What a layer makes of an array."""
    output = np.asarray(getattr(layers, layer)(**config)(given))
    # Vectors are floats here, whatever Keras' lookups have them as.
    is_vector = config.get("output_mode", "int") != "int" or layer == "CategoryEncoding"
    output = output.astype(np.float32) if is_vector else output
    return {"name": name, "layer": layer, "config": config, "input": whole(given), "output": array(output)}


def bins():
    """Boundaries themselves, equal ones, numbers next to them; every output mode, of every number of dims."""
    at = [-0.5, 0.0, 0.1, 2.0]
    near = np.nextafter(np.float32(at), np.float32([-9, 9, -9, 9]))
    floats = np.concatenate([np.float32(at), near, np.float32([-8, 8, 0.05, 1e30])]).astype(np.float32)
    for mode in MODES:
        config = {"bin_boundaries": at, "output_mode": mode}
        yield record(f"bins/{mode}", "Discretization", config, floats.reshape(4, 3))
    for mode in MODES[:2]:
        config = {"bin_boundaries": at, "output_mode": mode}
        yield record(f"bins/{mode}/rank1", "Discretization", config, floats)
        yield record(f"bins/{mode}/column", "Discretization", config, floats.reshape(12, 1))
        yield record(f"bins/{mode}/rank3", "Discretization", config, floats.reshape(2, 3, 2))
    yield record("bins/one", "Discretization", {"bin_boundaries": [0.1]}, floats.reshape(4, 3))
    yield record("bins/equal", "Discretization", {"bin_boundaries": [0.0, 0.0, 0.1]}, floats.reshape(4, 3))
    # More boundaries than a power of two, and one fewer.
    for count in (7, 8, 9):
        many = np.arange(count * 2 + 3, dtype=np.float32).reshape(-1, 1) / 2 - 1
        yield record(f"bins/many_{count}", "Discretization", {"bin_boundaries": [float(i) for i in range(count)]}, many)
    integers = np.int32([[-1, 0], [1, 2], [3, 16777217]])
    yield record("bins/integers", "Discretization", {"bin_boundaries": [0.5, 2.0, 16777216.0]}, integers)


def vectors():
    """Numbers that are there once, twice and not at all."""
    given = np.int32([[3, 0, 3], [1, 2, 0], [2, 2, 2]])
    for mode in MODES[1:]:
        yield record(f"vectors/{mode}", "CategoryEncoding", {"num_tokens": 4, "output_mode": mode}, given)
        yield record(f"vectors/{mode}/column", "CategoryEncoding", {"num_tokens": 4, "output_mode": mode}, given[:, :1])
    yield record("vectors/one_hot/rank1", "CategoryEncoding", {"num_tokens": 5, "output_mode": "one_hot"}, given[0])
    yield record("vectors/default", "CategoryEncoding", {"num_tokens": 6}, given)
    yield record("vectors/floats", "CategoryEncoding", {"num_tokens": 4}, given.astype(np.float32))


def adapted():
    """Boundaries that `adapt` finds, with so small an `epsilon` that all values count."""
    rng = np.random.default_rng(11)
    data = {
        "few": np.float32([3, 1, 2, 5]),
        "equal": np.float32([1, 1, 1, 1, 7, 1, 1, 2]),
        "normal": rng.standard_normal(1001).astype(np.float32),
        "skewed": np.exp(3 * rng.standard_normal(257)).astype(np.float32),
    }
    for name, values in data.items():
        for num_bins in (2, 3, 4, 10):
            if num_bins > len(values):
                continue
            layer = layers.Discretization(num_bins=num_bins, epsilon=1e-6)
            layer.adapt(values)
            boundaries = array(np.float32(layer.bin_boundaries))
            yield {"name": f"adapted/{name}/{num_bins}", "num_bins": num_bins, "values": array(values), "bin_boundaries": boundaries}


if __name__ == "__main__":
    write("categories", [*bins(), *vectors(), *adapted()])
