"""ports.json: training steps by hand of more of Keras' examples, in the form of `loops.json`.

Where rows are 5, two replicas have an uneven part each. The same steps are in `crates/phalanx/tests/custom_loops/ports.rs`.
"""

from golden import keras, np, number, tf, write
from make_loops import filled, normal, record, rng, train

layers, ops = keras.layers, keras.ops
ROWS = 5


def dense(inputs, hidden, outputs, activation="tanh"):
    return filled(keras.Sequential([keras.Input((inputs,)), layers.Dense(hidden, activation=activation), layers.Dense(outputs)]))


def integers(below, *shape):
    return rng.integers(0, below, shape).astype(np.int32)


def uniform(*shape):
    return rng.random(shape).astype(np.float32)


def sparse(labels, logits):
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def contrastive():
    """SimCLR: each view of an example is to be told from the other views of the batch."""
    encoder, one, two, adam = dense(4, 6, 3), normal(ROWS, 4), normal(ROWS, 4), keras.optimizers.Adam(0.01)

    def loss():
        a, b = [tf.math.l2_normalize(encoder(view), axis=1) for view in (one, two)]
        similarities = tf.matmul(a, b, transpose_b=True) / 0.5
        both = [tf.reduce_mean(sparse(np.arange(ROWS), of)) for of in (similarities, tf.transpose(similarities))]
        return [(both[0] + both[1]) / 2, *both]

    return record("contrastive", [one, two], {"encoder": encoder}, lambda: train(loss, [encoder], adam))


def redundancy():
    """Barlow Twins: the correlations of two views over the batch are to be the identity."""
    encoder, one, two, sgd = dense(4, 6, 3), normal(ROWS, 4), normal(ROWS, 4), keras.optimizers.SGD(0.01)

    def standardized(x):
        return (x - tf.reduce_mean(x, axis=0)) / tf.math.reduce_std(x, axis=0)

    def loss():
        a, b = standardized(encoder(one)), standardized(encoder(two))
        off = tf.matmul(a, b, transpose_a=True) / ROWS - np.eye(3, dtype=np.float32)
        return [tf.reduce_sum(tf.square(off) * (0.1 + 0.9 * np.eye(3, dtype=np.float32)))]

    return record("redundancy", [one, two], {"encoder": encoder}, lambda: train(loss, [encoder], sgd))


def denoising_network():
    def residual(x, width):
        y = x if x.shape[-1] == width else layers.Conv2D(width, 1)(x)
        x = layers.BatchNormalization(center=False, scale=False)(x)
        x = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
        x = layers.Conv2D(width, 3, padding="same")(x)
        return layers.Add()([x, y])

    def waves(x):
        speeds = 2.0 * np.pi * np.exp(np.linspace(np.log(1.0), np.log(10.0), 2)).astype(np.float32)
        return ops.concatenate([ops.sin(speeds * x), ops.cos(speeds * x)], axis=3)

    images, variances = keras.Input((4, 4, 1)), keras.Input((1, 1, 1))
    e = layers.UpSampling2D(4, interpolation="nearest")(layers.Lambda(waves, output_shape=(1, 1, 4))(variances))
    x = layers.Concatenate()([layers.Conv2D(3, 1)(images), e])
    skip = residual(x, 3)
    x = residual(layers.AveragePooling2D(2)(skip), 4)
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = residual(layers.Concatenate()([x, skip]), 3)
    return keras.Model([images, variances], layers.Conv2D(1, 1)(x))


def diffusion():
    """Denoising diffusion with an average of the network."""
    network = filled(denoising_network())
    average = denoising_network()
    average.set_weights(network.get_weights())
    images, noise, times = normal(ROWS, 4, 4, 1), normal(ROWS, 4, 4, 1), uniform(ROWS, 1, 1, 1)
    sgd = keras.optimizers.SGD(0.01, weight_decay=0.1)
    angles = np.arccos(0.95) + times * (np.arccos(0.02) - np.arccos(0.95))
    signal_rate, noise_rate = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    of_images = []

    def loss():
        noisy = signal_rate * images + noise_rate * noise
        found = network([noisy, noise_rate**2], training=True)
        of_images[:] = [tf.reduce_mean(tf.abs((noisy - noise_rate * found) / signal_rate - images))]
        return [tf.reduce_mean(tf.abs(found - noise)), of_images[0]]

    def step():
        losses = train(loss, [network], sgd)
        for weight, mean in zip(network.weights, average.weights):
            mean.assign(0.9 * mean + 0.1 * weight)
        return losses

    return record("diffusion", [images, noise, times], {"network": network, "average": average}, step)


