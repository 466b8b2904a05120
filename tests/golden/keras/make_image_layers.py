"""image_layers.json: what layers that resize, cut and augment images make of them.

Those that draw numbers draw from ranges of one number here, so that nothing is left to chance.
"""

from golden import array, keras, np, tf, write

layers = keras.layers
FILLS = ("reflect", "nearest", "constant", "wrap")


def pixels(shape, dtype):
    """Pixels from 0 to 255, a fresh stream for every shape."""
    return np.random.default_rng(shape).uniform(0, 255, shape).astype(dtype)


def record(name, layer, config, shape=(2, 5, 7, 3), dtype="float32", made=None, part=1.0):
    """The record of one layer on images, of which the pixels are multiplied by `part`; `made` stands for what Keras' layer would do."""
    x = pixels(shape, dtype)
    x = x if part == 1.0 else (x * part).astype(dtype)
    if made is None:
        built = getattr(layers, layer)(**config)
        with tf.device("cpu"):
            made = np.asarray(built(tf.convert_to_tensor(x), training=layer.startswith("Random")))
    return {
        "name": name,
        "layer": layer,
        "config": {key: value for key, value in config.items() if value is not None},
        "bytes": dtype == "uint8",
        "input": array(x.astype(np.int32) if dtype == "uint8" else x),
        "output": array(made.astype(np.float32)),
    }


def resizings():
    """All interpolations to larger and smaller sizes, with and without smoothing, by aspect ratio, of bytes."""
    records = []
    sizes = {"larger": (9, 11), "smaller": (3, 2), "mixed": (8, 3), "same": (5, 7)}
    for interpolation in ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"):
        for what, (height, width) in sizes.items():
            for antialias in (False, True):
                config = {"height": height, "width": width, "interpolation": interpolation, "antialias": antialias}
                name = f"resizing_{interpolation}_{what}{'_smooth' if antialias else ''}"
                records.append(record(name, "Resizing", config))
        config = {"height": 6, "width": 4, "interpolation": interpolation}
        records.append(record(f"resizing_{interpolation}_bytes", "Resizing", config, dtype="uint8"))
        records.append(record(f"resizing_{interpolation}_far", "Resizing", {**config, "antialias": True}, shape=(1, 40, 31, 1)))
    for what, (height, width) in {"wide": (3, 9), "high": (9, 2), "square": (4, 4)}.items():
        size = {"height": height, "width": width}
        records.append(record(f"resizing_cut_{what}", "Resizing", {**size, "crop_to_aspect_ratio": True}))
        records.append(record(f"resizing_filled_{what}", "Resizing", {**size, "pad_to_aspect_ratio": True, "fill_value": 3.5}))
    return records


def crops():
    """Windows that fit and that do not; those in prediction are what Keras' pages say, which its layer does not do."""
    records = []
    for height, width in ((5, 7), (3, 4), (2, 7), (8, 4), (3, 9), (10, 10)):
        config = {"height": height, "width": width}
        records.append(record(f"center_crop_{height}_{width}", "CenterCrop", config))
        resized = keras.utils.image_utils if hasattr(keras.utils, "image_utils") else keras.preprocessing.image
        made = resized.smart_resize(pixels((2, 5, 7, 3), "float32"), (height, width))
        records.append(record(f"random_crop_{height}_{width}", "RandomCrop", config, made=made))
    return records


def warps():
    """Rotations, translations and zooms, small and far, with all that can be seen beyond the edges."""
    records = []
    for fill in FILLS:
        for interpolation in ("nearest", "bilinear"):
            beyond = {"fill_mode": fill, "interpolation": interpolation, "fill_value": 7.25 if fill == "constant" else 0.0}
            name = f"{fill}_{interpolation}"
            for turn in (0.03, -0.21, 0.5):
                config = {"factor": [turn, turn], **beyond}
                records.append(record(f"random_rotation_{turn}_{name}", "RandomRotation", config))
            for down, right in ((0.13, -0.31), (-0.83, 0.97)):
                config = {"height_factor": [down, down], "width_factor": [right, right], **beyond}
                records.append(record(f"random_translation_{down}_{name}", "RandomTranslation", config))
            for height, width in ((-0.37, None), (0.41, -0.23), (0.93, 0.87)):
                config = {
                    "height_factor": [height, height],
                    "width_factor": width if width is None else [width, width],
                    **beyond,
                }
                records.append(record(f"random_zoom_{height}_{name}", "RandomZoom", config))
    row = {"factor": [0.1, 0.1], "fill_mode": "wrap"}
    records.append(record("random_rotation_of_a_row", "RandomRotation", row, shape=(1, 1, 6, 2)))
    records.append(record("random_rotation_of_a_pixel", "RandomRotation", {"factor": [0.1, 0.1]}, shape=(1, 1, 1, 2)))
    return records


