"""JAX (flax, optax) on one device: python single_jax.py mlp|cnn|fit_mlp BATCH BUDGET (see timing.py)."""

import timing

from functools import partial

import flax.linen as nn
import jax
import numpy as np
import optax


class Mlp(nn.Module):
    """784-128-relu-10."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.relu(nn.Dense(128)(x)))


class Cnn(nn.Module):
    """Two convolutions, pooling, two dense layers."""

    @nn.compact
    def __call__(self, x):
        convolution = partial(nn.Conv, kernel_size=(3, 3), padding="VALID")
        x = nn.relu(convolution(64)(nn.relu(convolution(32)(x))))
        x = nn.max_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1)
        return nn.Dense(10)(nn.relu(nn.Dense(128)(x)))


class Trainer:
    """Parameters, the optimizer's state and the compiled step, which donates both."""

    def __init__(self, model, example):
        network = Cnn() if model == "cnn" else Mlp()
        optimizer = optax.sgd(0.01, momentum=0.9)
        self.parameters = network.init(jax.random.key(0), example)
        self.state = optimizer.init(self.parameters)

        @partial(jax.jit, donate_argnums=(0, 1))
        def step(parameters, state, x, y):
            def loss_of(p):
                return optax.softmax_cross_entropy_with_integer_labels(network.apply(p, x), y).mean()

            loss, gradients = jax.value_and_grad(loss_of)(parameters)
            updates, state = optimizer.update(gradients, state, parameters)
            return optax.apply_updates(parameters, updates), state, loss

        self.compiled = step

    def step(self, x, y):
        """One whole training step; its loss."""
        self.parameters, self.state, loss = self.compiled(self.parameters, self.state, x, y)
        return loss


def epoch(trainer, x, y, batch, rng):
    """An epoch over a random permutation, by indexing NumPy arrays."""
    order = rng.permutation(len(x))
    losses = [trainer.step(x[rows], y[rows]) for rows in (order[i : i + batch] for i in range(0, len(x), batch))]
    return float(np.mean(jax.device_get(losses)))


def main():
    """Times what was asked."""
    asked = timing.arguments()
    x, y = timing.data(asked.model, asked.batch)
    trainer = Trainer(asked.model, x[:2])
    if asked.model == "fit_mlp":
        rng = np.random.default_rng(1)
        seconds = timing.epoch_times(lambda: epoch(trainer, x, y, asked.batch, rng), asked.budget)
    else:
        x, y = jax.device_put(x), jax.device_put(y)
        seconds = timing.step_times(asked.model, lambda: trainer.step(x, y).item(), asked.budget)
    timing.emit(f"jax_{asked.model}", "jax", jax.__version__, asked, seconds)


if __name__ == "__main__":
    main()
