"""Writes callbacks.json: what Keras' own callbacks decide on random sequences of results.

    pip install keras==3.15.1 jax
    KERAS_BACKEND=jax python make_callbacks.py

Each of 200 cases has the results of some epochs, with values that are not numbers and with names missing as in epochs
without validation, the settings of each callback, and what Keras does: epochs after which training ends, learning rates,
paths that are written, the bytes of the CSV file. The variables of the model are the number of the epoch, so that what is
restored says of which epoch it is. Results are f32, as in Keras.
"""

import json
import math
import os
import pathlib
import random
import tempfile
import warnings

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

HERE = pathlib.Path(__file__).parent
CASES = 200
NAMES = ["loss", "accuracy", "mse"]

warnings.simplefilter("ignore")


def number(rng, grid):
    """A value as fit reports it: on a grid values repeat and differ by exactly the least difference that counts."""
    if rng.random() < 0.06:
        return float("nan")
    value = rng.randrange(0, 12) / 10 if grid else rng.uniform(0, 1.2)
    return float(np.float32(value))


def epochs_of(rng):
    grid = rng.random() < 0.5
    validates = rng.random() < 0.8
    epochs = []
    for _ in range(rng.randrange(4, 25)):
        logs = {name: number(rng, grid) for name in NAMES}
        if validates and rng.random() < 0.85:
            logs |= {f"val_{name}": number(rng, grid) for name in NAMES}
        epochs.append(logs)
    return epochs


def model():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.1), loss="mse", metrics=["accuracy", "mse"])
    model.fit(np.zeros([2, 1]), np.zeros([2, 1]), verbose=0)
    return model


def set_weights(model, value):
    model.set_weights([np.full([1, 1], value, "float32")])


def monitor(rng):
    return rng.choice(["val_loss", "val_accuracy", "loss", "val_mse", "accuracy"])


def run(model, callback, epochs, each=lambda epoch: None):
    """The epochs of a fit, as far as the callback sees them; returns the number of those done."""
    model.stop_training = False
    callback.set_model(model)
    callback.set_params({"epochs": len(epochs)})
    callback.on_train_begin()
    for epoch, logs in enumerate(epochs):
        callback.on_epoch_begin(epoch)
        set_weights(model, epoch)
        callback.on_epoch_end(epoch, dict(logs))
        each(epoch)
        if model.stop_training:
            break
    callback.on_train_end()
    return epoch + 1


def early_stopping(rng, model, epochs):
    settings = {
        "monitor": monitor(rng),
        "min_delta": rng.choice([0, 0, 0.1, 0.05, 0.3]),
        "patience": rng.randrange(0, 5),
        "mode": rng.choice(["auto", "auto", "min", "max"]),
        "baseline": rng.choice([None, None, 0.5, 0.2]),
        "restore_best_weights": rng.random() < 0.5,
        "start_from_epoch": rng.choice([0, 0, 2, 4]),
    }
    callback = keras.callbacks.EarlyStopping(**settings)
    done = run(model, callback, epochs)
    return settings, {
        "done": done,
        "best_epoch": int(callback.best_epoch),
        "weights": float(model.get_weights()[0][0, 0]),
    }


def reduce_lr_on_plateau(rng, model, epochs):
    settings = {
        "monitor": monitor(rng),
        "factor": rng.choice([0.1, 0.5, 0.9, 0.3]),
        "patience": rng.randrange(0, 4),
        "mode": rng.choice(["auto", "auto", "min", "max"]),
        "min_delta": rng.choice([1e-4, 0.1, 0.0]),
        "cooldown": rng.choice([0, 0, 1, 3]),
        "min_lr": rng.choice([0.0, 0.001, 0.05]),
    }
    model.optimizer.learning_rate = 0.1
    rates = []
    rate = lambda epoch: rates.append(float(model.optimizer.learning_rate.numpy()))
    run(model, keras.callbacks.ReduceLROnPlateau(**settings), epochs, rate)
    return settings, {"rates": rates}