class PatchEncoder(layers.Layer):
    def __init__(self):
        super().__init__()
        self.projection, self.position = layers.Dense(6), layers.Embedding(4, 6)

    def call(self, images):
        patches = ops.image.extract_patches(images, (2, 2))
        patches = ops.reshape(patches, (-1, 4, patches.shape[-1]))
        return self.projection(patches) + self.position(ops.expand_dims(ops.arange(4), 0))


def vision_transformer():
    """A Vision Transformer; the second block is gMLP's, with a gate over places."""
    images = keras.Input((4, 4, 2))
    x = PatchEncoder()(images)
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    x = layers.Add()([layers.MultiHeadAttention(2, 6)(y, y), x])
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.Dense(6)(layers.Dense(12, activation="gelu")(y))
    x = layers.Add()([y, x])
    y = layers.Dense(8, activation="gelu")(layers.LayerNormalization()(x))
    u, v = layers.Lambda(lambda y: ops.split(y, 2, axis=2))(y)
    v = layers.Permute((2, 1))(layers.LayerNormalization()(v))
    v = layers.Permute((2, 1))(layers.Dense(4, bias_initializer="ones")(v))
    x = layers.Add()([layers.Dense(6)(layers.Multiply()([u, v])), x])
    model = filled(keras.Model(images, layers.Dense(3)(layers.GlobalAveragePooling1D()(x))))
    # Biases of keys have gradients of rounding alone, which Adam would make steps of.
    x, labels, sgd = normal(ROWS, 4, 4, 2), integers(3, ROWS), keras.optimizers.SGD(0.1, weight_decay=0.1)
    loss = lambda: [tf.reduce_mean(sparse(labels, model(x, training=True)))]
    return record("vision", [x, labels], {"model": model}, lambda: train(loss, [model], sgd))


def language_model():
    """A masked causal language model whose table of words also makes the logits."""
    words, steps, width = 7, 4, 6
    inputs = keras.Input((steps,), dtype="int32")
    table = layers.Embedding(words, width)
    x = table(inputs) + layers.Embedding(steps, width)(ops.cumsum(ops.ones_like(inputs), axis=1) - 1)
    y = layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization(epsilon=1e-6)(x + y)
    x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dense(width)(layers.Dense(8, activation="relu")(x)))
    model = filled(keras.Model(inputs, x))
    numbers, targets, counts = integers(words, ROWS, steps), integers(words, ROWS, steps), (uniform(ROWS, steps) < 0.6).astype(np.float32)
    sgd = keras.optimizers.SGD(0.1, global_clipnorm=0.5)

    def loss():
        logits = tf.matmul(model(numbers), table.embeddings, transpose_b=True)
        return [tf.reduce_sum(sparse(targets, logits) * counts) / np.sum(counts)]

    return record("language", [numbers, targets, counts], {"model": model}, lambda: train(loss, [model], sgd))


def radiance():
    """NeRF: colours of points along rays, as far as light comes through the points before."""
    points, colours, depths = normal(ROWS, 4, 3), uniform(ROWS, 3), np.sort(uniform(ROWS, 4))
    model, adam = dense(12, 8, 4), keras.optimizers.Adam(0.01)

    def loss():
        encoded = tf.concat([function(speed * points) for speed in (1.0, 2.0) for function in (tf.sin, tf.cos)], axis=2)
        answers = model(tf.reshape(encoded, (ROWS * 4, 12)))
        answers = tf.reshape(answers, (ROWS, 4, 4))
        rgb, density = tf.sigmoid(answers[..., :3]), tf.nn.relu(answers[..., 3])
        distances = tf.concat([depths[:, 1:] - depths[:, :-1], np.full((ROWS, 1), 1e10, np.float32)], axis=1)
        alpha = 1.0 - tf.exp(-density * distances)
        weights = alpha * tf.math.cumprod(1.0 - alpha + 1e-10, axis=1, exclusive=True)
        error = tf.reduce_mean(tf.square(tf.reduce_sum(weights[..., None] * rgb, axis=1) - colours))
        return [error, -10.0 * tf.math.log(error) / np.log(10.0).astype(np.float32)]

    return record("radiance", [points, colours, depths], {"model": model}, lambda: train(loss, [model], adam))


