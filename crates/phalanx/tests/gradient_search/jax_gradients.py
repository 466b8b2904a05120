"""Gradients in f64 by JAX of the programs that the search for wrong gradients sends, a line of JSON each.

A program is a list of nodes; what it computes of a loss is differentiated by JAX, so that neither a derivative nor a
loop of ours is in what ours are compared with.
"""

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
from answers import answer, numbers  # noqa: E402
from jax import lax  # noqa: E402

FLOATS = {"f32", "f64", "f16", "bf16"}

UNARY = {
    "negate": jnp.negative,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "exponential": jnp.exp,
    "exponential_minus_one": jnp.expm1,
    "log": jnp.log,
    "log_plus_one": jnp.log1p,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "tanh": jnp.tanh,
    "logistic": jax.nn.sigmoid,
    "erf": lax.erf,
    "sine": jnp.sin,
    "cosine": jnp.cos,
    "floor": jnp.floor,
    "ceil": jnp.ceil,
    "round_nearest_even": jnp.round,
    "not": jnp.invert,
    "is_finite": jnp.isfinite,
}

BINARY = {
    "add": jnp.add,
    "subtract": jnp.subtract,
    "multiply": jnp.multiply,
    "divide": lax.div,
    "power": jnp.power,
    "remainder": lax.rem,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
}

COMPARE = {
    "EQ": jnp.equal,
    "NE": jnp.not_equal,
    "LT": jnp.less,
    "LE": jnp.less_equal,
    "GT": jnp.greater,
    "GE": jnp.greater_equal,
}

REDUCE = {
    "add": jnp.sum,
    "multiply": jnp.prod,
    "maximum": jnp.max,
    "minimum": jnp.min,
    "and": jnp.all,
    "or": jnp.any,
}


def dtype(name):
    """Floats of every type are f64, integers i64."""
    if name in FLOATS:
        return jnp.float64
    return jnp.bool_ if name == "bool" else jnp.int64


def array(tensor):
    values = [float(value) for value in tensor["values"]]
    return jnp.asarray(values, jnp.float64).reshape(tensor["dims"]).astype(dtype(tensor["dtype"]))


def windows(kind, x, node):
    """A reduction over windows; each dim is size, stride, dilation, low, high."""
    spec = list(zip(*node["window"]))
    size, strides, dilation, low, high = (list(part) for part in spec)
    first, combine = {
        "add": (0.0, lax.add),
        "maximum": (-jnp.inf, lax.max),
        "minimum": (jnp.inf, lax.min),
    }[kind]
    return lax.reduce_window(x, first, combine, size, strides, list(zip(low, high)), window_dilation=dilation)


def convolution(x, kernel, node):
    dims = lax.ConvDimensionNumbers(*(tuple(spec) for spec in node["specs"]))
    return lax.conv_general_dilated(
        x,
        kernel,
        node["strides"],
        [tuple(pair) for pair in node["padding"]],
        lhs_dilation=node["input_dilation"],
        rhs_dilation=node["kernel_dilation"],
        dimension_numbers=dims,
        feature_group_count=node["feature_groups"],
        batch_group_count=node["batch_groups"],
    )


def batch_norm(x, gamma, beta, node):
    others = tuple(range(x.ndim - 1))
    mean = jnp.mean(x, others)
    variance = jnp.mean(jnp.square(x - mean), others)
    return (x - mean) / jnp.sqrt(variance + node["epsilon"]) * gamma + beta, mean, variance


def lstm(x, recurrent, bias, h, c):
    def step(carried, row):
        h, c = carried
        i, f, g, o = jnp.split(row + h @ recurrent + bias, 4, -1)
        i, f, g, o = lax.logistic(i), lax.logistic(f), jnp.tanh(g), lax.logistic(o)
        c = f * c + i * g
        h = o * jnp.tanh(c)
        return (h, c), (h, c, jnp.concatenate([i, f, g, o], -1))

    _, made = lax.scan(step, (h, c), jnp.moveaxis(x, 1, 0))
    return [jnp.moveaxis(rows, 0, 1) for rows in made]


def gru(x, recurrent, bias, h):
    def step(h, row):
        product = h @ recurrent + bias
        x, y, g = jnp.split(row, 3, -1)
        p, q, inner = jnp.split(product, 3, -1)
        z, r = lax.logistic(x + p), lax.logistic(y + q)
        g = jnp.tanh(g + r * inner)
        h = z * h + (1 - z) * g
        return h, (h, jnp.concatenate([z, r, g, inner], -1))

    _, made = lax.scan(step, h, jnp.moveaxis(x, 1, 0))
    return [jnp.moveaxis(rows, 0, 1) for rows in made]


