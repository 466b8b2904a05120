"""loops.json: training steps by hand, of Keras' examples: a variational autoencoder, distillation, a WGAN with a penalty of gradients.

Noise is an input, and the steps repeat on one batch. The same steps are in `crates/phalanx/tests/custom_loops/keras.rs`.
"""

from golden import array, arrays, keras, np, number, tf, write

STEPS, ROWS = 5, 6
layers = keras.layers
rng = np.random.default_rng(17)


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def filled(model):
    """The model with weights that no initializer gives."""
    model.set_weights([rng.uniform(-0.6, 0.6, weight.shape).astype(np.float32) for weight in model.get_weights()])
    return model


def train(loss_of, models, optimizer):
    """A step of an optimizer; the numbers are its loss and what it is made of."""
    variables = [variable for model in models for variable in model.trainable_weights]
    with tf.GradientTape() as tape:
        parts = loss_of()
    optimizer.apply_gradients(zip(tape.gradient(parts[0], variables), variables))
    return [number(part) for part in parts]


def record(name, inputs, models, step):
    initial = {name: arrays(model.get_weights()) for name, model in models.items()}
    losses = [step() for _ in range(STEPS)]
    final = {name: arrays(model.get_weights()) for name, model in models.items()}
    return {"name": name, "inputs": [array(value) for value in inputs], "initial": initial, "losses": losses, "final": final}


def autoencoder():
    x = keras.Input((5,))
    hidden = layers.Dense(4, activation="relu")(x)
    encoder = filled(keras.Model(x, [layers.Dense(2)(hidden), layers.Dense(2)(hidden)]))
    decoder = filled(keras.Sequential([keras.Input((2,)), layers.Dense(4, activation="relu"), layers.Dense(5, activation="sigmoid")]))
    images, noise, adam = rng.random((ROWS, 5)).astype(np.float32), normal(ROWS, 2), keras.optimizers.Adam(0.01)

    def loss():
        mean, log_variance = encoder(images)
        again = decoder(mean + tf.exp(0.5 * log_variance) * noise)
        of_images = tf.reduce_mean(5.0 * keras.losses.binary_crossentropy(images, again))
        divergence = -0.5 * (1.0 + log_variance - tf.square(mean) - tf.exp(log_variance))
        divergence = tf.reduce_mean(tf.reduce_sum(divergence, axis=1))
        return of_images + divergence, of_images, divergence

    models = {"encoder": encoder, "decoder": decoder}
    return record("autoencoder", [images, noise], models, lambda: train(loss, models.values(), adam))


def distillation():
    def network(units):
        return filled(keras.Sequential([keras.Input((4,)), layers.Dense(units, activation="relu"), layers.Dense(3)]))

    teacher, student, adam = network(6), network(3), keras.optimizers.Adam(0.01)
    x, labels = normal(ROWS, 4), rng.integers(0, 3, ROWS).astype(np.int32)
    hard, soft = keras.losses.SparseCategoricalCrossentropy(from_logits=True), keras.losses.KLDivergence()

    def loss():
        taught, learnt = teacher(x) / 3.0, student(x)
        student_loss = hard(labels, learnt)
        distilled = soft(tf.nn.softmax(taught, axis=1), tf.nn.softmax(learnt / 3.0, axis=1)) * 9.0
        return 0.1 * student_loss + 0.9 * distilled, student_loss, distilled

    models = {"teacher": teacher, "student": student}
    return record("distillation", [x, labels], models, lambda: train(loss, [student], adam))


def adversaries():
    critic = filled(keras.Sequential([
        keras.Input((4, 4, 1)), layers.Conv2D(3, 3, strides=2, padding="same"), layers.LeakyReLU(negative_slope=0.2), layers.Flatten(),
        layers.Dense(3, activation="tanh"), layers.Dense(1)]))
    generator = filled(keras.Sequential([keras.Input((2,)), layers.Dense(16, activation="tanh"), layers.Reshape((4, 4, 1))]))
    real, noise, between = np.tanh(normal(ROWS, 4, 4, 1)), normal(ROWS, 2), rng.random((ROWS, 1, 1, 1)).astype(np.float32)
    of_critic, of_generator = [keras.optimizers.Adam(0.01, beta_1=0.5, beta_2=0.9) for _ in range(2)]

    def critic_loss():
        made = generator(noise)
        mixed = real + between * (made - real)
        with tf.GradientTape() as tape:
            tape.watch(mixed)
            judged = critic(mixed)
        norms = tf.sqrt(tf.reduce_sum(tf.square(tape.gradient(judged, mixed)), axis=[1, 2, 3]))
        penalty = tf.reduce_mean((norms - 1.0) ** 2)
        return tf.reduce_mean(critic(made)) - tf.reduce_mean(critic(real)) + 10.0 * penalty, penalty

    def step():
        losses = train(critic_loss, [critic], of_critic)
        return losses + train(lambda: [-tf.reduce_mean(critic(generator(noise)))], [generator], of_generator)

    return record("adversaries", [real, noise, between], {"critic": critic, "generator": generator}, step)


if __name__ == "__main__":
    write("loops", [autoencoder(), distillation(), adversaries()])