EDGES = np.array([[0, 1], [1, 0], [1, 2], [2, 3], [3, 1], [4, 0], [4, 2], [5, 4], [5, 5]], np.int32)


class GraphAttention(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 4))
        self.attention = self.add_weight(shape=(8, 1))

    def call(self, nodes):
        states = tf.matmul(nodes, self.kernel)
        pairs = tf.reshape(tf.gather(states, EDGES), (len(EDGES), 8))
        scores = tf.exp(tf.clip_by_value(tf.nn.leaky_relu(tf.matmul(pairs, self.attention))[:, 0], -2.0, 2.0))
        sums = tf.math.unsorted_segment_sum(scores, EDGES[:, 0], 6)
        shares = scores / tf.gather(sums, EDGES[:, 0])
        messages = tf.gather(states, EDGES[:, 1]) * shares[:, None]
        return tf.nn.relu(tf.math.unsorted_segment_sum(messages, EDGES[:, 0], 6))


def graph():
    """A graph attention network: the batch names nodes of one graph."""
    attention, nodes = GraphAttention(), normal(6, 3)
    attention.build((6, 3))
    attention.set_weights([normal(*weight.shape) for weight in attention.get_weights()])
    places, labels, adam = integers(6, ROWS), integers(4, ROWS), keras.optimizers.Adam(0.01)
    loss = lambda: [tf.reduce_mean(sparse(labels, tf.gather(attention(nodes), places)))]
    record_of = record("graph", [places, labels], {"model": attention}, lambda: train(loss, [attention], adam))
    record_of["nodes"] = {"shape": [6, 3], "dtype": "f32", "data": [float(str(value)) for value in nodes.reshape(-1)]}
    return record_of


def deep_q():
    """Deep Q-learning with a target network that follows slowly."""
    network, target, adam = dense(3, 6, 2, "relu"), dense(3, 6, 2, "relu"), keras.optimizers.Adam(0.01, clipnorm=0.1)
    states, after, rewards, ends, actions = normal(ROWS, 3), normal(ROWS, 3), normal(ROWS) * 3, (uniform(ROWS) < 0.4), integers(2, ROWS)
    ends = ends.astype(np.float32)
    huber = keras.losses.Huber()

    def loss():
        wanted = rewards + 0.99 * (1.0 - ends) * tf.reduce_max(target(after), axis=1)
        taken = tf.reduce_sum(network(states) * tf.one_hot(actions, 2), axis=1)
        return [huber(wanted[:, None], taken[:, None])]

    def step():
        losses = train(loss, [network], adam)
        for own, other in zip(target.variables, network.variables):
            own.assign(0.8 * own + 0.2 * other)
        return losses

    return record("deep_q", [states, after, rewards, ends, actions], {"network": network, "target": target}, step)


def proximal():
    """Proximal policy optimization with an entropy bonus; the value function has an optimizer of its own."""
    actor, critic = dense(3, 5, 3), dense(3, 5, 1)
    of_actor, of_critic = keras.optimizers.Adam(0.03), keras.optimizers.Adam(0.01)
    states, actions, advantages, returns = normal(ROWS, 3), integers(3, ROWS), normal(ROWS), normal(ROWS)
    before = tf.reduce_sum(tf.nn.log_softmax(actor(states)) * tf.one_hot(actions, 3), axis=1).numpy()

    def policy_loss():
        logs = tf.nn.log_softmax(actor(states))
        chosen = tf.reduce_sum(logs * tf.one_hot(actions, 3), axis=1)
        ratio = tf.exp(chosen - before)
        clipped = tf.clip_by_value(ratio, 0.95, 1.05)
        entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(logs) * logs, axis=1))
        loss = -tf.reduce_mean(tf.minimum(ratio * advantages, clipped * advantages)) - 0.01 * entropy
        return [loss, tf.reduce_mean(before - chosen)]

    def step():
        losses = train(policy_loss, [actor], of_actor)
        return losses + train(lambda: [tf.reduce_mean((returns - critic(states)[:, 0]) ** 2)], [critic], of_critic)

    return record("proximal", [states, advantages, returns, before, actions], {"actor": actor, "critic": critic}, step)