def colours():
    """Brightness; of contrast Keras takes no range of one number but that which changes nothing."""
    return [
        record("random_brightness_up", "RandomBrightness", {"factor": [0.3, 0.3]}),
        record("random_brightness_down", "RandomBrightness", {"factor": [-0.2, -0.2], "value_range": [0.0, 200.0]}),
        record("random_contrast_none", "RandomContrast", {"factor": [0.0, 0.0], "value_range": [20.0, 200.0]}),
    ]


def hues():
    """Turned hues: Keras draws the way for each image, which is given here."""
    records = []
    x = pixels((2, 5, 7, 3), "float32")
    for way, sign in {"on": 1.0, "back": -1.0}.items():
        for factor, most in ((0.9, 255.0), (0.3, 1.0)):
            config = {"factor": [factor, factor], "value_range": [0.0, most]}
            layer = layers.RandomHue(**config)
            given = tf.convert_to_tensor((x * (most / 255.0)).astype("float32"))
            turned = layer.transform_images(given, {"factor": tf.constant([sign * factor * 0.5] * 2)})
            records.append(record(f"random_hue_{way}_{factor}", "RandomHue", config, part=most / 255.0, made=turned.numpy()))
    return records


def more_colours():
    """Saturation, gray, sharpness, inversion and contrast; grey pixels, black ones and channels of one value among them."""
    records = []
    for factor in (0.0, 0.2, 0.5, 0.8, 1.0, -0.5):
        for most in (1.0, 255.0):
            config = {"factor": [factor, factor], "value_range": [0.0, most]}
            for layer in ("RandomSaturation", "RandomColorDegeneration") + (("RandomSharpness",) if factor >= 0.0 else ()):
                name = f"{layer}_{factor}_{int(most)}"
                records.append(record(name, layer, config, part=most / 255.0))
    flat = record("auto_contrast", "AutoContrast", {})
    records += [flat, record("auto_contrast_of_parts", "AutoContrast", {"value_range": [0.0, 1.0]}, part=1 / 255.0)]
    for name, layer, config in (
        ("random_invert_all", "RandomInvert", {"factor": [1.0, 1.0], "value_range": [0.0, 200.0]}),
        ("random_invert_none", "RandomInvert", {"factor": [0.0, 0.0]}),
        ("random_grayscale_all", "RandomGrayscale", {"factor": 1.0}),
        ("random_grayscale_none", "RandomGrayscale", {"factor": 0.0}),
        ("random_sharpness_of_a_channel", "RandomSharpness", {"factor": [0.1, 0.1]}),
        ("auto_contrast_of_bytes", "AutoContrast", {}),
    ):
        shape, dtype = ((2, 4, 3, 1) if "channel" in name else (2, 5, 7, 3)), ("uint8" if "bytes" in name else "float32")
        records.append(record(name, layer, config, shape=shape, dtype=dtype))
    x = np.zeros((1, 2, 3, 3), "float32")
    x[0, 0] = [[7.0, 7.0, 7.0], [0.0, 0.0, 0.0], [200.0, 100.0, 100.0]]
    x[0, 1, :, 1] = [1.0, 0.0, 255.0]
    for layer, config in {"RandomSaturation": {"factor": [0.4, 0.4]}, "RandomColorDegeneration": {"factor": [0.4, 0.4]}, "AutoContrast": {"value_range": [0.0, 255.0]}}.items():
        made = getattr(layers, layer)(**config)(tf.convert_to_tensor(x), training=True).numpy()
        entry = record(f"{layer}_of_grays", layer, config, shape=x.shape, made=made)
        records.append({**entry, "input": array(x)})
    return records


