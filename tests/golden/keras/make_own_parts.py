"""own_parts.json: trainings with an optimizer, a schedule and a metric that derive from Keras' classes, by `fit`.

The same parts are in `crates/phalanx/tests/replicas/own.rs`.
"""

from golden import array, arrays, keras, np, number, tf, write

ROWS, BATCH, EPOCHS = 18, 6, 3


class InverseRoot(keras.optimizers.schedules.LearningRateSchedule):
    """`first / sqrt(1 + step / steps)`."""

    def __init__(self, first, steps):
        self.first, self.steps = first, steps

    def __call__(self, step):
        return self.first / tf.sqrt(1.0 + tf.cast(step, tf.float32) / self.steps)


class SoftSign(keras.optimizers.Optimizer):
    """Steps along the mean gradient, whose size saturates, biases twice as far; a power of the whole optimizer corrects the mean."""

    def __init__(self, learning_rate, kept=0.8, **options):
        super().__init__(learning_rate=learning_rate, **options)
        self.kept = kept

    def build(self, variables):
        super().build(variables)
        self.means = self.add_optimizer_variables(variables, "mean")
        self.power = self.add_variable(shape=(), initializer="ones", name="power")

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        self.power.assign(self.power * self.kept)
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def update_step(self, gradient, variable, learning_rate):
        mean = self.means[self._get_variable_index(variable)]
        mean.assign(mean * self.kept + gradient * (1.0 - self.kept))
        unbiased = mean / (1.0 - self.power)
        factor = 2.0 if "bias" in variable.name else 1.0
        variable.assign(variable - factor * learning_rate * unbiased / (tf.abs(unbiased) + 0.1))


class Within(keras.metrics.Metric):
    """The mean over thresholds of the share of examples whose target is so near the mean of the predictions."""

    def __init__(self, thresholds, name="within"):
        super().__init__(name=name)
        self.thresholds = thresholds
        self.hits = self.add_weight(shape=(len(thresholds),), initializer="zeros", name="hits")
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = tf.abs(tf.reshape(y_true, [-1]) - tf.reduce_mean(y_pred, axis=1))
        weight = tf.ones_like(error) if sample_weight is None else tf.reshape(sample_weight, [-1])
        hits = [tf.reduce_sum(weight * tf.cast(error <= limit, tf.float32)) for limit in self.thresholds]
        self.hits.assign_add(tf.stack(hits))
        self.count.assign_add(tf.reduce_sum(weight))

    def result(self):
        return tf.reduce_mean(self.hits) / self.count


def run(name, rate, **options):
    """A training from given weights: what `fit` logs after each epoch, and the weights at the end."""
    rng = np.random.default_rng(31)
    x = rng.standard_normal((ROWS, 3)).astype(np.float32)
    y = np.tanh(x[:, :1] - 0.5 * x[:, 1:2]).astype(np.float32)
    # Of each batch as much as it has rows, by which Keras divides its loss.
    weights = np.tile(np.float32([1.5, 0.5, 0.0, 2.0, 1.25, 0.75]), ROWS // BATCH)
    initial = [rng.uniform(-0.7, 0.7, s).astype(np.float32) for s in ([3, 4], [4], [4, 1], [1])]
    layers = [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.set_weights(initial)
    schedule = InverseRoot(**rate) if isinstance(rate, dict) else rate
    limits = [0.1, 0.4, 1.0]
    model.compile(SoftSign(schedule, **options), "mse", metrics=[Within(limits)], weighted_metrics=[Within(limits, "weighted")])
    rates = []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: rates.append(number(model.optimizer.learning_rate)))
    logs = model.fit(x, y, sample_weight=weights, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[watch])
    results = {what: [number(v) for v in logs.history[what]] for what in ("loss", "within", "weighted")}
    return {
        "name": name, "rate": rate, "options": options, "x": array(x), "y": array(y), "weights": array(weights), "initial": arrays(initial),
        "logs": results, "rates": rates, "final": arrays(model.get_weights()),
    }


if __name__ == "__main__":
    falling = {"first": 0.1, "steps": 3}
    write("own_parts", [
        run("alone", falling),
        run("constant", 0.05),
        run("clipped_decayed_averaged", falling, global_clipnorm=0.5, weight_decay=0.02, use_ema=True, ema_momentum=0.8),
        run("accumulated", falling, clipnorm=0.4, gradient_accumulation_steps=3),
    ])