def detection():
    """RetinaNet's losses: two heads, focal loss, smooth L1 of positive anchors; -1 is background, -2 is ignored."""
    images = keras.Input((4, 4, 2))
    features = layers.Conv2D(4, 3, padding="same", dilation_rate=2, activation="relu")(images)
    classes = layers.Reshape((16, 3))(layers.Conv2D(3, 3, padding="same")(features))
    boxes = layers.Reshape((16, 4))(layers.Conv2D(4, 3, padding="same")(features))
    model = filled(keras.Model(images, [classes, boxes]))
    x, wanted, labels = normal(ROWS, 4, 4, 2), normal(ROWS, 16, 4), integers(5, ROWS, 16) - 2
    sgd = keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True)
    positive, ignored = (labels >= 0).astype(np.float32), (labels == -2).astype(np.float32)

    def loss():
        logits, found = model(x, training=True)
        true = tf.one_hot(labels, 3)
        crossentropy = tf.nn.sigmoid_cross_entropy_with_logits(true, logits)
        probabilities = tf.sigmoid(logits)
        alpha = tf.where(true == 1.0, 0.25, 0.75)
        right = tf.where(true == 1.0, probabilities, 1.0 - probabilities)
        focal = tf.reduce_sum(alpha * (1.0 - right) ** 2.0 * crossentropy, axis=2)
        focal = tf.where(ignored == 1.0, 0.0, focal)
        distance = tf.abs(wanted - found)
        smooth = tf.reduce_sum(tf.where(distance < 1.0, 0.5 * distance**2, distance - 0.5), axis=2)
        smooth = tf.where(positive == 1.0, smooth, 0.0)
        count = tf.maximum(tf.reduce_sum(positive, axis=1), 1.0)
        parts = [tf.reduce_mean(tf.reduce_sum(part, axis=1) / count) for part in (focal, smooth)]
        return [parts[0] + parts[1], *parts]

    return record("detection", [x, wanted, labels], {"model": model}, lambda: train(loss, [model], sgd))


def meta_learning():
    """MAML: the loss after a step of gradient descent is differentiated through that step."""
    model, adam = dense(2, 5, 1), keras.optimizers.Adam(0.01)
    support, query, of_support, of_query = normal(ROWS, 2), normal(ROWS, 2), normal(ROWS, 1), normal(ROWS, 1)

    def answers(x, weights):
        return tf.matmul(tf.tanh(tf.matmul(x, weights[0]) + weights[1]), weights[2]) + weights[3]

    def loss():
        weights = [weight.value for weight in model.trainable_weights]
        for _ in range(2):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                inner = tf.reduce_mean((answers(support, weights) - of_support) ** 2)
            weights = [weight - 0.2 * gradient for weight, gradient in zip(weights, tape.gradient(inner, weights))]
        return [tf.reduce_mean((answers(query, weights) - of_query) ** 2), inner]

    return record("meta", [support, query, of_support, of_query], {"model": model}, lambda: train(loss, [model], adam))


class Quantizer(layers.Layer):
    def build(self, _):
        self.codes = self.add_weight(shape=(2, 4))

    def call(self, x):
        distances = ops.sum(x**2, axis=1, keepdims=True) + ops.sum(self.codes**2, axis=0) - 2 * ops.matmul(x, self.codes)
        chosen = ops.transpose(ops.take(self.codes, ops.argmin(distances, axis=1), axis=1))
        self.add_loss(0.25 * ops.mean((ops.stop_gradient(chosen) - x) ** 2) + ops.mean((chosen - ops.stop_gradient(x)) ** 2))
        return x + ops.stop_gradient(chosen - x)


