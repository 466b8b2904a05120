"""signals.json: outputs and gradients of layers that find the frequencies of signals, and the first values of their kernels."""

from golden import array, keras, np, write
from make_layers import run

MODES = ("log", "magnitude", "psd", "real", "imag", "angle", "stft")


def transforms():
    """(name, layer, config, inputs): all modes, windows that end in between, an odd length, frames that reach beyond the ends."""
    for mode in MODES:
        config = {"mode": mode, "frame_length": 8}
        yield f"stft_{mode}", "STFTSpectrogram", config, [(2, 21, 2)]
        config = {"mode": mode, "frame_length": 6, "frame_step": 4, "fft_length": 9, "padding": "same", "expand_dims": True}
        yield f"stft_{mode}_same", "STFTSpectrogram", config, [(2, 21, 3)]
    yield "stft_of_two", "STFTSpectrogram", {"mode": "psd", "frame_length": 2, "frame_step": 1}, [(2, 5, 1)]


def pitches():
    """Lengths of many factors, of few, primes; windows of odd lengths within; powers, decibels that are cut off."""
    rate = {"sampling_rate": 8000, "num_mel_bins": 6, "min_freq": 50.0}
    cases = {
        "plain": {"fft_length": 64, "sequence_stride": 16},
        "long": {"fft_length": 256, "sequence_stride": 100},
        "of_12": {"fft_length": 36, "sequence_stride": 10, "sequence_length": 24, "window": "hamming"},
        "odd": {"fft_length": 45, "sequence_stride": 7, "sequence_length": 33},
        "prime": {"fft_length": 37, "sequence_stride": 11, "max_freq": 3000.0},
        "magnitude": {"fft_length": 64, "sequence_stride": 30, "mag_exp": 1.0, "power_to_db": False},
        "power": {"fft_length": 64, "sequence_stride": 30, "mag_exp": 1.5, "power_to_db": False, "window": None},
        "cut_off": {"fft_length": 64, "sequence_stride": 30, "top_db": 3.0, "ref_power": -2.5, "min_power": 0.01},
    }
    for name, config in cases.items():
        yield f"mel_{name}", "MelSpectrogram", {**rate, **config}, [(1, 300)]


def starts():
    """First values of kernels."""
    for side in ("real", "imag"):
        for window in ("hann", "hamming", None):
            for scaling in ("density", "spectrum", None):
                for periodic in (False, True):
                    config = {"side": side, "window": window, "scaling": scaling, "periodic": periodic}
                    made = keras.initializers.STFT(**config)((6, 1, 5))
                    name = f"start_{side}_{window}_{scaling}_{periodic}"
                    yield {"name": name, "initializer": config, "values": array(np.asarray(made))}


if __name__ == "__main__":
    layers = [run(*case, training=False) for case in [*transforms(), *pitches()]]
    write("signals", [*layers, *starts()])
