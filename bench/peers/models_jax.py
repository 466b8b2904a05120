"""JAX (flax, optax) on whole models: python models_jax.py MODEL BATCH [--work predict] (see README.md)."""

import turns

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax


def block(x, features, stride, convolution, normal):
    """Three convolutions around a shortcut; the stride is in the first, as in the article and in Keras."""
    shortcut = x
    y = nn.relu(normal()(convolution(features, (1, 1), strides=stride)(x)))
    y = nn.relu(normal()(convolution(features, (3, 3))(y)))
    y = normal()(convolution(4 * features, (1, 1))(y))
    if shortcut.shape != y.shape:
        shortcut = normal()(convolution(4 * features, (1, 1), strides=stride)(x))
    return nn.relu(y + shortcut)


def inverted(x, features, stride, expansion, convolution, normal):
    """An expansion, a convolution of each channel by itself, a projection; a shortcut where shapes allow."""
    inner = expansion * x.shape[-1]
    y = x if expansion == 1 else nn.relu6(normal()(convolution(inner, (1, 1))(x)))
    y = nn.relu6(normal()(convolution(inner, (3, 3), strides=stride, feature_group_count=inner)(y)))
    y = normal()(convolution(features, (1, 1))(y))
    return x + y if x.shape == y.shape else y


class ResNet50(nn.Module):
    """ResNet-50."""

    dtype: jnp.dtype
    trains: bool

    @nn.compact
    def __call__(self, x):
        convolution = partial(nn.Conv, use_bias=False, dtype=self.dtype)
        normal = partial(nn.BatchNorm, use_running_average=not self.trains, dtype=self.dtype)
        x = nn.relu(normal()(convolution(64, (7, 7), strides=2, padding=3)(x)))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for stage, count in enumerate([3, 4, 6, 3]):
            for index in range(count):
                x = block(x, 64 * 2**stage, 2 if stage > 0 and index == 0 else 1, convolution, normal)
        return nn.Dense(turns.CLASSES)(x.mean((1, 2)).astype(jnp.float32))


class MobileNetV2(nn.Module):
    """MobileNetV2."""

    dtype: jnp.dtype
    trains: bool

    @nn.compact
    def __call__(self, x):
        convolution = partial(nn.Conv, use_bias=False, dtype=self.dtype)
        normal = partial(nn.BatchNorm, use_running_average=not self.trains, dtype=self.dtype)
        x = nn.relu6(normal()(convolution(32, (3, 3), strides=2)(x)))
        stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
        for expansion, features, count, stride in stages:
            for index in range(count):
                x = inverted(x, features, stride if index == 0 else 1, expansion, convolution, normal)
        x = nn.relu6(normal()(convolution(1280, (1, 1))(x)))
        return nn.Dense(turns.CLASSES)(x.mean((1, 2)).astype(jnp.float32))


class Cnn(nn.Module):
    """Two convolutions, pooling, two dense layers."""

    dtype: jnp.dtype
    trains: bool

    @nn.compact
    def __call__(self, x):
        convolution = partial(nn.Conv, kernel_size=(3, 3), padding="VALID", dtype=self.dtype)
        x = nn.relu(convolution(64)(nn.relu(convolution(32)(x))))
        x = nn.max_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1)
        return nn.Dense(turns.CLASSES)(nn.relu(nn.Dense(128)(x)))


class Transformer(nn.Module):
    """An encoder of 4 layers, normalised before each part, and a projection to the vocabulary."""

    dtype: jnp.dtype
    trains: bool

    @nn.compact
    def __call__(self, x, width=256, heads=4, inner=1024, count=4):
        dense, normal = partial(nn.Dense, dtype=self.dtype), partial(nn.LayerNorm, dtype=self.dtype)
        places = self.param("places", nn.initializers.normal(0.02), (turns.LENGTH, width))
        x = nn.Embed(turns.VOCABULARY, width, dtype=self.dtype)(x) + places
        for _ in range(count):
            x = x + nn.MultiHeadDotProductAttention(heads, dtype=self.dtype)(normal()(x))
            x = x + dense(width)(nn.gelu(dense(inner)(normal()(x)), approximate=False))
        return dense(turns.VOCABULARY)(normal()(x)).astype(jnp.float32)


def build(asked):
    """The network."""
    models = {"resnet50": ResNet50, "mobilenet_v2": MobileNetV2, "cnn": Cnn, "transformer": Transformer}
    return models[asked.model](jnp.bfloat16 if asked.bf16 else jnp.float32, asked.work == "train")


class Trainer:
    """Variables, the optimizer's state and the compiled step, which donates both."""

    def __init__(self, asked, x, y):
        network = build(asked)
        optimizer = optax.adam(1e-3) if asked.model == "transformer" else optax.sgd(0.01, momentum=0.9)
        variables = jax.jit(network.init)(jax.random.key(0), x[:1])
        parameters, statistics = variables["params"], variables.get("batch_stats", {})
        self.state = parameters, statistics, optimizer.init(parameters)
        self.x, self.y = x, y

        @partial(jax.jit, donate_argnums=0)
        def step(state, x, y):
            parameters, statistics, slots = state

            def loss_of(p):
                scores, changed = network.apply({"params": p, "batch_stats": statistics}, x, mutable=["batch_stats"])
                return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean(), changed

            (loss, changed), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters)
            updates, slots = optimizer.update(gradients, slots, parameters)
            return (optax.apply_updates(parameters, updates), changed.get("batch_stats", {}), slots), loss

        self.compiled = step

    def step(self):
        """One whole training step; its loss."""
        self.state, loss = self.compiled(self.state, self.x, self.y)
        return loss.item()


def forward(asked, x, y):
    """The outputs, or the loss of them; the first number."""
    network = build(asked)
    variables = jax.jit(network.init)(jax.random.key(0), x[:1])

    @jax.jit
    def compiled(variables, x, y):
        scores = network.apply(variables, x)
        if asked.work == "predict":
            return scores
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

    return lambda: np.asarray(compiled(variables, x, y)).flat[0].item()


def main():
    """Serves steps."""
    asked = turns.arguments()
    x, y = turns.data(asked)
    if not asked.host_batch:
        x, y = jax.device_put(x), jax.device_put(y)
    step = Trainer(asked, x, y).step if asked.work == "train" else forward(asked, x, y)
    turns.serve("jax", jax.__version__, asked.variant, step)


if __name__ == "__main__":
    main()