def quantized():
    """VQ-VAE: the nearest code, a gradient straight through, losses that a layer adds."""
    model = filled(keras.Sequential([keras.Input((4,)), layers.Dense(2), Quantizer(), layers.Dense(4, kernel_regularizer="l2")]))
    x, adam = normal(ROWS, 4), keras.optimizers.Adam(0.01)

    def loss():
        again = model(x, training=True)
        error, added = tf.reduce_mean((x - again) ** 2), sum(model.losses)
        return [error / 0.5 + added, error, added]

    return record("quantized", [x], {"model": model}, lambda: train(loss, [model], adam))


def mixture():
    """A mixture density network, and the weights of two tasks by their uncertainty."""
    model, adam = dense(2, 6, 7), keras.optimizers.Adam(0.01)
    x, y, labels = normal(ROWS, 2), normal(ROWS, 1), uniform(ROWS).round().astype(np.float32)
    uncertainty = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
    uncertainty = filled(uncertainty)

    def loss():
        found = model(x)
        logits, means, scales = found[:, :2], found[:, 2:4], 1e-3 + tf.nn.softplus(found[:, 4:6])
        normal_logs = -0.5 * ((y - means) / scales) ** 2 - tf.math.log(scales) - 0.5 * np.log(2 * np.pi).astype(np.float32)
        likelihood = tf.reduce_logsumexp(tf.nn.log_softmax(logits) + normal_logs, axis=1)
        crossentropy = tf.nn.sigmoid_cross_entropy_with_logits(labels, found[:, 6])
        parts = [-tf.reduce_mean(likelihood), tf.reduce_mean(crossentropy)]
        variances = [tf.reshape(weight, ()) for weight in uncertainty.trainable_weights]
        return [sum(tf.exp(-log) * part + log for part, log in zip(parts, variances)), *parts]

    models = {"model": model, "uncertainty": uncertainty}
    return record("mixture", [x, y, labels], models, lambda: train(loss, models.values(), adam))


def left_out():
    """Padded steps and a class that is left out, as `loss(y, y_pred, sample_weight)` counts them by itself.

    Keras divides by the number of steps, whatever they weigh, and the weights here have the mean 1.
    """
    model = filled(keras.Sequential([
        keras.Input((4,), dtype="int32"), layers.Embedding(6, 3, mask_zero=True), layers.LSTM(4, return_sequences=True), layers.Dense(3)]))
    words, labels, sgd = integers(6, ROWS, 4), integers(4, ROWS, 4) - 1, keras.optimizers.SGD(0.1)
    counts = (words != 0) & (labels != -1)
    weights = uniform(ROWS, 4) + 0.5
    weights = (weights * np.sum(counts) / np.sum(weights * counts)).astype(np.float32)
    of_labels = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)

    def loss():
        logits = model(words, training=True)
        return [of_labels(labels, logits, sample_weight=weights), of_labels(labels, logits)]

    accuracy = keras.metrics.SparseCategoricalAccuracy()
    accuracy.update_state(np.maximum(labels, 0), model(words))
    counted = number(accuracy.result())
    return {**record("left_out", [words, labels, weights], {"model": model}, lambda: train(loss, [model], sgd)), "accuracy": counted}


def circle():
    """Keras' circle loss, which compares all examples of the batch."""
    model, x, labels, sgd = dense(4, 6, 3), normal(ROWS, 4), integers(2, ROWS), keras.optimizers.SGD(0.01)
    compared = keras.losses.Circle(gamma=2.0)
    loss = lambda: [compared(labels, tf.math.l2_normalize(model(x), axis=1))]
    return record("circle", [x, labels], {"model": model}, lambda: train(loss, [model], sgd))


def sharpness():
    """Sharpness-aware minimization: the gradient is of weights that were moved up the slope."""
    model, x, labels, adam = dense(3, 6, 3), normal(ROWS, 3), integers(3, ROWS), keras.optimizers.Adam(0.01)

    def step():
        weights = model.trainable_weights
        with tf.GradientTape() as tape:
            first = tf.reduce_mean(sparse(labels, model(x)))
        gradients = tape.gradient(first, weights)
        moves = [0.5 * gradient / tf.linalg.global_norm(gradients) for gradient in gradients]
        for weight, move in zip(weights, moves):
            weight.assign_add(move)
        with tf.GradientTape() as tape:
            second = tf.reduce_mean(sparse(labels, model(x)))
        gradients = tape.gradient(second, weights)
        for weight, move in zip(weights, moves):
            weight.assign_sub(move)
        adam.apply_gradients(zip(gradients, weights))
        return [number(first), number(second)]

    return record("sharpness", [x, labels], {"model": model}, step)


