"""sequences.json: layers of sequences with and without masks: outputs, and gradients of sum(output * cotangent)."""

from golden import array, arrays, keras, np, tf, write

from keras.src.backend import set_keras_mask

layers = keras.layers


class Draw:
    """Deterministic f32 arrays: a fresh stream for every record."""

    def __init__(self, name):
        self.rng = np.random.default_rng([ord(c) for c in name])

    def normal(self, shape, scale=1.0):
        """Normal values of the given deviation."""
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)


def mask_of(lengths, steps):
    """True for the first `lengths[i]` steps of row i."""
    return np.arange(steps)[None, :] < np.array(lengths)[:, None]


def weight_names(built):
    """The names of a layer's weights without those of the layer and of cells."""
    parts = [[p for p in w.path.split("/")[1:] if not p.endswith("_cell")] for w in built.weights]
    for path in parts:
        path[0] = path[0].split("_")[0] if path[0].startswith(("forward_", "backward_")) else path[0]
    return ["/".join(path) for path in parts]


def record(name, layer, config, built, call, inputs, masks):
    """Output and gradients of `call(*inputs)`, weights drawn anew."""
    draw = Draw(name)
    inputs = [x if isinstance(x, np.ndarray) else draw.normal(x) for x in inputs]
    given = [tf.convert_to_tensor(x) for x in inputs]

    def forward():
        for x, mask in zip(given, masks):
            set_keras_mask(x, None if mask is None else tf.convert_to_tensor(mask))
        return call(built, given)

    forward()
    for weight in built.weights:
        weight.assign(draw.normal(weight.shape, 0.5))
    with tf.GradientTape() as tape:
        tape.watch([x for x in given if x.dtype.is_floating])
        output = forward()
        cotangent = draw.normal(output.shape)
        total = tf.reduce_sum(output * cotangent)
    floats = [x for x in given if x.dtype.is_floating]
    gradients = tape.gradient(total, floats + [w.value for w in built.weights])
    gradients = [tf.convert_to_tensor(g).numpy() for g in gradients]
    names = weight_names(built)
    return {
        "name": name,
        "layer": layer,
        "config": config,
        "inputs": arrays(inputs),
        "masks": [None if mask is None else array(mask) for mask in masks],
        "weights": [{"name": n, "value": array(w.numpy())} for n, w in zip(names, built.weights)],
        "output": array(output.numpy()),
        "cotangent": array(cotangent),
        "input_gradients": arrays(gradients[: len(floats)]),
        "weight_gradients": [{"name": n, "value": array(g)} for n, g in zip(names, gradients[len(floats) :])],
    }


def attentions():
    """Multi-head attention: masks, sizes of its own, three inputs, an explicit mask."""
    query, value, key = (3, 4, 6), (3, 5, 7), (3, 5, 3)
    short, long = mask_of([4, 2, 1], 4), mask_of([3, 5, 1], 5)
    pairs = Draw("pairs").rng.integers(0, 2, (3, 4, 5)).astype(bool)
    pairs[:, :, 0] = True
    cases = {
        "self": ({}, [query], [None]),
        "self_causal": ({"use_causal_mask": True}, [query], [None]),
        "self_masked": ({}, [query], [short]),
        "self_causal_masked": ({"use_causal_mask": True}, [query], [short]),
        "cross": ({}, [query, value], [None, None]),
        "cross_masked": ({}, [query, value], [short, long]),
        "cross_value_masked": ({"use_bias": False}, [query, value], [None, long]),
        "three_inputs": ({"value_dim": 2, "output_shape": 5}, [query, value, key], [None, long, None]),
        "pairs": ({"dropout": 0.5}, [query, value, key, pairs], [None, None, None, None]),
    }
    yield from with_heads("attention", "MultiHeadAttention", {"num_heads": 2, "key_dim": 3}, cases)


def grouped():
    """Attention of which several heads of queries share a head of keys and values: one, all, masks, three inputs, an explicit mask."""
    query, value, key = (3, 4, 6), (3, 5, 6), (3, 5, 3)
    short, long = mask_of([4, 2, 1], 4), mask_of([3, 5, 1], 5)
    pairs = Draw("grouped pairs").rng.integers(0, 2, (3, 4, 5)).astype(bool)
    pairs[:, :, 0] = True
    cases = {
        "self": ({}, [query], [None]),
        "one": ({"num_key_value_heads": 1, "use_bias": False}, [query, value], [None, None]),
        "all": ({"num_key_value_heads": 4}, [query], [short]),
        "causal": ({"use_causal_mask": True}, [query], [None]),
        "causal_masked": ({"use_causal_mask": True}, [query, value], [short, long]),
        "three_inputs": ({}, [query, value, key], [None, long, None]),
        "pairs": ({"num_query_heads": 6, "dropout": 0.5}, [query, value, key, pairs], [None, None, long, None]),
    }
    heads = {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2}
    yield from with_heads("grouped", "GroupQueryAttention", heads, cases)


