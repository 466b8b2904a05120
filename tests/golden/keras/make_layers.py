"""layers.json: outputs of layers, activations and regularizers, and the gradients of sum(output * cotangent)."""

from golden import array, arrays, keras, np, number, tf, write

from keras.src.applications.convnext import LayerScale, StochasticDepth
from keras.src.applications.inception_resnet_v2 import CustomScaleLayer

layers = keras.layers
# Layers of Keras that are beside the models which are made of them.
OF_MODELS = {"LayerScale": LayerScale, "StochasticDepth": StochasticDepth, "CustomScaleLayer": CustomScaleLayer}


class Draw:
    """Deterministic f32 arrays: a fresh stream for every record, so that records do not depend on each other."""

    def __init__(self, name):
        self.rng = np.random.default_rng([ord(c) for c in name])

    def normal(self, shape, scale=1.0):
        """Normal values of the given deviation."""
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def weight(self, path, shape):
        """A weight's value: variances and scales positive, everything else normal."""
        if any(part in path for part in ("variance", "gamma")):
            return self.rng.uniform(0.5, 1.5, shape).astype(np.float32)
        return self.normal(shape, 0.5)


def name_of(weight):
    """The name of a weight, of which Keras' LayerScale gives none."""
    return "gamma" if weight.name.startswith("variable") else weight.name


def weight_array(weight):
    """A weight as JSON, a count as the integer of 64 bits that it is."""
    return {**array(weight.numpy()), **({"dtype": "i64"} if weight.dtype == "int64" else {})}


def made(layer, config):
    """A layer of Keras, perhaps with another in it, which is `{class: settings}`."""
    settings = {key: made(*list(value.items())[0]) if key == "layer" else value for key, value in config.items()}
    return (OF_MODELS.get(layer) or getattr(layers, layer))(**settings)


def run(name, layer, config, inputs, training, mask=None):
    """The record of one layer on `inputs` (arrays, or shapes to draw)."""
    draw = Draw(name.removesuffix("_training").removesuffix("_inference"))
    inputs = [x if isinstance(x, np.ndarray) else draw.normal(x) for x in inputs]
    built = made(layer, config)
    given = [tf.convert_to_tensor(x) for x in inputs]
    argument = given if len(given) > 1 else given[0]
    built(argument)
    for weight in built.weights:
        weight.assign(draw.weight(name_of(weight), weight.shape))
    if layer == "Normalization":
        built.finalize_state()
    before = [(name_of(w), weight_array(w)) for w in built.weights]
    # Batch normalization's two modes differ; the other layers here take no such argument.
    mode = {"training": training} if layer in ("BatchNormalization", "TimeDistributed") else {}
    masked = {} if mask is None else {"mask": array(mask)}
    if mask is not None:
        mode["mask"] = tf.convert_to_tensor(mask)
    # Weights are always watched as trainable, moving statistics are not.
    with tf.GradientTape() as tape:
        tape.watch(given)
        output = built(argument, **mode)
        cotangent = draw.normal(output.shape)
        total = tf.reduce_sum(output * cotangent)
    differentiable = [x for x in given if x.dtype.is_floating]
    trainable = built.trainable_weights
    gradients = tape.gradient(total, differentiable + [w.value for w in trainable])
    gradients = [tf.convert_to_tensor(g).numpy() for g in gradients]
    return {
        "name": name,
        "layer": layer,
        "config": config,
        "training": training,
        "inputs": arrays(inputs),
        **masked,
        "weights": [{"name": n, "value": v} for n, v in before],
        "output": array(output.numpy()),
        "cotangent": array(cotangent),
        "input_gradients": arrays(gradients[: len(differentiable)]),
        "weight_gradients": [
            {"name": name_of(w), "value": array(g)} for w, g in zip(trainable, gradients[len(differentiable) :])
        ],
        "weights_after": [{"name": w.name, "value": weight_array(w)} for w in built.non_trainable_weights],
    }