def each(layer, x):
    """What a layer makes of each image by itself."""
    images = [np.asarray(layer(tf.convert_to_tensor(x[i : i + 1]), training=True)) for i in range(len(x))]
    return np.concatenate(images)


def tones():
    """Fewer bits, values turned over and equally frequent ones; of solarizations Keras draws from another range than here, and equalizes whole batches."""
    records = []
    for most in (255.0, 1.0):
        given = {"value_range": [0.0, most]}
        x = pixels((2, 5, 7, 3), "float32") * np.float32(most / 255.0)
        for bits in (1, 3, 8):
            name = f"posterization_{bits}_{int(most)}"
            records.append(record(name, "RandomPosterization", {"factor": [bits, bits], **given}, part=most / 255.0))
        for more, threshold in ((0.0, 0.0), (0.1, 0.5), (0.5, 1.0)):
            config = {"addition_factor": [more, more], "threshold_factor": [threshold, threshold], **given}
            drawn = {"additions": np.float32(more * 255), "thresholds": np.float32(threshold * 255)}
            made = np.asarray(layers.Solarization(**config).transform_images(tf.convert_to_tensor(x), drawn))
            records.append(record(f"solarization_{more}_{int(most)}", "Solarization", config, part=most / 255.0, made=made))
        for bins in (256, 16):
            config = {"bins": bins, **given}
            made = each(layers.Equalization(value_range=(0, 255) if most == 255.0 else (0.0, 1.0), bins=bins), x)
            records.append(record(f"equalization_{bins}_{int(most)}", "Equalization", config, part=most / 255.0, made=made))
    flat = np.full((1, 2, 3, 2), 7.0, "float32")
    flat[0, 0, 0, 1] = 9.0
    made = each(layers.Equalization(), flat)
    records.append({**record("equalization_of_one_value", "Equalization", {}, shape=flat.shape, made=made), "input": array(flat)})
    return records


def blurs():
    """Gaussians of one width for all images; windows are square, of which alone Keras' are what they say."""
    records = []
    for size, sigma in ((1, 0.5), (3, 0.0), (3, 1.0), (5, 0.3), (9, 1.0)):
        config = {"factor": [1.0, 1.0], "kernel_size": size, "sigma": [sigma, sigma], "value_range": [20.0, 230.0]}
        records.append(record(f"blur_{size}_{sigma}", "RandomGaussianBlur", config))
    records.append(record("blur_none", "RandomGaussianBlur", {"factor": [0.0, 0.0]}))
    return records


def shears():
    """Images that lean over: Keras draws the way for each, which is given here."""
    records = []
    x = tf.convert_to_tensor(pixels((2, 5, 7, 3), "float32"))
    for fill in FILLS:
        for interpolation in ("nearest", "bilinear"):
            for across, down in ((0.3, 0.0), (0.13, 0.41)):
                beyond = {"fill_mode": fill, "interpolation": interpolation, "fill_value": 7.25 if fill == "constant" else 0.0}
                config = {"x_factor": [across, across], "y_factor": [down, down], **beyond}
                for way, sign in {"on": 1.0, "back": -1.0}.items():
                    drawn = {"shear_factor": tf.constant([[sign * across, sign * down]] * 2), "input_shape": x.shape}
                    made = layers.RandomShear(**config).transform_images(x, drawn).numpy()
                    name = f"random_shear_{way}_{across}_{fill}_{interpolation}"
                    records.append(record(name, "RandomShear", config, made=made))
    return records


def jitters():
    """Brightness and saturation, which may be drawn from one number, and a contrast and a hue that change nothing."""
    records = []
    for most in (255.0, 1.0):
        config = {"brightness_factor": [0.1, 0.1], "contrast_factor": [0.0, 0.0], "saturation_factor": [0.7, 0.7], "hue_factor": [0.0, 0.0], "value_range": [0.0, most]}
        records.append(record(f"jitter_{int(most)}", "RandomColorJitter", config, part=most / 255.0))
    records.append(record("jitter_brightness", "RandomColorJitter", {"brightness_factor": [-0.2, -0.2]}))
    return records


