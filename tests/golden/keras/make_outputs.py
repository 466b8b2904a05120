"""outputs/rows.csv, outputs/model.keras and outputs.json: a model of two inputs and two outputs that Keras trains by `fit` on these rows in their
order: what it reports after each epoch, and what it answers for the last rows.

    python tests/golden/keras/make_outputs.py
"""

from golden import FOLDER, array, keras, np, write

from keras import layers, optimizers

TO = FOLDER / "outputs"
KINDS = ["ant", "bee", "cat"]
ROWS, HELD, BATCH, EPOCHS = 64, 16, 8, 4


def columns():
    """Numbers that a CSV file has with all their digits."""
    random = np.random.RandomState(3)
    a, b = random.randint(-20, 21, (2, ROWS)) / 10
    who = random.randint(0, 5, ROWS)
    kind = (np.abs(a + b + who) // 2).astype(int) % 3
    length, width = np.round(a - b + who / 2, 2), np.round(a * b, 2)
    return a, b, who, kind, length, width


def model():
    who = keras.Input((), dtype="int32", name="who")
    about = keras.Input((2,), name="about")
    vector = layers.Embedding(5, 3, name="vector")(who)
    trunk = layers.Dense(8, "tanh", name="trunk")(layers.Concatenate()([vector, about]))
    kind = layers.Dense(3, "softmax", name="kind")(trunk)
    # An output may be taken by a layer too.
    size = layers.Dense(2, name="size")(layers.Concatenate()([trunk, kind]))
    made = keras.Model([who, about], [kind, size], name="outputs")
    made.compile(
        optimizers.SGD(0.05, momentum=0.9),
        {"kind": "sparse_categorical_crossentropy", "size": "mean_squared_error"},
        loss_weights={"kind": 1.5, "size": 0.25},
        metrics={"kind": ["accuracy"], "size": ["mean_absolute_error"]},
    )
    return made


def main():
    TO.mkdir(exist_ok=True)
    a, b, who, kind, length, width = columns()
    lines = [f"{a[i]},{length[i]},{KINDS[kind[i]]},{who[i]},{b[i]},{width[i]}\n" for i in range(ROWS)]
    (TO / "rows.csv").write_text("a,length,species,who,b,width\n" + "".join(lines))
    made = model()
    made.save(TO / "model.keras")
    x = [who.astype("int32"), np.stack([a, b], 1).astype("float32")]
    y = [kind.astype("int32"), np.stack([length, width], 1).astype("float32")]
    train = [[v[:-HELD] for v in part] for part in (x, y)]
    test = [[v[-HELD:] for v in part] for part in (x, y)]
    history = made.fit(*train, BATCH, EPOCHS, validation_data=tuple(test), shuffle=False, verbose=0).history
    evaluated = made.evaluate(*test, batch_size=BATCH, verbose=0, return_dict=True)
    kinds, sizes = made.predict(test[0], verbose=0)
    write("outputs", [{"name": "outputs", "logs": history, "evaluated": evaluated, "kind": array(kinds), "size": array(sizes)}])


if __name__ == "__main__":
    main()