def dense_and_convolution():
    """(name, layer, config, inputs)."""
    yield "dense", "Dense", {"units": 3}, [(4, 5)]
    yield "dense_relu_no_bias", "Dense", {"units": 3, "activation": "relu", "use_bias": False}, [(4, 5)]
    yield "dense_rank3", "Dense", {"units": 3}, [(2, 3, 4)]
    image = [(2, 6, 5, 2)]
    convolutions = {
        "valid": {"kernel_size": 3},
        "same": {"kernel_size": 3, "padding": "same"},
        "even_kernel_same": {"kernel_size": [2, 4], "padding": "same"},
        "stride_valid": {"kernel_size": 3, "strides": 2},
        "stride_same": {"kernel_size": 3, "strides": 2, "padding": "same"},
        "strides_differ_same": {"kernel_size": [3, 2], "strides": [2, 1], "padding": "same"},
        "dilation_same": {"kernel_size": 3, "dilation_rate": 2, "padding": "same"},
        "dilation_valid": {"kernel_size": 2, "dilation_rate": [2, 1]},
        "groups": {"kernel_size": 3, "groups": 2, "padding": "same"},
        "groups_stride_same": {"kernel_size": 3, "groups": 2, "strides": 2, "padding": "same"},
        "one_by_one": {"kernel_size": 1},
        "relu": {"kernel_size": 3, "activation": "relu"},
        "no_bias": {"kernel_size": 3, "use_bias": False, "padding": "same"},
    }
    for name, config in convolutions.items():
        yield f"conv2d_{name}", "Conv2D", {"filters": 4, **config}, image
    depthwise = {
        "valid": {"kernel_size": 3},
        "same": {"kernel_size": 3, "padding": "same"},
        "stride_same": {"kernel_size": 3, "strides": 2, "padding": "same"},
        "multiplier": {"kernel_size": 3, "depth_multiplier": 2},
        "multiplier_stride_same": {"kernel_size": 3, "strides": 2, "padding": "same", "depth_multiplier": 2},
        "dilation_same": {"kernel_size": 3, "dilation_rate": 2, "padding": "same"},
    }
    for name, config in depthwise.items():
        yield f"depthwise_{name}", "DepthwiseConv2D", config, image
        yield f"depthwise_conv1d_{name}", "DepthwiseConv1D", config, [(2, 7, 2)]


def einsums():
    """(name, layer, config, inputs) of dense layers by an equation: dims kept, joined, split, summed, turned; a kernel for each step; dots."""
    sequence, heads = (2, 3, 4), (2, 3, 2, 4)
    cases = {
        "vectors": ("ab,bc->ac", 3, "c", (4, 5)),
        "steps": ("abc,cd->abd", [None, 5], "d", sequence),
        "to_heads": ("abc,cde->abde", [None, 2, 3], "de", sequence),
        "bias_of_heads": ("abc,cde->abde", [None, 2, 3], "d", sequence),
        "from_heads": ("abcd,cde->abe", [None, 5], None, heads),
        "turned": ("abc,cd->adb", [5, 3], "b", sequence),
        "of_each_step": ("abc,bcd->abd", [3, 5], "bd", sequence),
        "of_each_place": ("abc,bc->abc", [3, 4], "bc", sequence),
        "over_steps": ("abc,bd->adc", [5, None], "d", sequence),
        "summed": ("abc,cd->ad", 5, "d", sequence),
        "outer": ("abc,d->abdc", [None, 5, None], None, sequence),
        "dots_first": ("...x,xy->...y", 5, "y", sequence),
        "dots_first_alone": ("...x,xy->...y", [5], None, (4, 3)),
        "dots_first_of_four": ("...xy,yxz->...zx", [5, 2], "z", heads),
        "dots_for_no_dim": ("...xy,yz->...xz", [5], "z", (4, 3)),
        "dots_last": ("ab...,bc->ac...", 5, "c", heads),
    }
    for name, (equation, shape, bias, given) in cases.items():
        config = {"equation": equation, "output_shape": shape, "bias_axes": bias}
        yield f"einsum_dense_{name}", "EinsumDense", {**config, "activation": "tanh"}, [given]