def with_heads(prefix, layer, heads, cases):
    """A record for each case: more of its configuration, inputs, masks."""
    for name, (config, inputs, masks) in cases.items():
        config = {**heads, **config}
        causal = config.get("use_causal_mask", False)
        built = getattr(layers, layer)(**{k: v for k, v in config.items() if k != "use_causal_mask"})

        def call(built, given, causal=causal):
            names = ["query", "value", "key", "attention_mask"]
            arguments = dict(zip(names, given))
            arguments.setdefault("value", given[0])
            # Only the last argument is data of the mask.
            return built(**arguments, use_causal_mask=causal, training=False)

        yield record(f"{prefix}_{name}", layer, config, built, call, inputs, masks)


def scored():
    """Attention without heads: products and sums, masks, three inputs; a value without a step to look at."""
    query, value, key = (3, 4, 3), (3, 5, 3), (3, 5, 3)
    other = (3, 5, 2)
    short, long, none = mask_of([4, 2, 1], 4), mask_of([3, 5, 1], 5), mask_of([3, 0, 1], 5)
    kinds = {
        "attention": ("Attention", {}),
        "attention_scaled": ("Attention", {"use_scale": True}),
        "attention_concat": ("Attention", {"use_scale": True, "score_mode": "concat"}),
        "additive": ("AdditiveAttention", {}),
    }
    cases = {
        "cross": (False, [query, value], [None, None]),
        "causal": (True, [query, query], [None, None]),
        "masked": (False, [query, value], [short, long]),
        "causal_masked": (True, [query, other, key], [short, long, None]),
    }
    more = {
        "attention_no_value": ("Attention", {}, False, [query, value], [None, none]),
        "attention_concat_plain": ("Attention", {"score_mode": "concat"}, False, [query, value], [None, None]),
        "additive_plain": ("AdditiveAttention", {"use_scale": False}, False, [query, value], [None, long]),
    }
    for kind, (layer, config) in kinds.items():
        more.update({f"{kind}_{name}": (layer, config, *case) for name, case in cases.items()})
    for name, (layer, config, causal, inputs, masks) in more.items():
        built = getattr(layers, layer)(**config)

        def call(built, given, causal=causal):
            return built(given, use_causal_mask=causal)

        written = {**config, "use_causal_mask": causal}
        yield record(f"scored_{name}", layer, written, built, call, inputs, masks)


def pools():
    """Global pooling over steps."""
    for kind in ("GlobalAveragePooling1D", "GlobalMaxPooling1D"):
        for name, mask in {"plain": None, "masked": mask_of([4, 2, 1], 4)}.items():
            built = getattr(layers, kind)()
            yield record(f"{kind}_{name}", kind, {}, built, lambda b, given: b(given[0]), [(3, 4, 2)], [mask])


def rnns():
    """Recurrent layers: settings, masks (one with padding in front and in the middle), first states."""
    x, mask = (3, 5, 4), mask_of([5, 3, 1], 5)
    mask = np.concatenate([mask, [[False, True, False, True, True]]])
    full = (4, 5, 4)
    state = (4, 3)
    cases = {
        "plain": ({}, [x], None),
        "sequences": ({"return_sequences": True}, [x], None),
        "masked": ({}, [full], mask),
        "sequences_masked": ({"return_sequences": True}, [full], mask),
        "backwards_masked": ({"go_backwards": True}, [full], mask),
        "backwards_sequences": ({"go_backwards": True, "return_sequences": True}, [x], None),
        "states_masked": ({"return_sequences": True}, [full, state], mask),
        "no_bias": ({"use_bias": False, "return_sequences": True}, [x], None),
    }
    kinds = {"LSTM": [{}], "GRU": [{}, {"reset_after": False}], "SimpleRNN": [{}]}
    for kind, extras in kinds.items():
        for extra in extras:
            for name, (config, inputs, mask) in cases.items():
                if kind == "SimpleRNN" and name not in ("sequences_masked", "plain"):
                    continue
                config = {"units": 3, **extra, **config}
                states = inputs[1:] * (2 if kind == "LSTM" else 1)
                built = getattr(layers, kind)(**config)

                def call(built, given, mask=mask):
                    # With first states Keras does not take the mask from the sequence.
                    named = {"initial_state": given[1:], "mask": mask} if len(given) > 1 else {}
                    return built(given[0], **named)

                name = f"{kind}_{name}" + ("_reset_before" if extra else "")
                yield record(name, kind, config, built, call, inputs[:1] + states, [mask] + [None] * len(states))