def reptile():
    """Reptile: some way towards where two steps of descent end."""
    model, x, y, sgd = dense(3, 6, 1), normal(ROWS, 3), normal(ROWS, 1), keras.optimizers.SGD(0.2, momentum=0.5)

    def step():
        before = [weight.numpy() for weight in model.weights]
        losses = [train(lambda: [tf.reduce_mean((model(x) - y) ** 2)], [model], sgd)[0] for _ in range(2)]
        for weight, old in zip(model.weights, before):
            weight.assign(old + 0.25 * (weight - old))
        return losses

    return record("reptile", [x, y], {"model": model}, step)


class Switch(layers.Layer):
    """Each row goes to the expert that the router likes best, of which each takes 2 rows at most."""

    def build(self, _):
        self.router = self.add_weight(shape=(3, 3))
        self.experts = self.add_weight(shape=(3, 3, 4))

    def call(self, x):
        shares = tf.nn.softmax(tf.matmul(x, self.router))
        chosen = tf.one_hot(tf.argmax(shares, axis=1), 3)
        self.add_loss(tf.reduce_mean(tf.reduce_mean(shares, axis=0) * tf.reduce_mean(chosen, axis=0)) * 9.0)
        kept = chosen * tf.cast(tf.cumsum(chosen, axis=0) * chosen <= 2.0, tf.float32)
        answers = tf.einsum("bi,eio->beo", x, self.experts)
        return tf.einsum("beo,be->bo", answers, kept * tf.reduce_max(shares, axis=1, keepdims=True))


def switch(replicas):
    """A switch transformer's layer, which looks at the rows of a replica."""
    layer, adam = Switch(), keras.optimizers.Adam(0.01)
    layer.build(None)
    layer.set_weights([normal(*weight.shape) for weight in layer.get_weights()])
    x, y = normal(6, 3), normal(6, 4)

    def loss():
        parts = []
        for own, wanted in zip(np.split(x, replicas), np.split(y, replicas)):
            error = tf.reduce_mean((layer(own) - wanted) ** 2)
            parts.append([error + layer.losses[0], error, layer.losses[0]])
        return [sum(part) / replicas for part in zip(*parts)]

    return record(f"switch on {replicas}", [x, y], {"model": layer}, lambda: train(loss, [layer], adam))


def style():
    """Neural style transfer: a picture is changed until features look like those of others."""
    def network():
        inputs = keras.Input((4, 4, 2))
        first = layers.Conv2D(3, 3, padding="same", activation="relu")(inputs)
        second = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.MaxPooling2D(2)(first))
        return filled(keras.Model(inputs, [first, second]))

    features, content, look, adam = network(), normal(1, 4, 4, 2), normal(1, 4, 4, 2), keras.optimizers.Adam(0.05)
    picture = filled(keras.Sequential([keras.Input((1,)), layers.Dense(32, use_bias=False)]))

    def gram(x):
        x = tf.reshape(x[0], (-1, x.shape[-1]))
        return tf.matmul(x, x, transpose_a=True)

    def loss():
        image = tf.reshape(picture.trainable_weights[0], (1, 4, 4, 2))
        own, wanted, styled = features(image), features(content), features(look)
        of_style = sum(tf.reduce_mean((gram(a) - gram(b)) ** 2) for a, b in zip(own, styled))
        flow = (image[:, :-1, :-1] - image[:, 1:, :-1]) ** 2 + (image[:, :-1, :-1] - image[:, :-1, 1:]) ** 2
        return [0.1 * of_style + tf.reduce_sum((own[1] - wanted[1]) ** 2) + 0.01 * tf.reduce_sum((flow + 1e-3) ** 1.25)]

    models = {"features": features, "picture": picture}
    return record("style", [content, look], models, lambda: train(loss, [picture], adam))