def sequences_and_larger_images():
    """(name, layer, config, inputs) of convolutions and pooling of steps, and of layers that make images larger."""
    steps = {
        "valid": {"kernel_size": 3},
        "same": {"kernel_size": 4, "padding": "same"},
        "causal": {"kernel_size": 3, "padding": "causal"},
        "causal_dilation": {"kernel_size": 2, "padding": "causal", "dilation_rate": 3},
        "causal_stride": {"kernel_size": 3, "padding": "causal", "strides": 2},
        "stride_same": {"kernel_size": 3, "padding": "same", "strides": 2},
        "groups": {"kernel_size": 3, "groups": 2, "padding": "same"},
        "relu_no_bias": {"kernel_size": 2, "activation": "relu", "use_bias": False},
    }
    for name, config in steps.items():
        yield f"conv1d_{name}", "Conv1D", {"filters": 4, **config}, [(2, 7, 2)]
    transposed = {
        "valid": {"kernel_size": 3},
        "same": {"kernel_size": 3, "padding": "same"},
        "stride_valid": {"kernel_size": 3, "strides": 2},
        "stride_same": {"kernel_size": 3, "strides": 2, "padding": "same"},
        "even_stride_same": {"kernel_size": [4, 2], "strides": [2, 3], "padding": "same"},
        "window_below_stride": {"kernel_size": 1, "strides": 2},
        "window_below_stride_same": {"kernel_size": 1, "strides": 3, "padding": "same"},
        "relu_no_bias": {"kernel_size": 3, "strides": 2, "activation": "relu", "use_bias": False},
        "larger_valid": {"kernel_size": 3, "strides": 3, "output_padding": 2},
        "larger_valid_even": {"kernel_size": 4, "strides": 2, "output_padding": 1},
        "larger_by_0": {"kernel_size": 2, "strides": 4, "output_padding": 0},
        "larger_same": {"kernel_size": 3, "strides": 2, "padding": "same", "output_padding": 1},
        "larger_same_by_0": {"kernel_size": 5, "strides": 3, "padding": "same", "output_padding": 0},
        "larger_same_even": {"kernel_size": 4, "strides": 3, "padding": "same", "output_padding": 1},
    }
    for name, config in transposed.items():
        yield f"conv2d_transpose_{name}", "Conv2DTranspose", {"filters": 3, **config}, [(2, 4, 3, 2)]
        if name.startswith("even"):
            config = {**config, "kernel_size": 4, "strides": 3}
        yield f"conv1d_transpose_{name}", "Conv1DTranspose", {"filters": 3, **config}, [(2, 4, 2)]
        if name.startswith("even"):
            config = {**config, "kernel_size": [4, 2, 3], "strides": [2, 3, 1]}
        # TensorFlow on a CPU centers windows below their strides in the gradient of volumes, but not in the output.
        if name != "window_below_stride_same":
            yield f"conv3d_transpose_{name}", "Conv3DTranspose", {"filters": 2, **config}, [(1, 2, 3, 1, 2)]
    for name, config in {"valid": {"kernel_size": 3}, "multiplier_stride_same": {
        "kernel_size": 3, "strides": 2, "padding": "same", "depth_multiplier": 2, "activation": "relu",
    }}.items():
        yield f"separable_{name}", "SeparableConv2D", {"filters": 3, **config}, [(2, 6, 5, 2)]
        yield f"separable_conv1d_{name}", "SeparableConv1D", {"filters": 3, **config}, [(2, 7, 2)]
    windows = {
        "valid": {"pool_size": 2},
        "overlap_same": {"pool_size": 3, "strides": 2, "padding": "same"},
        "stride_one_same": {"pool_size": 2, "strides": 1, "padding": "same"},
    }
    for kind in ("Max", "Average"):
        for name, config in windows.items():
            yield f"{kind.lower()}_pooling1d_{name}", f"{kind}Pooling1D", config, [(2, 7, 3)]
    # Windows side by side, of two sizes, all of one element, more of them than elements.
    for kind in ("Max", "Average"):
        # TensorFlow's gradient of the maximum of all is not of any number on a CPU.
        for size in (2, 3, 5, 7, 9) if kind == "Max" else (1, 2, 3, 5, 7, 9):
            yield f"adaptive_{kind.lower()}_pooling1d_{size}", f"Adaptive{kind}Pooling1D", {"output_size": size}, [(2, 7, 3)]
        for size in ([2, 5], [3, 4], [5, 7]):
            name = f"adaptive_{kind.lower()}_pooling_{size[0]}"
            yield name, f"Adaptive{kind}Pooling2D", {"output_size": size}, [(2, 5, 6, 2)]
        yield f"adaptive_{kind.lower()}_pooling3d", f"Adaptive{kind}Pooling3D", {"output_size": [2, 3, 1]}, [(2, 3, 4, 5, 2)]
    yield "up_sampling", "UpSampling2D", {}, [(2, 3, 2, 2)]
    yield "up_sampling_sizes", "UpSampling2D", {"size": [3, 1]}, [(2, 3, 2, 2)]
    for size in (2, 3, [4, 2]):
        name = f"up_sampling_bilinear_{size}".replace(" ", "")
        yield name, "UpSampling2D", {"size": size, "interpolation": "bilinear"}, [(2, 3, 4, 2)]


