"""transformer.json: small Transformers on formula weights: outputs, loss, and the gradients of one training step.

Weights are not stored: the k-th number of the v-th variable (in the order of `variables`) is
`((k*7919 + v*104729 + k*k*31) % 1000)/1000 - 0.5` in f64, times 0.6, plus 1 for `gamma`, rounded to f32.
"""

from golden import array, keras, np, number, tf, write

layers = keras.layers
LENGTH, VOCABULARY, WIDTH, HEADS, HIDDEN, MOST, CLASSES = 8, 50, 16, 2, 32, 2, 3


class Learned(layers.Layer):
    """Adds a trained vector to each place."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, shape):
        self.embeddings = self.add_weight(name="embeddings", shape=shape[1:])

    def call(self, x):
        return x + self.embeddings


class Waves(layers.Layer):
    """Adds the waves of Vaswani et al. 2017, 3.5."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x):
        place, feature = np.meshgrid(np.arange(x.shape[1]), np.arange(x.shape[2]), indexing="ij")
        angle = place / 10000.0 ** (2 * (feature // 2) / x.shape[2])
        return x + np.where(feature % 2 == 0, np.sin(angle), np.cos(angle)).astype(np.float32)


def feed_forward(x, name):
    """The second half of a block."""
    hidden = layers.LayerNormalization(name=f"{name}_feed_forward_norm")(x)
    hidden = layers.Dense(HIDDEN, activation="gelu", name=f"{name}_feed_forward")(hidden)
    return layers.Add()([x, layers.Dense(WIDTH, name=f"{name}_feed_forward_output")(hidden)])


def self_attention(x, name, causal):
    """The first half of a block."""
    normal = layers.LayerNormalization(name=f"{name}_attention_norm")(x)
    seen = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name=f"{name}_attention")(
        normal, normal, use_causal_mask=causal
    )
    return layers.Add()([x, seen])


def encoder(positions, causal, mask_zero, head, blocks):
    """A pre-norm encoder."""
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH, mask_zero=mask_zero, name="embedding")(tokens)
    x = {"learned": Learned, "sinusoidal": Waves}[positions](name="position")(x)
    for number in range(blocks):
        x = self_attention(x, f"block_{number}", causal)
        x = feed_forward(x, f"block_{number}")
    x = layers.LayerNormalization(name="norm")(x)
    if head == "tokens":
        return keras.Model(tokens, layers.Dense(VOCABULARY, name="logits")(x))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, layers.Dense(CLASSES, name="logits")(x))


def path(weight):
    """The name of a weight with blocks as folders."""
    name = weight.path
    for number in range(MOST):
        for part in ("encoder", "decoder"):
            name = name.replace(f"{part}_{number}_", f"{part}_{number}/")
        name = name.replace(f"block_{number}_", f"block_{number}/")
    return name


def fill(model):
    """Gives every weight its formula."""
    for v, weight in enumerate(model.weights):
        k = np.arange(int(np.prod(weight.shape)), dtype=np.int64)
        values = (((k * 7919 + v * 104729 + k * k * 31) % 1000) / 1000 - 0.5) * 0.6
        values = values + (1.0 if weight.name == "gamma" else 0.0)
        weight.assign(values.astype(np.float32).reshape(weight.shape))


def tokens(rows, length, vocabulary, lengths, factor):
    """Tokens from 1 on, zeros behind the length of each row."""
    i, j = np.meshgrid(np.arange(rows), np.arange(length), indexing="ij")
    values = 1 + (i * 17 + j * factor + i * j) % (vocabulary - 1)
    return np.where(j < np.array(lengths)[:, None], values, 0).astype(np.int32)