def learning_rate_scheduler(rng, model, epochs):
    settings = {"factor": rng.choice([0.5, 0.9, 1.1]), "every": rng.randrange(1, 4)}
    model.optimizer.learning_rate = 0.1
    rates = []
    rate = lambda epoch: rates.append(float(model.optimizer.learning_rate.numpy()))
    schedule = lambda epoch, lr: lr * settings["factor"] if epoch % settings["every"] == 0 else lr
    run(model, keras.callbacks.LearningRateScheduler(schedule), epochs, rate)
    return settings, {"rates": rates}


PATTERNS = [
    "ckpt_{epoch:02d}-{val_loss:.2f}",
    "{epoch:03d}_{loss:.4e}_{accuracy:06.3f}",
    "e{epoch}",
    "one",
    "{val_mse:.1%}-{mse:g}",
    "{loss}",
]


def model_checkpoint(rng, model, epochs):
    freq = rng.choice(["epoch", "epoch", "epoch", 1, 2, 3, 5])
    patterns = PATTERNS if freq == "epoch" else ["b{epoch}-{batch:03d}", "b{batch}-{loss:.3f}"]
    settings = {
        "filepath": rng.choice(patterns),
        "monitor": monitor(rng) if freq == "epoch" else "loss",
        "mode": rng.choice(["auto", "min", "max"]) if freq == "epoch" else rng.choice(["min", "max"]),
        "save_best_only": rng.random() < 0.6 and freq == "epoch",
        "save_freq": freq,
        "initial_value_threshold": rng.choice([None, None, 0.5]),
    }
    batches = rng.randrange(1, 5)
    saved = []
    suffix = ".weights.h5"

    callback = keras.callbacks.ModelCheckpoint(
        **{**settings, "filepath": settings["filepath"] + suffix}, save_weights_only=True
    )
    model.save_weights = lambda path, overwrite: saved.append(path.removesuffix(suffix))
    callback.set_model(model)
    callback.on_train_begin()
    for epoch, logs in enumerate(epochs):
        callback.on_epoch_begin(epoch)
        for batch in range(batches):
            callback.on_train_batch_end(batch, {"loss": logs["loss"]})
        try:
            callback.on_epoch_end(epoch, dict(logs))
        except KeyError:
            # Keras ends the training here.
            saved.append(None)
    del model.save_weights
    return {**settings, "batches": batches}, {"saved": saved}


def csv_logger(rng, model, epochs):
    settings = {"separator": rng.choice([",", ";", "\t"]), "append": rng.random() < 0.5}
    before = rng.choice([None, "", "epoch,loss\r\n0,1.0\r\n"])
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "log.csv")
        if before is not None:
            path.write_bytes(before.encode())
        run(model, keras.callbacks.CSVLogger(str(path), **settings), epochs)
        text = path.read_bytes().decode()
    return {**settings, "before": before}, {"text": text}


def terminate_on_nan(rng, model, epochs):
    losses = [epoch["loss"] for epoch in epochs]
    callback = keras.callbacks.TerminateOnNaN()
    callback.set_model(model)
    model.stop_training = False
    for batch, loss in enumerate(losses):
        callback.on_batch_end(batch, {"loss": loss})
        if model.stop_training:
            break
    return {}, {"batches": batch + 1}


def plain(value):
    """JSON has no numbers that are not numbers."""
    if isinstance(value, dict):
        return {key: plain(value) for key, value in value.items()}
    if isinstance(value, list):
        return [plain(value) for value in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    return value


def main():
    shared = model()
    cases = []
    for index in range(CASES):
        rng = random.Random(index)
        epochs = epochs_of(rng)
        case = {"epochs": epochs}
        for decide in [
            early_stopping,
            reduce_lr_on_plateau,
            learning_rate_scheduler,
            model_checkpoint,
            csv_logger,
            terminate_on_nan,
        ]:
            settings, decided = decide(rng, shared, epochs)
            case[decide.__name__] = {"settings": settings, "decided": decided}
        cases.append(plain(case))
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "callbacks.json").write_text(f"[\n{lines}\n]\n")


main()