def pooling():
    """(name, layer, config, inputs)."""
    windows = {
        "valid": {"pool_size": 2},
        "same": {"pool_size": 2, "padding": "same"},
        "overlap_valid": {"pool_size": 3, "strides": 2},
        "overlap_same": {"pool_size": 3, "strides": 2, "padding": "same"},
        "stride_one_same": {"pool_size": 3, "strides": 1, "padding": "same"},
        "oblong_same": {"pool_size": [3, 2], "strides": [1, 2], "padding": "same"},
    }
    for kind in ("Max", "Average"):
        for name, config in windows.items():
            yield f"{kind.lower()}_pooling_{name}", f"{kind}Pooling2D", config, [(2, 7, 5, 2)]
            if name in ("same", "overlap_same"):
                yield f"{kind.lower()}_pooling_{name}_even", f"{kind}Pooling2D", config, [(1, 6, 4, 2)]
        yield f"global_{kind.lower()}_pooling", f"Global{kind}Pooling2D", {}, [(2, 4, 3, 2)]
        yield f"global_{kind.lower()}_pooling_keepdims", f"Global{kind}Pooling2D", {"keepdims": True}, [(2, 4, 3, 2)]


def volumes():
    """(name, layer, config, inputs) of convolutions and pooling of volumes."""
    volume = [(2, 4, 5, 3, 2)]
    convolutions = {
        "valid": {"kernel_size": 2},
        "same": {"kernel_size": 3, "padding": "same"},
        "sizes_differ": {"kernel_size": [1, 3, 2], "activation": "relu"},
        "strides_valid": {"kernel_size": [2, 3, 1], "strides": [2, 1, 3]},
        "stride_same": {"kernel_size": [3, 2, 3], "strides": 2, "padding": "same"},
        "dilation_same": {"kernel_size": [2, 2, 3], "dilation_rate": [2, 3, 1], "padding": "same"},
        "dilation_valid": {"kernel_size": 2, "dilation_rate": 2},
        "groups_stride": {"filters": 4, "kernel_size": 2, "groups": 2, "strides": 2},
        "no_bias": {"kernel_size": [4, 2, 2], "use_bias": False, "padding": "same"},
    }
    for name, config in convolutions.items():
        yield f"conv3d_{name}", "Conv3D", {"filters": 3, **config}, volume
    windows = {
        "valid": {"pool_size": 2},
        "same": {"pool_size": 2, "padding": "same"},
        "overlap_valid": {"pool_size": [2, 3, 2], "strides": [1, 2, 1]},
        "overlap_same": {"pool_size": 3, "strides": 2, "padding": "same"},
        "sizes_differ_same": {"pool_size": [3, 2, 1], "strides": [1, 2, 1], "padding": "same"},
    }
    # Not tried: windows below their strides, `same`, which TensorFlow on a CPU centers, with gradients of others; equal elements in a
    # window, which all have the whole gradient there.
    for kind in ("Max", "Average"):
        for name, config in windows.items():
            yield f"{kind.lower()}_pooling3d_{name}", f"{kind}Pooling3D", config, [(2, 4, 5, 3, 2)]
        yield f"global_{kind.lower()}_pooling3d", f"Global{kind}Pooling3D", {}, [(2, 2, 3, 2, 2)]
        yield f"global_{kind.lower()}_pooling3d_keepdims", f"Global{kind}Pooling3D", {"keepdims": True}, [(2, 2, 3, 2, 2)]