def changes():
    """Each of the ways of RandAugment that change something with a factor of 0."""
    ways = {
        "RandomSharpness": {"factor": [0.0, 0.0]},
        "RandomPosterization": {"factor": [1, 1]},
        "Solarization": {},
        "AutoContrast": {},
        "Equalization": {},
    }
    return [record(f"rand_augment_{layer}", layer, config, shape=(1, 5, 7, 3), made=each(getattr(layers, layer)(**config), pixels((1, 5, 7, 3), "float32"))) for layer, config in ways.items()]


def tiles():
    """Contrast of tiles with and without a limit: that fit, that do not, of one pixel and of all; one value, and values beyond the range."""
    records = []
    layer = "ContrastLimitedAdaptiveHistogramEqualization"
    grids = {"whole": (1, 1), "halves": (2, 3), "uneven": (3, 2), "pixels": (5, 7)}
    for what, grid in grids.items():
        for limit in (0.0, 4.0, 40.0):
            config = {"clip_limit": limit, "tile_grid_size": list(grid)}
            records.append(record(f"clahe_{what}_{int(limit)}", layer, config))
    large = {"shape": (2, 20, 30, 1)}
    records.append(record("clahe_large", layer, {"clip_limit": 1.5}, **large))
    records.append(record("clahe_of_parts", layer, {"value_range": [-1.0, 2.0], "tile_grid_size": [2, 2]}, part=2.0 / 255.0))
    records.append(record("clahe_beyond", layer, {"tile_grid_size": [2, 2], "clip_limit": -1.0}, part=1.5))
    for value in (0.0, 7.0, 255.0):
        flat = np.full((1, 4, 4, 1), value, "float32")
        for limit in (0.0, 4.0):
            config = {"tile_grid_size": [2, 2], "clip_limit": limit}
            made = np.asarray(getattr(layers, layer)(**config)(flat))
            name = f"clahe_of_one_value_{int(value)}_{int(limit)}"
            records.append({**record(name, layer, config, shape=flat.shape, made=made), "input": array(flat)})
    config, x = {"tile_grid_size": [8, 8]}, pixels((2, 2, 3, 1), "float32")
    more = np.pad(x, ((0, 0), (0, 6), (0, 5), (0, 0)), mode="symmetric")
    made = np.asarray(getattr(layers, layer)(**config)(more))[:, :2, :3]
    records.append(record("clahe_of_fewer_pixels", layer, config, shape=x.shape, made=made))
    return records


def bends():
    """Images moved by given noise as by Keras' `elastic_transform`, which draws it: it has the same for both ways, and does not reflect above and to the left."""
    image = keras.src.backend.tensorflow.image
    shape = (2, 21, 22, 1)
    x, scales = pixels(shape, "float32"), (1.0, 0.3)
    noise = np.random.default_rng(3).normal(size=(2, *shape[:3])).astype("float32")
    height, width = shape[1:3]
    records = []
    for fill in FILLS:
        for interpolation in ("nearest", "bilinear"):
            made = []
            for at, scale in enumerate(scales):
                sigma, alpha = min(height, width) * 0.05 * scale, max(height, width) * 0.1 * scale
                size = 6 * int(sigma) | 1
                moved = []
                for way in range(2):
                    blurred = image.gaussian_blur(noise[way, at][None, :, :, None] * np.float32(sigma), (size, size), (sigma, sigma))
                    moved.append(np.asarray(blurred)[0, :, :, 0] * np.float32(alpha))
                places = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij")).astype("float32") + np.stack(moved)
                seen, mode = x[at, :, :, 0], fill
                if fill == "reflect":
                    seen, mode = np.pad(seen, 20, mode="symmetric"), "nearest"
                    places += 20
                made.append(image.map_coordinates(seen, places, ("nearest", "bilinear").index(interpolation), mode, 7.25))
            made = np.stack(made)[..., None]
            config = {"fill_mode": fill, "interpolation": interpolation, "fill_value": 7.25}
            entry = record(f"elastic_{fill}_{interpolation}", "RandomElasticTransform", config, shape=shape, made=made)
            records.append({**entry, "noise": array(noise), "scales": list(scales)})
    return records


if __name__ == "__main__":
    write("image_layers", resizings() + crops() + warps() + colours() + hues() + more_colours() + tones() + blurs() + shears() + jitters() + changes() + tiles() + bends())