def scan(inputs, node):
    carry, rows = node["carry"], node["xs"]
    first, xs, constants = inputs[:carry], inputs[carry : carry + rows], inputs[carry + rows :]

    def step(carried, row):
        made = run(node["body"], [*carried, *row, *constants])
        return tuple(made[:carry]), tuple(made[carry:])

    last, ys = lax.scan(step, tuple(first), tuple(xs), length=node["length"], reverse=node["reverse"])
    return [*last, *ys]


def scatter_add(base, indices, updates, dim):
    """Adds `updates`, whose dims `dim ..` are those of the indices; what is out of range is dropped."""
    moved = jnp.moveaxis(base, dim, 0)
    front = list(range(dim, dim + indices.ndim))
    updates = jnp.moveaxis(updates, front, list(range(indices.ndim)))
    indices = jnp.where(indices < 0, base.shape[dim], indices)
    return jnp.moveaxis(moved.at[indices].add(updates, mode="drop"), 0, dim)


def one(node, x):
    """The results of a node."""
    op = node["op"]
    if op in ("unary", "binary", "compare"):
        table = {"unary": UNARY, "binary": BINARY, "compare": COMPARE}[op]
        return [table[node["function"]](*x)]
    if op == "constant":
        return [array(node["value"])]
    if op == "iota":
        shape = node["shape"]
        return [lax.broadcasted_iota(jnp.int64, shape["dims"], node["dim"]).astype(dtype(shape["dtype"]))]
    if op == "reduce":
        return [REDUCE[node["kind"]](x[0], tuple(node["dims"]))]
    if op == "dot":
        contract = (node["lhs_contract"], node["rhs_contract"])
        return [lax.dot_general(x[0], x[1], (contract, (node["lhs_batch"], node["rhs_batch"])))]
    if op == "pad":
        return [lax.pad(x[0], x[1], [tuple(dim) for dim in node["pads"]])]
    if op == "slice":
        start, limit, stride = zip(*node["slices"]) if node["slices"] else ((), (), ())
        return [lax.slice(x[0], start, limit, stride)]
    if op == "max_pool":
        return [windows("maximum", x[0], node), jnp.zeros(node["shape"]["dims"], jnp.int64)]
    if op == "gather":
        last = x[0].shape[node["dim"]] - 1
        return [jnp.take(x[0], jnp.clip(x[1], 0, last), node["dim"])]
    simple = {
        "select": lambda: jnp.where(*x),
        "convert": lambda: x[0].astype(dtype(node["dtype"])),
        "stop_gradient": lambda: lax.stop_gradient(x[0]),
        "reshape": lambda: x[0].reshape(node["dims"]),
        "transpose": lambda: jnp.transpose(x[0], node["perm"]),
        "broadcast": lambda: lax.broadcast_in_dim(x[0], node["dims"], node["map"]),
        "reverse": lambda: lax.rev(x[0], node["dims"]),
        "dynamic_slice": lambda: lax.dynamic_slice(x[0], x[1:], node["sizes"]),
        "dynamic_update_slice": lambda: lax.dynamic_update_slice(x[0], x[1], x[2:]),
        "concat": lambda: jnp.concatenate(x, node["dim"]),
        "scatter_add": lambda: scatter_add(*x, node["dim"]),
        "conv": lambda: convolution(*x, node),
        "reduce_window": lambda: windows(node["kind"], x[0], node),
    }
    if op in simple:
        return [simple[op]()]
    several = {
        "barrier": lambda: x,
        "batch_norm": lambda: batch_norm(*x, node),
        "lstm": lambda: lstm(*x),
        "gru": lambda: gru(*x),
        "scan": lambda: scan(x, node),
    }
    return list(several[op]())


def run(graph, arguments):
    made = {}
    for number, node in graph["nodes"]:
        if node["op"] == "parameter":
            made[number] = [arguments[node["index"]]]
        else:
            made[number] = one(node, [made[at][output] for at, output in node["inputs"]])
    return [made[at][output] for at, output in graph["outputs"]]


def gradients(request):
    given = [None if tensor is None else array(tensor) for tensor in request["arguments"]]
    wrt = request["wrt"]

    def loss(variables):
        arguments = list(given)
        for index, variable in zip(wrt, variables):
            arguments[index] = variable
        sums = run(request["graph"], arguments)[0]
        # The loss, whose sum is 0 where nothing has weight, and the penalties, by examples.
        weight = jnp.where(sums[1] > 0, sums[1], 1)
        return sums[0] / weight + sums[2] / sums[3]

    found = jax.jit(jax.grad(loss))([given[index] for index in wrt])
    return [numbers(gradient) for gradient in found]


if __name__ == "__main__":
    answer(gradients)