def edges():
    """(name, layer, config, inputs) of layers that add or cut edges, or repeat elements, in other directions than those of images."""
    yield "up_sampling1d", "UpSampling1D", {}, [(2, 3, 2)]
    yield "up_sampling1d_size", "UpSampling1D", {"size": 3}, [(2, 3, 2)]
    yield "up_sampling3d", "UpSampling3D", {}, [(1, 2, 2, 1, 2)]
    yield "up_sampling3d_sizes", "UpSampling3D", {"size": [2, 1, 3]}, [(1, 2, 3, 2, 2)]
    ends, sides = [2, 1], [[0, 1], [2, 0], [1, 1]]
    inputs = [(2, 5, 2)], [(1, 4, 3, 2)], [(1, 3, 4, 3, 2)]
    for layer, setting in (("ZeroPadding", "padding"), ("Cropping", "cropping")):
        name = setting if layer == "Cropping" else "zero_padding"
        for number, shapes_of in enumerate(inputs, 1):
            each = [1, 0, 1][:number] if number > 1 else ends
            for form, value in {"default": None, "one": 1, "each": each, "sides": sides[:number]}.items():
                if number == 1 and form == "sides" or (layer, number, form) == ("ZeroPadding", 2, "one"):
                    continue
                config = {} if value is None else {setting: value}
                yield f"{name}{number}d_{form}", f"{layer}{number}D", config, shapes_of


def shapes():
    """(name, layer, config, inputs) of the layers that only move values."""
    yield "flatten", "Flatten", {}, [(2, 2, 3, 2)]
    yield "reshape", "Reshape", {"target_shape": [3, -1]}, [(2, 2, 3, 2)]
    yield "rescaling", "Rescaling", {"scale": 0.5, "offset": -1.0}, [(2, 3)]
    yield "rescaling_channels", "Rescaling", {"scale": [0.5, 2.0, -1.0], "offset": [0.0, 1.0, -3.0]}, [(2, 2, 3)]
    yield "zero_padding", "ZeroPadding2D", {"padding": 1}, [(1, 2, 3, 2)]
    yield "zero_padding_pairs", "ZeroPadding2D", {"padding": [[0, 1], [2, 0]]}, [(1, 2, 3, 2)]
    yield "add", "Add", {}, [(2, 3), (2, 3), (2, 3)]
    for kind in ("Multiply", "Average", "Maximum", "Minimum"):
        yield kind.lower(), kind, {}, [(2, 3), (2, 3), (2, 3)]
    yield "multiply_stretched", "Multiply", {}, [(2, 2, 3), (2, 1, 3)]
    yield "subtract", "Subtract", {}, [(2, 3), (2, 3)]
    yield "permute", "Permute", {"dims": [3, 1, 2]}, [(2, 2, 3, 4)]
    yield "repeat_vector", "RepeatVector", {"n": 3}, [(2, 4)]
    yield "concatenate", "Concatenate", {}, [(2, 3), (2, 2)]
    yield "concatenate_axis_1", "Concatenate", {"axis": 1}, [(2, 1, 3), (2, 2, 3)]


def slopes():
    """(name, layer, config, inputs) of rectifiers with slopes that are learnt."""
    yield "p_relu", "PReLU", {}, [(3, 4)]
    yield "p_relu_image", "PReLU", {}, [(2, 3, 2, 2)]
    yield "p_relu_shared", "PReLU", {"shared_axes": [1, 2]}, [(2, 3, 2, 2)]
    yield "p_relu_shared_axis", "PReLU", {"shared_axes": 2}, [(2, 3, 4)]
    yield "p_relu_all", "PReLU", {"shared_axes": [1, 2]}, [(2, 3, 4)]
    yield "p_relu_at_zero", "PReLU", {}, [np.array([[0.0, -1.0, 2.0], [1.0, 0.0, 0.0]], np.float32)]