def captcha():
    """Characters of pictures by memories in both directions, and labels whose places are not known."""
    model = filled(keras.Sequential([
        keras.Input((6, 4)), layers.Conv1D(4, 3, padding="same", activation="relu"),
        layers.Bidirectional(layers.LSTM(3, return_sequences=True)), layers.Dense(4)]))
    x, labels, adam = normal(ROWS, 6, 4), integers(3, ROWS, 3) + 1, keras.optimizers.Adam(0.01)
    labels[1, 2] = labels[3, 1] = labels[3, 2] = 0
    ctc = keras.losses.CTC()
    return record("captcha", [x, labels], {"model": model}, lambda: train(lambda: [ctc(labels, model(x, training=True))], [model], adam))


def physics():
    """A physics-informed network: Burgers' equation, by second derivatives of the network by its inputs."""
    model, points, adam = dense(2, 6, 1), normal(ROWS, 2), keras.optimizers.Adam(0.01)

    def loss():
        with tf.GradientTape() as outer:
            outer.watch(points_of)
            with tf.GradientTape() as inner:
                inner.watch(points_of)
                u = model(points_of)
            first = inner.gradient(u, points_of)
            slope = first[:, 1:]
        curve = outer.gradient(slope, points_of)[:, 1:]
        residual = first[:, :1] + u * slope - 0.1 * curve
        return [tf.reduce_mean(residual**2) + tf.reduce_mean((u - np.sin(points[:, :1])) ** 2), tf.reduce_mean(residual**2)]

    points_of = tf.constant(points)
    return record("physics", [points], {"model": model}, lambda: train(loss, [model], adam))


def normalized_network(outputs):
    return filled(keras.Sequential([
        keras.Input((3,)), layers.Dense(5, use_bias=False), layers.BatchNormalization(), layers.Activation("relu"), layers.Dense(outputs)]))


def bootstrapped():
    """BYOL: what a slowly moving network makes of another view is predicted; both normalize each view by itself."""
    network, target, predictor = normalized_network(4), normalized_network(4), dense(4, 5, 4, "relu")
    one, two, sgd = normal(ROWS, 3), normal(ROWS, 3), keras.optimizers.SGD(0.1)

    def loss():
        def unlike(a, b):
            predicted = tf.math.l2_normalize(predictor(network(a, training=True)), axis=1)
            wanted = tf.stop_gradient(tf.math.l2_normalize(target(b, training=True), axis=1))
            return 2.0 - 2.0 * tf.reduce_mean(tf.reduce_sum(predicted * wanted, axis=1))

        parts = [unlike(one, two), unlike(two, one)]
        return [parts[0] + parts[1], *parts]

    def step():
        losses = train(loss, [network, predictor], sgd)
        for own, other in zip(target.trainable_weights, network.trainable_weights):
            own.assign(0.9 * own + 0.1 * other)
        return losses

    return record("bootstrapped", [one, two], {"network": network, "target": target, "predictor": predictor}, step)


def consistent():
    """FixMatch: labelled rows and two views of others in one batch, of which the confident ones teach."""
    model, sgd = normalized_network(3), keras.optimizers.SGD(0.1)
    x, weak, strong, labels = normal(ROWS, 3), normal(ROWS, 3), normal(ROWS, 3), integers(3, ROWS)

    def loss():
        logits = model(tf.concat([x, weak, strong], axis=0), training=True)
        known, of_weak, of_strong = tf.split(logits, 3)
        shares = tf.stop_gradient(tf.nn.softmax(of_weak))
        sure = tf.cast(tf.reduce_max(shares, axis=1) > 0.5, tf.float32)
        taught = tf.reduce_mean(sparse(tf.argmax(shares, axis=1), of_strong) * sure)
        supervised = tf.reduce_mean(sparse(labels, known))
        return [supervised + 0.5 * taught, supervised, taught]

    return record("consistent", [x, weak, strong, labels], {"model": model}, lambda: train(loss, [model], sgd))


if __name__ == "__main__":
    write("ports", [contrastive(), redundancy(), diffusion(), vision_transformer(), language_model(), radiance(), graph(), deep_q(),
                    proximal(), detection(), meta_learning(), quantized(), mixture(), left_out(), circle(),
                    sharpness(), reptile(), switch(1), switch(2), style(), captcha(), physics(), bootstrapped(), consistent()])
