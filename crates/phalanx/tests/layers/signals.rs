//! Layers of signals: Keras' numbers, and what it has none for.

use std::f64::consts::TAU;

use phalanx::nn::{
    Initializer, LayerSpec, MelSpectrogram, Policy, Sequential, SpectrogramMode, StftSpectrogram,
};
use phalanx_graph::{DType, HostTensor, Shape};
use phalanx_testkit::assert_close;
use serde_json::Value;

use crate::{Checks, array, call, check_layer, golden, ramp};

#[test]
fn signals_are_keras() {
    let mut checks = Checks::default();
    let records = golden("signals.json");
    let layers = records.iter().filter(|record| record["layer"].is_string());
    let count = layers
        .inspect(|record| check_layer(&mut checks, record))
        .count();
    assert_eq!(count, 23);
    checks.verify(3e-5);
}

#[test]
fn kernels_start_as_in_keras() {
    let records = golden("signals.json");
    let starts: Vec<&Value> = records
        .iter()
        .filter(|record| record["initializer"].is_object())
        .collect();
    assert_eq!(starts.len(), 36);
    for record in starts {
        let written = serde_json::json!({"stft": record["initializer"]});
        let start: Initializer = serde_json::from_value(written).unwrap();
        let expected = array(&record["values"]);
        let values = start.values(expected.shape(), 3, "stft/real_kernel");
        let name = record["name"].as_str().unwrap();
        assert_close(name, &values.to_f64(), &expected.to_f64(), 1e-6);
    }
}

/// A tone of so many turns in the signal.
fn tone(samples: usize, turns: f64, height: f64) -> Vec<f32> {
    let angle = TAU * turns / samples as f64;
    let value = |i: usize| height * (angle * i as f64).sin();
    (0..samples).map(|i| value(i) as f32).collect()
}

/// Without training it, a tone is where its frequency is.
#[test]
fn a_tone_is_at_its_frequency() {
    let x = HostTensor::new([1, 640, 1], &tone(640, 60.0, 1.0));
    let layer = StftSpectrogram::new(64).mode(SpectrogramMode::Psd);
    let model = Sequential::new([640, 1]).add(layer).build().unwrap();
    let (found, ..) = call(&model, &model.init(0).unwrap(), &[x], |_, cx| cx);
    assert_eq!(found[0].dims(), [1, 19, 33]);
    for frame in found[0].f32s().chunks(33) {
        let loudest = (0..33).max_by(|&a, &b| frame[a].total_cmp(&frame[b]));
        assert_eq!(loudest, Some(6));
    }
}

/// Neither the loudest part nor anything else of an example says anything of another one.
#[test]
fn each_example_has_its_own_loudest_part() {
    let layer = || {
        MelSpectrogram::new(4)
            .frames(64, 16)
            .decibels(20.0, 1e-10, 1.0)
    };
    let model = Sequential::new([200]).add(layer()).build().unwrap();
    let (loud, quiet) = (tone(200, 30.0, 100.0), tone(200, 11.0, 0.1));
    let both = HostTensor::new([2, 200], &[loud, quiet.clone()].concat());
    let alone = HostTensor::new([1, 200], &quiet);
    let made = |x: HostTensor| call(&model, &[], &[x], |_, cx| cx).0.swap_remove(0);
    let rows = made(both).slice_rows(1, 2);
    assert_close("quiet", &rows.to_f64(), &made(alone).to_f64(), 1e-4);
}

#[test]
fn samples_of_mixed_models_are_not_rounded() {
    let x = ramp(&[2, 90]);
    let wave = HostTensor::new([2, 90, 1], &x.f32s());
    let layers: [(LayerSpec, HostTensor); 2] = [
        (StftSpectrogram::new(16).into(), wave),
        (MelSpectrogram::new(4).frames(32, 8).into(), x),
    ];
    for (layer, x) in layers {
        let made = |layer: LayerSpec| {
            let model = Sequential::new(&x.dims()[1..]).add(layer).build().unwrap();
            let variables = model.init(0).unwrap();
            call(&model, &variables, std::slice::from_ref(&x), |_, cx| cx)
                .0
                .swap_remove(0)
        };
        let exact = made(layer.clone());
        let mixed = made(layer.precision(Policy::MixedBfloat16));
        assert_eq!(mixed.convert(DType::F32), exact);
    }
}

/// Silence has no decibels without a limit, and has a gradient all the same: it trains what comes before.
#[test]
fn silence_is_a_number() {
    let x = HostTensor::zeros(Shape::f32([1, 100]));
    for layer in [
        MelSpectrogram::new(4).frames(32, 8),
        MelSpectrogram::new(4)
            .frames(32, 8)
            .mag_exp(1.0)
            .without_decibels(),
    ] {
        let mut checks = Checks::default();
        let model = Sequential::new([100]).add(layer).build().unwrap();
        let given = checks.given(&x);
        let mut cx = phalanx::nn::Cx::new(&checks.graph, &model, &[]);
        let total = model.call(&mut cx, std::slice::from_ref(&given))[0].sum_all();
        let slopes = phalanx_graph::gradients(&total, &[&given]);
        checks.expect("slope".into(), slopes[0].as_ref().unwrap(), x.clone());
        checks.verify(1e-6);
    }
}

#[test]
fn settings_of_signals_are_checked() {
    let refused = |dims: &[usize], layer: LayerSpec| {
        let error = Sequential::new(dims).add(layer).build().unwrap_err();
        error.to_string()
    };
    let wave = |layer: StftSpectrogram| refused(&[30, 1], layer.into());
    let step = wave(StftSpectrogram::new(8).frame_step(9));
    assert!(
        step.contains("`frame_step` must be from 1 to `frame_length`, 8, got 9"),
        "{step}"
    );
    let short = wave(StftSpectrogram::new(8).fft_length(6));
    assert!(
        short.contains("`fft_length` must be at least `frame_length`, 8, got 6"),
        "{short}"
    );
    let long = wave(StftSpectrogram::new(31));
    assert!(
        long.contains("a window of 31 steps does not fit sequences of 30"),
        "{long}"
    );
    let flat = refused(&[30], StftSpectrogram::new(8).into());
    assert!(
        flat.contains("expected signals [batch, steps, channels], got f32[batch,30]"),
        "{flat}"
    );
    let sound = |layer: MelSpectrogram| refused(&[16], layer.into());
    let short = sound(MelSpectrogram::new(4).frames(32, 8));
    assert!(
        short.contains("longer than half of `fft_length`, 32, at which it is mirrored, got 16"),
        "{short}"
    );
    let low = sound(
        MelSpectrogram::new(4)
            .frames(8, 4)
            .frequencies(8000.0, 5000.0, None),
    );
    assert!(
        low.contains("`min_freq` must be below the highest frequency, 4000, got 5000"),
        "{low}"
    );
}