def residuals():
    """(name, layer, config, inputs) of what is at the end of residual branches."""
    yield "layer_scale", "LayerScale", {"init_values": 0.1, "projection_dim": 4}, [(3, 4)]
    yield "layer_scale_image", "LayerScale", {"init_values": 0.1, "projection_dim": 2}, [(2, 3, 2, 2)]
    yield "stochastic_depth", "StochasticDepth", {"drop_path_rate": 0.5}, [(3, 4)]
    yield "scaled_add", "CustomScaleLayer", {"scale": 0.17}, [(2, 3, 4), (2, 3, 4)]
    yield "scaled_add_stretched", "CustomScaleLayer", {"scale": -2.0}, [(2, 3, 4), (2, 1, 4)]


def normalizations():
    """(name, layer, config, inputs) in both modes for batch normalization."""
    batch = {
        "rank2": ({}, (6, 3)),
        "rank4": ({}, (3, 2, 3, 2)),
        "momentum_epsilon": ({"momentum": 0.9, "epsilon": 0.01}, (6, 3)),
        "no_center": ({"center": False}, (6, 3)),
        "no_scale": ({"scale": False}, (3, 2, 3, 2)),
    }
    for name, (config, shape) in batch.items():
        for training in (True, False):
            suffix = "training" if training else "inference"
            yield f"batch_normalization_{name}_{suffix}", "BatchNormalization", config, [shape], training
    yield "layer_normalization_rank2", "LayerNormalization", {}, [(4, 5)], False
    yield "layer_normalization_rank3", "LayerNormalization", {}, [(2, 3, 4)], False
    yield "layer_normalization_axes", "LayerNormalization", {"axis": [1, 2], "epsilon": 0.01}, [(2, 3, 4)], False
    yield "layer_normalization_plain", "LayerNormalization", {"center": False, "scale": False}, [(4, 5)], False
    groups = {
        "rank2": ({"groups": 2}, (3, 6)),
        "rank3": ({"groups": 3, "epsilon": 0.01}, (2, 3, 6)),
        "rank4": ({"groups": 2}, (2, 3, 2, 4)),
        "instance": ({"groups": -1}, (2, 3, 2, 3)),
        "one": ({"groups": 1, "center": False, "scale": False}, (2, 3, 4)),
        "axis_1": ({"groups": 2, "axis": 1}, (2, 4, 3, 2)),
        "axis_from_the_end": ({"groups": 2, "axis": -2, "scale": False}, (2, 3, 4, 2)),
        "default": ({}, (2, 2, 32)),
    }
    for name, (config, shape) in groups.items():
        yield f"group_normalization_{name}", "GroupNormalization", config, [shape], False
    known = {
        "variables": ({}, (3, 4)),
        "variables_rank4": ({}, (2, 2, 3, 2)),
        "variables_axes": ({"axis": [-1, 1]}, (2, 3, 2, 4)),
        "variables_all": ({"axis": []}, (2, 3)),
        "inverted": ({"axis": 1, "invert": True}, (2, 3, 2)),
        "given": ({"mean": [0.5, -1.0, 2.0], "variance": [0.25, 2.0, 0.5]}, (2, 3)),
        "constant": ({"mean": [0.5], "variance": [0.0]}, (2, 1)),
        "given_number": ({"axis": [1, 2], "mean": 0.5, "variance": 3.0}, (2, 3, 2)),
        "given_last": ({"axis": [1, 3], "mean": [1.5, -0.5], "variance": [2.0, 0.5]}, (2, 3, 2, 2)),
        "given_stretched": (
            {"axis": [1, 3], "mean": [[1.5], [-0.5], [2.5]], "variance": [[2.0], [0.5], [1.0]], "invert": True}, (2, 3, 2, 2)),
        "given_all": ({"axis": [], "mean": 2.0, "variance": 9.0}, (2, 3)),
        "integers": ({"mean": [1, 2], "variance": [4, 9]}, np.array([[1, 2], [3, 4]], np.int32)),
    }
    for name, (config, shape) in known.items():
        yield f"normalization_{name}", "Normalization", config, [shape], False
    yield "unit_normalization", "UnitNormalization", {}, [(3, 4)], False
    yield "unit_normalization_axes", "UnitNormalization", {"axis": [1, 3]}, [(2, 3, 2, 4)], False
    yield "rms_normalization", "RMSNormalization", {}, [(3, 4)], False
    yield "rms_normalization_axes", "RMSNormalization", {"axis": [2, 3], "epsilon": 0.01}, [(2, 3, 2, 4)], False