def record(name, settings, model, inputs, targets, full):
    """Output, loss and gradients of one training step."""
    fill(model)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        output = model(inputs[0] if len(inputs) == 1 else inputs, training=True)
        loss = loss_of(targets, output)
    weights = model.trainable_weights
    gradients = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, [w.value for w in weights])]
    norms = [float(np.linalg.norm(g.astype(np.float64))) for g in gradients]
    variables = []
    for v, (weight, gradient, norm) in enumerate(zip(weights, gradients, norms)):
        k = np.arange(gradient.size, dtype=np.int64)
        probe = ((k * 6361 + v * 271) % 1000) / 1000 - 0.5
        entry = {"name": path(weight), "shape": list(weight.shape), "norm": number(norm),
                 "probe": number(float(gradient.astype(np.float64).reshape(-1) @ probe))}
        variables.append({**entry, "gradient": array(gradient)} if full else entry)
    return {
        "name": name,
        "settings": settings,
        "inputs": [array(x) for x in inputs],
        "targets": array(targets),
        "variables": variables,
        "output": array(output.numpy()),
        "loss": number(loss.numpy()),
        "global_norm": number(float(np.sqrt(sum(n * n for n in norms)))),
    }


def encoders():
    """Three encoders between them: every kind of place, mask and head."""
    sizes = {"vocabulary": VOCABULARY, "length": LENGTH, "width": WIDTH, "heads": HEADS,
             "feed_forward": HIDDEN}
    cases = {
        "plain": (("learned", False, False, "tokens"), [8, 8]),
        "causal_padded": (("learned", True, True, "tokens"), [8, 5, 2]),
        "classes_padded": (("sinusoidal", False, True, "classes"), [8, 5, 2]),
    }
    for name, ((positions, causal, mask_zero, head), lengths) in cases.items():
        blocks = 2 if name == "plain" else 1
        settings = {**sizes, "layers": blocks, "positions": positions, "causal": causal, "mask_zero": mask_zero,
                    "head": head if head == "tokens" else {"classes": CLASSES}}
        rows = len(lengths)
        inputs = tokens(rows, LENGTH, VOCABULARY, lengths, 7)
        targets = tokens(rows, LENGTH, VOCABULARY, lengths, 11) if head == "tokens" else np.arange(rows, dtype=np.int32)
        model = encoder(positions, causal, mask_zero, head, blocks)
        yield record(f"encoder_{name}", settings, model, [inputs], targets, full=name == "plain")


def translators():
    """An encoder and a decoder of one block each, padded on both sides."""
    sizes = {"source_vocabulary": 12, "target_vocabulary": 11, "source_length": 6, "target_length": 5, "layers": 1,
             "width": WIDTH, "heads": HEADS, "feed_forward": HIDDEN, "dropout": 0.0, "positions": "sinusoidal"}
    source, target = keras.Input((6,), dtype="int32"), keras.Input((5,), dtype="int32")

    def embed(tokens, vocabulary, side):
        x = layers.Embedding(vocabulary, WIDTH, mask_zero=True, name=f"{side}_embedding")(tokens)
        return Waves()(layers.Rescaling(WIDTH**0.5)(x))

    memory = self_attention(embed(source, 12, "source"), "encoder_0", False)
    memory = layers.LayerNormalization(name="encoder_norm")(feed_forward(memory, "encoder_0"))
    x = embed(target, 11, "target")
    normal = layers.LayerNormalization(name="decoder_0_self_attention_norm")(x)
    seen = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name="decoder_0_self_attention")(
        normal, normal, use_causal_mask=True
    )
    x = layers.Add()([x, seen])
    normal = layers.LayerNormalization(name="decoder_0_cross_attention_norm")(x)
    seen = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name="decoder_0_cross_attention")(normal, memory)
    x = feed_forward(layers.Add()([x, seen]), "decoder_0")
    x = layers.LayerNormalization(name="decoder_norm")(x)
    model = keras.Model([source, target], layers.Dense(11, name="logits")(x))
    inputs = [tokens(3, 6, 12, [6, 3, 1], 5), tokens(3, 5, 11, [5, 4, 2], 3)]
    yield record("nmt_padded", sizes, model, inputs, tokens(3, 5, 11, [5, 4, 2], 7), full=False)


def records():
    """Everything of this file."""
    yield from translators()
    yield from encoders()


if __name__ == "__main__":
    write("transformer", list(records()))
