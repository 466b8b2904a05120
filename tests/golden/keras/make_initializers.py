"""initializers.json: each initializer's fans, limit or deviation, and the moments of one Keras draw.

attention_starts.json: the same of the kernels of MultiHeadAttention, whose fans are not those of a convolution.
"""

import math

from golden import array, keras, np, number, write

from keras.src.initializers.random_initializers import compute_fans

SHAPES = {"dense": [64, 32], "conv": [3, 3, 8, 16], "depthwise": [3, 3, 8, 1]}
# The deviation of a standard normal cut at two deviations.
TRUNCATED_STDDEV = 0.87962566103423978


def scaled(name, config):
    """(scale, mode, distribution) of a variance-scaling initializer."""
    if name == "variance_scaling":
        return config["scale"], config["mode"], config["distribution"].removeprefix("truncated_")
    family, distribution = name.split("_")
    scale = {"glorot": 1.0, "he": 2.0, "lecun": 1.0}[family]
    mode = "fan_avg" if family == "glorot" else "fan_in"
    return scale, mode, distribution


def theory(name, config, fan_in, fan_out):
    """The distribution's parameters: bounds that no value passes, and the mean and deviation of the values."""
    if name == "truncated_normal":
        mean, stddev = config.get("mean", 0.0), config.get("stddev", 0.05)
        return truncated(mean, stddev)
    if name == "orthogonal":
        return {"distribution": "orthogonal", "gain": config.get("gain", 1.0)}
    if name in ("zeros", "ones"):
        return {"distribution": "constant", "value": 0.0 if name == "zeros" else 1.0}
    scale, mode, distribution = scaled(name, config)
    variance = scale / {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]
    if distribution == "untruncated_normal":
        # Five deviations, which a draw in two million passes.
        reach = 5 * math.sqrt(variance)
        return {"distribution": "normal", "low": -reach, "high": reach, "mean": 0.0, "stddev": math.sqrt(variance)}
    if distribution == "uniform":
        limit = math.sqrt(3 * variance)
        return {"distribution": "uniform", "low": -limit, "high": limit, "mean": 0.0, "stddev": math.sqrt(variance)}
    return truncated(0.0, math.sqrt(variance) / TRUNCATED_STDDEV)


def truncated(mean, parameter):
    """A normal of deviation `parameter` cut at two deviations: the values' own deviation is smaller."""
    return {
        "distribution": "truncated_normal",
        "low": mean - 2 * parameter,
        "high": mean + 2 * parameter,
        "mean": mean,
        "stddev_parameter": parameter,
        "stddev": parameter * TRUNCATED_STDDEV,
    }


def seen(name, config, shape):
    """Moments of Keras' own draws (eight seeds), which must agree with the theory."""
    seeds = [{}] if name in ("zeros", "ones") else [{"seed": s} for s in range(8)]
    draws = [np.asarray(keras.initializers.get({"class_name": name, "config": {**config, **s}})(shape)) for s in seeds]
    values = np.stack(draws).astype(np.float64)
    out = {
        "mean": number(values.mean()), "stddev": number(values.std()),
        "min": number(values.min()), "max": number(values.max()),
    }
    if name == "orthogonal":
        flat = draws[0].reshape(-1, shape[-1])
        gram = flat.T @ flat if flat.shape[0] >= flat.shape[1] else flat @ flat.T
        out["gram_diagonal"] = array(np.diag(gram)[:4])
        out["gram_off_diagonal_max"] = number(np.abs(gram - np.diag(np.diag(gram))).max())
    return out


def check(record):
    """Stops the generator when theory and Keras' draws disagree."""
    expected, got = record["expected"], record["keras_draw"]
    if "stddev" in expected:
        near = abs(got["stddev"] / expected["stddev"] - 1) < 0.06
        inside = expected["low"] <= got["min"] and got["max"] <= expected["high"]
        if not (near and inside):
            raise ValueError(f"{record['name']}: theory {expected}, keras {got}")