def steps():
    """(name, layer, config, inputs, training, mask) of layers applied to each step."""
    sequence = (2, 3, 4)
    inner = {
        "dense": ({"Dense": {"units": 2, "activation": "relu"}}, sequence),
        "conv2d": ({"Conv2D": {"filters": 2, "kernel_size": 2, "strides": 2, "padding": "same"}}, (2, 3, 4, 3, 2)),
        "max_pooling": ({"MaxPooling2D": {}}, (2, 3, 4, 4, 2)),
        "flatten": ({"Flatten": {}}, (2, 3, 2, 4)),
        "layer_norm": ({"LayerNormalization": {}}, sequence),
        "embedding": ({"Embedding": {"input_dim": 5, "output_dim": 2}}, np.arange(12, dtype=np.int32).reshape(2, 3, 2) % 5),
        "lstm": ({"LSTM": {"units": 3}}, (2, 3, 4, 2)),
        "bidirectional": ({"Bidirectional": {"layer": {"GRU": {"units": 2}}}}, (2, 3, 4, 2)),
        "twice": ({"TimeDistributed": {"layer": {"Dense": {"units": 2}}}}, (2, 3, 2, 4)),
    }
    for name, (layer, given) in inner.items():
        yield f"time_distributed_{name}", "TimeDistributed", {"layer": layer}, [given], False
    # The first steps of examples, as recurrent layers have them; of every step some.
    mask = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]], bool)
    batch = {
        "batch_norm": ({}, (5, 3, 2), None),
        "batch_norm_images": ({"momentum": 0.9, "epsilon": 0.01}, (3, 2, 2, 2, 3), None),
        "batch_norm_masked": ({"momentum": 0.5}, (5, 3, 2), mask),
    }
    for name, (config, shape, mask) in batch.items():
        for training in (True, False):
            suffix = "training" if training else "inference"
            inside = {"layer": {"BatchNormalization": config}}
            yield f"time_distributed_{name}_{suffix}", "TimeDistributed", inside, [shape], training, mask


def embeddings():
    """(name, layer, config, inputs), an index repeated."""
    yield "embedding", "Embedding", {"input_dim": 6, "output_dim": 3}, [np.array([[0, 5, 2], [2, 2, 1]], np.int32)]
    yield "embedding_rank1", "Embedding", {"input_dim": 4, "output_dim": 2}, [np.array([3, 0, 3], np.int32)]


ACTIVATIONS = [
    "relu", "relu6", "leaky_relu", "elu", "selu", "silu", "sigmoid", "hard_sigmoid", "tanh", "softmax",
    "log_softmax", "softplus", "softsign", "exponential", "linear", "mish", "celu", "hard_shrink", "hard_tanh", "log_sigmoid",
    "soft_shrink", "sparse_plus", "sparse_sigmoid", "squareplus", "tanh_shrink",
]

# With settings of their own.
SETTINGS = [
    ("celu", {"alpha": 0.4}), ("hard_shrink", {"threshold": 1.5}), ("soft_shrink", {"threshold": 1.5}), ("squareplus", {"b": 0.5}),
    ("threshold", {"threshold": -0.5, "default_value": 3.0}),
]


RECTIFIERS = [
    {"max_value": 1.5}, {"threshold": 0.5}, {"threshold": 0.5, "negative_slope": 0.1}, {"max_value": 2.0, "negative_slope": 0.2},
    {"max_value": 1.25, "negative_slope": 0.3, "threshold": 0.75}, {"max_value": 0.5, "threshold": 1.5}, {},
]


