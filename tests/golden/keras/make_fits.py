"""fits.json: trainings by `fit` with settings that have something to do with each other, on batches that no number of workers divides.

The same trainings are in `crates/phalanx/tests/workers/keras.rs`.
"""

from golden import array, arrays, keras, np, number, write

ROWS, BATCH, TESTED, TEST_BATCH = 21, 6, 9, 4
layers, optimizers, callbacks = keras.layers, keras.optimizers, keras.callbacks
rng = np.random.default_rng(29)


def train(name, optimizer, epochs, calls):
    model = keras.Sequential([
        keras.Input((5,)), layers.Dense(7, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01)),
        layers.BatchNormalization(momentum=0.9, epsilon=0.1), layers.Dense(1, activation="sigmoid")])
    model.set_weights([weight + rng.uniform(-0.3, 0.3, weight.shape).astype(np.float32) for weight in model.get_weights()])
    initial = arrays(model.get_weights())
    x = rng.standard_normal((ROWS, 5)).astype(np.float32)
    y = (x[:, :1] + 0.5 * x[:, 1:2] * x[:, 2:3] > 0).astype(np.float32)
    model.compile(optimizer, "binary_crossentropy", metrics=[keras.metrics.AUC(num_thresholds=50, name="auc"), "binary_accuracy"])
    rates = []
    note = callbacks.LambdaCallback(on_epoch_end=lambda *_: rates.append(number(model.optimizer.learning_rate)))
    history = model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, validation_data=(x[:TESTED], y[:TESTED]),
                        validation_batch_size=TEST_BATCH, callbacks=[*calls, note])
    logs = {log: [number(v) for v in values] for log, values in history.history.items() if log != "learning_rate"}
    return {"name": name, "x": array(x), "y": array(y), "initial": initial, "logs": logs, "rates": rates, "final": arrays(model.get_weights())}


records = [
    train("accumulation", optimizers.SGD(
        optimizers.schedules.CosineDecay(0.2, 14), momentum=0.9, nesterov=True, global_clipnorm=0.1, gradient_accumulation_steps=3), 4, []),
    train("averages", optimizers.Adam(
        0.03, epsilon=1e-3, clipnorm=0.05, weight_decay=0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3), 4, []),
    train("callbacks", optimizers.RMSprop(0.05, epsilon=1e-3, global_clipnorm=0.3), 30, [
        callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.01),
        callbacks.EarlyStopping("val_loss", min_delta=0.005, patience=3, restore_best_weights=True)]),
]
write("fits", records)