def records():
    """Every initializer on every kernel shape."""
    specs = [(f"{f}_{d}", {}) for f in ("glorot", "he", "lecun") for d in ("uniform", "normal")]
    specs += [("truncated_normal", {}), ("truncated_normal", {"mean": 0.5, "stddev": 0.2})]
    specs += [
        ("variance_scaling", {"scale": 2.0, "mode": "fan_out", "distribution": "truncated_normal"}),
        ("variance_scaling", {"scale": 0.5, "mode": "fan_out", "distribution": "uniform"}),
        ("variance_scaling", {"scale": 1.5, "mode": "fan_avg", "distribution": "untruncated_normal"}),
        ("variance_scaling", {"scale": 3.0, "mode": "fan_in", "distribution": "truncated_normal"}),
    ]
    specs += [("orthogonal", {}), ("orthogonal", {"gain": 2.0}), ("zeros", {}), ("ones", {})]
    for name, config in specs:
        for kernel, shape in SHAPES.items():
            fan_in, fan_out = compute_fans(shape)
            out = {
                "name": "_".join([name, *(f"{k}={v}" for k, v in config.items()), kernel]),
                "initializer": name, "config": config, "kernel": kernel, "shape": shape,
                "fan_in": fan_in, "fan_out": fan_out,
                "expected": theory(name, config, fan_in, fan_out),
                "keras_draw": seen(name, config, shape),
            }
            check(out)
            yield out
    for kernel, shape in {"wide": [8, 32], "vector": [10]}.items():
        fan_in, fan_out = compute_fans(shape)
        yield {
            "name": f"glorot_uniform_{kernel}", "initializer": "glorot_uniform", "config": {}, "kernel": kernel,
            "shape": shape, "fan_in": fan_in, "fan_out": fan_out,
            "expected": theory("glorot_uniform", {}, fan_in, fan_out),
            "keras_draw": seen("glorot_uniform", {}, shape),
        }
    for kernel, shape in {"wide": [8, 32]}.items():
        fan_in, fan_out = compute_fans(shape)
        yield {
            "name": f"orthogonal_{kernel}", "initializer": "orthogonal", "config": {}, "kernel": kernel,
            "shape": shape, "fan_in": fan_in, "fan_out": fan_out,
            "expected": theory("orthogonal", {}, fan_in, fan_out),
            "keras_draw": seen("orthogonal", {}, shape),
        }


def attention_kernels():
    """The kernels of layers of attention that Keras built, with initializers that go by fans and others."""
    # By kernel: its fans where the query has 24 features, the value 12, the key 20, and there are 4 heads.
    fans = {"query": (24, 4 * 8), "key": (20, 4 * 8), "value": (12, 4 * 6), "attention_output": (4 * 6, 10)}
    specs = [(f"{f}_{d}", {}) for f in ("glorot", "he", "lecun") for d in ("uniform", "normal")]
    specs += [("variance_scaling", {"scale": 1.5, "mode": "fan_out", "distribution": "truncated_normal"})]
    specs += [("truncated_normal", {"stddev": 0.02})]
    for name, config in specs:
        kernels = {of: [] for of in fans}
        for _ in range(8):
            initializer = keras.initializers.get({"class_name": name, "config": config})
            layer = keras.layers.MultiHeadAttention(4, 8, value_dim=6, output_shape=10, kernel_initializer=initializer)
            layer.build((None, 5, 24), (None, 7, 12), (None, 7, 20))
            for weight in layer.weights:
                of, kind = weight.path.split("/")[-2:]
                if kind == "kernel":
                    kernels[of].append(weight.numpy())
        for of, (fan_in, fan_out) in fans.items():
            values = np.stack(kernels[of]).astype(np.float64)
            moments = {"mean": values.mean(), "stddev": values.std(), "min": values.min(), "max": values.max()}
            out = {
                "name": f"{name}_{of}", "initializer": name, "config": config, "kernel": of, "shape": list(values.shape[1:]),
                "expected": theory(name, config, fan_in, fan_out),
                "keras_draw": {key: number(value) for key, value in moments.items()},
            }
            check(out)
            yield out


if __name__ == "__main__":
    write("initializers", list(records()))
    write("attention_starts", list(attention_kernels()))
