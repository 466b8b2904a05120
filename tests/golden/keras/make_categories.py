"""categories.json: bins and vectors of categories, and boundaries found in data."""

from golden import array, keras, np, tf, write

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


def lookups():
    """Values that are there, unknown ones and the one that stands for nothing, below 0 and beyond 32 bits."""
    vocabulary = [7, -3, 1 << 40, 0, 1000, -(1 << 62)]
    given = np.int64([[7, 7, 5], [-3, 1 << 40, -5], [0, 1000, 9], [-(1 << 62), (1 << 40) + 1, -1]])
    for name, config in {
        "default": {},
        "masked": {"mask_token": 9},
        "several": {"num_oov_indices": 3},
        "all": {"num_oov_indices": 4, "mask_token": 5},
    }.items():
        for mode in MODES:
            settings = {"vocabulary": vocabulary, **config, "output_mode": mode}
            yield record(f"lookup/{name}/{mode}", "IntegerLookup", settings, given)
    for mode in MODES[:2]:
        settings = {"vocabulary": vocabulary, "output_mode": mode}
        yield record(f"lookup/{mode}/rank1", "IntegerLookup", settings, given[:, 0])
        yield record(f"lookup/{mode}/column", "IntegerLookup", settings, given[:, :1])
        yield record(f"lookup/{mode}/rank3", "IntegerLookup", settings, given.reshape(2, 3, 2))
    known = {"vocabulary": vocabulary, "num_oov_indices": 0}
    yield record("lookup/known", "IntegerLookup", known, np.int64([[7, 1000], [0, -3]]))
    small = np.int32([[3, 4, 5], [-1, 0, 2147483647]])
    yield record("lookup/int32", "IntegerLookup", {"vocabulary": [5, 3, -1]}, small)
    yield record("lookup/floats", "IntegerLookup", {"vocabulary": [5, 3, -1, 0]}, np.float32([[3.0, 3.9], [-0.5, -1.5]]))
    for count in (1, 7, 8, 9):
        values = [int(value) for value in np.random.default_rng(count).permutation(count)]
        many = np.arange(-2, count + 2, dtype=np.int32).reshape(-1, 1)
        yield record(f"lookup/many_{count}", "IntegerLookup", {"vocabulary": values}, many)


def hashed():
    """Bins of whole numbers of every length, by every output mode; fingerprints of texts of every length."""
    powers = [sign * (10**digits + add) for digits in range(19) for add in (-1, 0, 1) for sign in (1, -1)]
    given = np.int64([*powers, 2**63 - 1, -(2**63), *np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 64)])
    for num_bins in (1, 2, 3, 1000, 2**31 - 1):
        yield record(f"hashing/{num_bins}", "Hashing", {"num_bins": num_bins}, given)
    for mode in MODES:
        yield record(f"hashing/masked/{mode}", "Hashing", {"num_bins": 7, "mask_value": 99, "output_mode": mode}, given[:60].reshape(20, 3))
    yield record("hashing/masked/1", "Hashing", {"num_bins": 1, "mask_value": 99}, given)
    yield record("hashing/int32", "Hashing", {"num_bins": 50}, np.int32([[0, 1, -1], [2147483647, -2147483648, 12]]))
    yield record("hashing/floats", "Hashing", {"num_bins": 50}, np.float32([[3.9, -3.9, 1e9]]))
    letters = np.random.default_rng(4).integers(32, 127, 300)
    texts = ["".join(map(chr, letters[start : start + length])) for length in range(200) for start in (0, 60)]
    texts += ["é", "Zürich", "東京", "7", "07", " "]
    # Nearly all of the 64 bits.
    prints = tf.strings.to_hash_bucket_fast(texts, 2**63 - 1).numpy()
    yield {"name": "hashes", "hashes": [[text, str(number)] for text, number in zip(texts, prints)]}
    asked = texts[:40] + ["", "rome"]
    layer = layers.Hashing(30, mask_value="")
    yield {"name": "hashed_names", "num_hashes": 30, "asked": asked, "numbers": array(np.asarray(layer(asked)))}


def names():
    """Vocabularies of names that `adapt` finds, and the numbers of these and of others."""
    given = "rome oslo rome Rome bonn oslo é zz 7 07 7.0 [UNK] a-b".split() + ["", "new york", "new york", "rome "]
    for max_tokens in (None, 3, 5, 9, 1000):
        layer = layers.StringLookup(mask_token="", max_tokens=max_tokens)
        layer.adapt(given)
        asked = given + ["paris", "ROME", "0"]
        yield {
            "name": f"names/{max_tokens}",
            "max_tokens": max_tokens,
            "names": given,
            "asked": asked,
            "vocabulary": layer.get_vocabulary(include_special_tokens=False),
            "numbers": array(np.asarray(layer(asked))),
        }


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


def crossed():
    """Numbers of two and three columns as one, below 0 and beyond 32 bits."""
    rng = np.random.default_rng(3)
    columns = [rng.integers(-5, 50, 12) for _ in range(3)]
    columns[0][:2] = [2**40 + 1, -(2**62)]
    cases = {"two": (columns[:2], {"num_bins": 7}), "three": (columns, {"num_bins": 1000}), "one": (columns[:2], {"num_bins": 1})}
    for name, (given, config) in cases.items():
        for rank in ("rank1", "column"):
            shaped = [x if rank == "rank1" else x.reshape(-1, 1) for x in given]
            for mode in ("int", "one_hot")[: 2 if name == "two" else 1]:
                config = {**config, "output_mode": mode}
                output = np.asarray(layers.HashedCrossing(**config)([tf.constant(x) for x in shaped]))
                output = output.astype(np.float32 if mode == "one_hot" else np.int32)
                yield {"name": f"crossed/{name}/{rank}/{mode}", "layer": "HashedCrossing", "config": config, "inputs": [whole(x) for x in shaped], "output": array(output)}


if __name__ == "__main__":
    write("categories", [*bins(), *vectors(), *lookups(), *names(), *hashed(), *adapted(), *crossed()])