def bidirectionals():
    """Both directions."""
    x, mask = (3, 5, 4), mask_of([5, 3, 1], 5)
    cases = {
        "lstm": ("LSTM", {}, "concat", None),
        "lstm_masked": ("LSTM", {}, "concat", mask),
        "lstm_sequences_masked": ("LSTM", {"return_sequences": True}, "sum", mask),
        "gru_sequences_masked": ("GRU", {"return_sequences": True}, "concat", mask),
        "gru_mul": ("GRU", {}, "mul", None),
        "rnn_ave": ("SimpleRNN", {"return_sequences": True}, "ave", None),
    }
    ours = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "simple_rnn"}
    for name, (kind, config, merge, mask) in cases.items():
        config = {"units": 3, **config}
        built = layers.Bidirectional(getattr(layers, kind)(**config), merge_mode=merge)
        written = {"layer": {ours[kind]: config}, "merge_mode": merge}
        yield record(f"bidirectional_{name}", "Bidirectional", written, built, lambda b, given: b(given[0]), [x], [mask])


def conv_lstms():
    """Recurrent layers of convolutions: windows of all sorts, masks, first states, both directions."""
    mask = mask_of([4, 2], 4)
    gap = np.array([[False, True, False, True], [True, True, False, False]])
    row, image, volume = (2, 4, 5, 2), (2, 4, 5, 4, 2), (2, 3, 3, 4, 3, 2)
    same = {"padding": "same"}
    cases = {
        "1D": {
            "plain": ({"kernel_size": 2}, [row], None),
            "strides": ({"kernel_size": 3, "strides": 2, **same, "return_sequences": True, "go_backwards": True}, [row], mask),
            "dilation": ({"kernel_size": 2, "dilation_rate": 2, "use_bias": False}, [row], gap),
        },
        "2D": {
            "plain": ({"kernel_size": 3}, [image], None),
            "same": ({"kernel_size": [2, 3], **same, "return_sequences": True}, [image], None),
            "masked": ({"kernel_size": 2, **same, "return_sequences": True}, [image], gap),
            "last_masked": ({"kernel_size": [3, 1]}, [image], mask),
            "strides": ({"kernel_size": 2, "strides": [2, 1], "activation": "relu", "recurrent_activation": "hard_sigmoid"}, [image], None),
            "dilation": ({"kernel_size": 2, "dilation_rate": [1, 2], "use_bias": False, "go_backwards": True}, [image], None),
            "states": ({"kernel_size": 3, "return_sequences": True}, [image, (2, 3, 2, 3)], gap),
        },
        "3D": {
            "plain": ({"kernel_size": 2}, [volume], None),
            "strides": ({"kernel_size": [1, 2, 3], "strides": [1, 2, 1], **same, "return_sequences": True}, [volume], mask_of([3, 1], 3)),
        },
    }
    for dims, of_dims in cases.items():
        for name, (config, inputs, mask) in of_dims.items():
            config = {"filters": 3, **config}
            built = getattr(layers, f"ConvLSTM{dims}")(**config)
            states = inputs[1:] * 2

            def call(built, given, mask=mask):
                named = {"initial_state": given[1:], "mask": mask} if len(given) > 1 else {}
                return built(given[0], **named)

            yield record(f"ConvLSTM{dims}_{name}", f"ConvLSTM{dims}", config, built, call, inputs[:1] + states, [mask] + [None] * len(states))
    config = {"filters": 2, "kernel_size": 2, **same, "return_sequences": True}
    both = layers.Bidirectional(layers.ConvLSTM2D(**config))
    written = {"layer": {"conv_lstm2d": config}}
    yield record("bidirectional_conv_lstm", "Bidirectional", written, both, lambda b, given: b(given[0]), [image], [gap])


