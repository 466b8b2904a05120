"""cells.json: Keras' `RNN` around cells of a program and of its own: outputs and gradients, with masks, backwards, with first states, and trainings.

The same cells are in `crates/phalanx/tests/own_parts/cells.rs`.
"""

from golden import array, arrays, keras, np, number, tf, write

ops = keras.ops
ROWS, STEPS, FEATURES = 3, 5, 2


@keras.saving.register_keras_serializable("phalanx")
class Minimal(keras.layers.Layer):
    """The example on Keras' page of `RNN`."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.state_size = units

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), initializer="uniform", name="kernel")
        self.recurrent_kernel = self.add_weight(shape=(self.units, self.units), initializer="uniform", name="recurrent_kernel")

    def call(self, inputs, states):
        prev_output = states[0]
        h = ops.matmul(inputs, self.kernel)
        output = h + ops.matmul(prev_output, self.recurrent_kernel)
        return output, [output]

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable("phalanx")
class Memory(keras.layers.Layer):
    """Two states of different sizes, the second of which begins with halves, and an output of a third."""

    def __init__(self, units, slots, **kwargs):
        super().__init__(**kwargs)
        self.units, self.slots = units, slots
        self.state_size = [units, slots]
        self.output_size = units + slots

    def build(self, input_shape):
        def weight(name, rows, columns):
            return self.add_weight(shape=(rows, columns), initializer="uniform", name=name)

        self.kernel = weight("kernel", input_shape[-1], self.units)
        self.recurrent_kernel = weight("recurrent_kernel", self.units, self.units)
        self.read = weight("read", self.slots, self.units)
        self.write = weight("write", self.units, self.slots)

    def get_initial_state(self, batch_size=None):
        return [ops.zeros((batch_size, self.units)), ops.full((batch_size, self.slots), 0.5)]

    def call(self, inputs, states):
        h, slots = states
        h = ops.tanh(ops.matmul(inputs, self.kernel) + ops.matmul(h, self.recurrent_kernel) + ops.matmul(slots, self.read))
        slots = 0.75 * slots + ops.sigmoid(ops.matmul(h, self.write))
        return ops.concatenate([h, slots], axis=-1), [h, slots]

    def get_config(self):
        return {**super().get_config(), "units": self.units, "slots": self.slots}


CLASSES = {
    "minimal": Minimal,
    "memory": Memory,
    "lstm": keras.layers.LSTMCell,
    "gru": keras.layers.GRUCell,
    "simple_rnn": keras.layers.SimpleRNNCell,
}


def random(rng, shape):
    return rng.uniform(-0.9, 0.9, shape).astype(np.float32)


def run(name, cells, options=None, masked=False, given=False, both=False, train=False):
    """What a layer makes of a sequence, the gradients of a sum of all it gives, and perhaps three steps of a training with a dense layer on top."""
    options = options or {}
    rng = np.random.default_rng(17)
    made = [CLASSES[kind](**settings) for cell in cells for kind, settings in cell.items()]
    layer = keras.layers.RNN(made if len(made) > 1 else made[0], **options)
    if both:
        layer = keras.layers.Bidirectional(layer, merge_mode="sum")
    x = random(rng, (ROWS, STEPS, FEATURES))
    # Padding at first, between, at last, and nowhere.
    mask = np.array([[0, 1, 1, 0, 1], [1, 1, 1, 0, 0], [1] * STEPS], dtype=bool) if masked else None
    layer(x)
    layer.set_weights([random(rng, w.shape) for w in layer.weights])
    inputs = tf.constant(x)
    sizes = [s for cell in made for s in tf.nest.flatten(cell.state_size)] if given else []
    first = [tf.constant(random(rng, (ROWS, size))) for size in sizes]
    with tf.GradientTape() as tape:
        tape.watch([inputs, *first])
        call = {"initial_state": first if len(first) > 1 else first[0]} if first else {}
        outputs = layer(inputs, mask=None if mask is None else tf.constant(mask), **call)
        outputs = tf.nest.flatten(outputs)
        cotangents = [random(rng, o.shape) for o in outputs]
        total = sum(tf.reduce_sum(o * c) for o, c in zip(outputs, cotangents))
    wanted = [inputs, *first, *layer.trainable_weights]
    found = tape.gradient(total, wanted)
    record = {
        "name": name, "cells": cells, "options": options, "both": both, "x": array(x), "mask": None if mask is None else array(mask),
        "first": arrays(first), "weights": arrays(layer.get_weights()), "outputs": arrays(outputs), "cotangents": arrays(cotangents),
        "gradients": arrays(found),
    }
    if train:
        record |= training(rng, layer, x, mask)
    return record


def training(rng, layer, x, mask):
    """Three steps of gradient descent with a dense layer on the output."""
    steps, masks = keras.Input((STEPS, FEATURES)), keras.Input((STEPS,), dtype="bool")
    output = layer(steps, mask=None if mask is None else masks)
    # The dense layer hands the mask on, which would weigh the losses of steps.
    output = keras.layers.Flatten()(output)
    model = keras.Model([steps, masks], keras.layers.Dense(2)(output))
    dense = [random(rng, w.shape) for w in model.layers[-1].weights]
    model.layers[-1].set_weights(dense)
    y = random(rng, (ROWS, 2))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    given = [x, np.ones((ROWS, STEPS), bool) if mask is None else mask]
    losses = []
    for _ in range(3):
        losses.append(number(model.train_on_batch(given, y)))
        # Early versions of Keras 3 give means over all calls.
        model.reset_metrics()
    return {"dense": arrays(dense), "y": array(y), "losses": losses, "final": arrays(model.get_weights())}


if __name__ == "__main__":
    minimal, memory = [{"minimal": {"units": 3}}], [{"memory": {"units": 3, "slots": 2}}]
    sequences, states = {"return_sequences": True}, {"return_state": True}
    zeros, backwards = {"zero_output_for_mask": True}, {"go_backwards": True}
    builtin = [{"lstm": {"units": 3}}, {"gru": {"units": 2, "reset_after": False}}, {"gru": {"units": 3}}, {"simple_rnn": {"units": 2}}]
    write("cells", [
        run("minimal", minimal, train=True),
        run("minimal_of_all_steps", minimal, sequences),
        run("minimal_backwards", minimal, {**backwards, **sequences, **states}),
        run("minimal_masked", minimal, masked=True),
        run("memory", memory),
        run("memory_masked", memory, masked=True, train=True),
        run("memory_masked_last_zero", memory, zeros, masked=True),
        run("memory_masked_of_all_steps", memory, {**sequences, **states}, masked=True),
        run("memory_masked_zeros", memory, {**sequences, **zeros}, masked=True),
        run("memory_masked_backwards", memory, {**sequences, **backwards, **states}, masked=True),
        run("memory_masked_unrolled", memory, {**sequences, "unroll": True, **states}, masked=True),
        run("memory_unrolled", memory, {"unroll": True}),
        run("memory_with_first_states", memory, {**sequences, **states}, given=True),
        run("memory_backwards_with_first_states", memory, {**backwards, **states}, given=True),
        run("memory_both_ways", memory, sequences, masked=True, both=True, train=True),
        run("memory_both_ways_last", memory, states, masked=True, both=True),
        run("stacked", memory + minimal, sequences, masked=True, train=True),
        run("stacked_states", minimal + memory, states),
        run("stack_of_keras", builtin, sequences, masked=True, train=True),
        run("stack_of_keras_backwards", builtin, {**backwards, **sequences}),
    ])