def activation(name, function, config, x):
    """The record of one activation."""
    given = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(given)
        output = function(given)
        cotangent = Draw(name).normal(output.shape)
        total = tf.reduce_sum(output * cotangent)
    return {
        "name": f"activation_{name}",
        "activation": name,
        "config": config,
        "inputs": [array(x)],
        "output": array(output.numpy()),
        "cotangent": array(cotangent),
        "input_gradients": [array(tape.gradient(total, given).numpy())],
    }


def activations():
    """Every activation on values between -8 and 8 (none where a derivative jumps)."""
    x = np.concatenate([Draw("activations").normal((3, 4), 2.0), [[-8.0, 7.5, -3.1, 3.2], [0.01, -0.02, 6.5, 2.4]]])
    x = x.astype(np.float32)
    for name in ACTIVATIONS:
        yield activation(name, keras.activations.get(name), {}, x)
    for approximate in (False, True):
        record = activation("gelu", lambda v: keras.activations.gelu(v, approximate=approximate), {"approximate": approximate}, x)
        yield {**record, "name": f"activation_gelu_{'tanh' if approximate else 'exact'}"}
    slope = activation("leaky_relu", lambda v: keras.activations.leaky_relu(v, negative_slope=0.1), {"negative_slope": 0.1}, x)
    yield {**slope, "name": "activation_leaky_relu_slope"}
    for number, config in enumerate(RECTIFIERS):
        record = activation("general_relu", keras.layers.ReLU(**config), config, x)
        yield {**record, "name": f"activation_general_relu{number}"}
    for name, config in SETTINGS:
        record = activation(name, lambda v, name=name, config=config: getattr(keras.activations, name)(v, **config), config, x)
        yield {**record, "name": f"activation_{name}_settings"}
    alpha = activation("elu", lambda v: keras.activations.elu(v, alpha=0.5), {"alpha": 0.5}, x)
    yield {**alpha, "name": "activation_elu_alpha"}
    for name in ("softmax", "log_softmax"):
        extreme = np.array([[100.0, -100.0, 0.0], [-100.0, -100.0, -99.0]], np.float32)
        record = activation(name, keras.activations.get(name), {}, extreme)
        yield {**record, "name": f"activation_{name}_extreme"}
    for name in ("softplus", "sigmoid", "tanh", "silu", "mish"):
        extreme = np.array([60.0, -60.0, 20.0, -20.0, 0.0], np.float32)
        record = activation(name, keras.activations.get(name), {}, extreme)
        yield {**record, "name": f"activation_{name}_extreme"}


def regularizers():
    """Penalties of a weight [3, 2] and their gradients."""
    specs = [
        ("L1", {}), ("L1", {"l1": 0.1}), ("L2", {}), ("L2", {"l2": 0.1}), ("L1L2", {"l1": 0.1, "l2": 0.2}), ("L1L2", {}),
        ("OrthogonalRegularizer", {}), ("OrthogonalRegularizer", {"factor": 0.1, "mode": "columns"}),
    ]
    for name, config in specs:
        weight = tf.convert_to_tensor(Draw("regularizers").normal((3, 2)))
        with tf.GradientTape() as tape:
            tape.watch(weight)
            penalty = tf.convert_to_tensor(getattr(keras.regularizers, name)(**config)(weight))
        gradient = tape.gradient(penalty, weight)
        yield {
            "name": "_".join(["regularizer", name.lower(), *(f"{k}={v}" for k, v in config.items())]),
            "regularizer": name,
            "config": config,
            "weight": array(weight.numpy()),
            "penalty": number(penalty.numpy()),
            "gradient": array(np.zeros((3, 2), np.float32) if gradient is None else gradient.numpy()),
        }


def records():
    """Everything of this file."""
    for spec in [*dense_and_convolution(), *sequences_and_larger_images(), *pooling(), *volumes(), *edges(), *slopes(), *residuals(), *shapes(), *embeddings()]:
        yield run(*spec, training=False)
    for spec in [*normalizations(), *steps()]:
        yield run(*spec)
    yield from activations()
    yield from regularizers()
    for spec in einsums():
        yield run(*spec, training=False)


if __name__ == "__main__":
    write("layers", list(records()))