class Bag(layers.Layer):
    """TensorFlow's lookup of bags, with padding taken out."""

    def __init__(self, input_dim, output_dim, combiner="mean", padding=None):
        super().__init__()
        self.dims, self.combiner, self.padding = (input_dim, output_dim), combiner, padding

    def build(self, *shape):
        self.embeddings = self.add_weight(name="embeddings", shape=self.dims)

    def call(self, indices, weights=None):
        places = np.argwhere(indices.numpy() != self.padding)
        values = tf.gather_nd(indices, places)
        ids = tf.SparseTensor(places, tf.cast(values, tf.int64), indices.shape)
        given = None if weights is None else tf.SparseTensor(places, tf.gather_nd(weights, places), indices.shape)
        found = tf.nn.embedding_lookup_sparse(self.embeddings.value, ids, given, combiner=self.combiner)
        return found[: indices.shape[0]]


def bags():
    """Bags of indices: combiners, padding, weights."""
    indices = np.array([[0, 5, 2], [2, 2, 1], [4, 0, 0]], np.int32)
    padded = np.array([[0, 5, -1], [-1, 2, 1], [4, -1, -1]], np.int32)
    for combiner in ("sum", "mean", "sqrtn"):
        for name, rows, weights in (("plain", indices, []), ("padded", padded, []), ("weights", padded, [(3, 3)])):
            config = {"input_dim": 6, "output_dim": 3, "combiner": combiner}
            if name != "plain":
                config["padding"] = -1
            yield record(f"embedding_bag_{combiner}_{name}", "EmbeddingBag", config, Bag(**config),
                         lambda b, given: b(*given), [rows, *weights], [None] * (1 + len(weights)))


def dots():
    """The product of two vectors, and of values of more dims."""
    for normalize in (False, True):
        config = {"normalize": normalize}
        built = layers.Dot(axes=-1, normalize=normalize)
        yield record(f"dot_{normalize}", "Dot", config, built, lambda b, given: b(given), [(3, 4), (3, 4)], [None] * 2)
    cases = [([2, 2], (3, 5, 4), (3, 6, 4)), ([2, 1], (3, 5, 4), (3, 4, 6)), ([1, 2], (3, 4), (3, 6, 4)), ([1, -1], (3, 4, 2, 5), (3, 6, 4))]
    for number, (axes, *shapes) in enumerate(cases):
        config = {"axes": axes, "normalize": number % 2 == 1}
        built = layers.Dot(**config)
        yield record(f"dot_axes_{number}", "Dot", config, built, lambda b, given: b(given), shapes, [None] * 2)


def merges():
    """Layers of several inputs: steps that are padding in all of them, in some, in one that has a mask beside one without."""
    x, short, long = (3, 4, 2), mask_of([4, 2, 1], 4), mask_of([3, 3, 0], 4)
    masks = {
        "masked": [short, long],
        "first_masked": [short, None],
        "second_masked": [None, long],
        "three_masked": [long, short, long],
        "three_mixed": [short, None, long],
    }
    for kind in ("Add", "Average", "Maximum", "Minimum", "Multiply"):
        for name, given in masks.items():
            built = getattr(layers, kind)()
            yield record(f"{kind}_{name}", kind, {}, built, lambda b, given: b(given), [x] * len(given), given)


class MaskedSum(layers.Layer):
    """Masking, and an LSTM that shows the mask."""

    def __init__(self, mask_value):
        super().__init__()
        self.masking, self.lstm = layers.Masking(mask_value), layers.LSTM(3, return_sequences=True, name="lstm")

    def build(self, shape):
        self.lstm.build(shape)

    def call(self, x):
        return self.lstm(self.masking(x))


def maskings():
    """Steps of one number."""
    x = Draw("masking").normal((2, 4, 3))
    x[0, 1] = x[1, 3] = 0.5
    x[1, 0, 1] = 0.5
    yield record("masking", "Masking", {"mask_value": 0.5}, MaskedSum(0.5), lambda b, given: b(given[0]), [x], [None])


def records():
    """Everything of this file."""
    yield from maskings()
    yield from bags()
    yield from dots()
    yield from rnns()
    yield from bidirectionals()
    yield from attentions()
    yield from scored()
    yield from pools()
    yield from merges()
    yield from grouped()
    yield from conv_lstms()


if __name__ == "__main__":
    write("sequences", list(records()))
