//! Mixed precision and loss scales, in whole trainings.

mod any_device;

use std::sync::OnceLock;

use phalanx::data::Batch;
use phalanx::engine::Engine;
use phalanx::prelude::*;
use phalanx_graph::{DType, Shape};

fn strategy() -> OneDeviceStrategy {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| Engine::new(&any_device::options()).unwrap());
    OneDeviceStrategy::on(engine)
}

fn silent(epochs: usize) -> Fit {
    Fit::epochs(epochs).progress(Progress::Silent)
}

fn trainer(model: impl IntoModel, compile: Compile) -> Trainer {
    strategy().compile(model, compile).unwrap()
}

/// 8 examples of 6 numbers in 3 classes.
fn batch(number: usize) -> Batch {
    let x: Vec<f32> = (0..48)
        .map(|i| ((i * 37 + i / 6 * 11 + number * 5) % 29) as f32 / 14.5 - 1.0)
        .collect();
    let y: Vec<i32> = (0..8).map(|i| ((i * i + number) % 3) as i32).collect();
    Batch {
        x: vec![HostTensor::new([8, 6], &x)],
        y: vec![HostTensor::new([8], &y)],
        weight: None,
        first: 0,
    }
}

/// A batch one of whose numbers is too large.
fn overflowing(number: usize, large: f32) -> Batch {
    let mut batch = batch(number);
    let mut x = batch.x[0].f32s().to_vec();
    x[13] = large;
    batch.x = vec![HostTensor::new([8, 6], &x)];
    batch
}

/// With state of a layer, random bits and a penalty, which a skipped step must leave alone.
fn model() -> Sequential {
    Sequential::new([6])
        .add(Dense::new(16).activation(relu))
        .add(BatchNorm::new())
        .add(Dropout::new(0.25))
        .add(Dense::new(3))
}

fn settings(precision: Policy, loss_scale: LossScale) -> Compile {
    Compile {
        optimizer: Optimizer::from(Sgd::new(0.1).momentum(0.9)).global_clipnorm(1.0),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        precision,
        loss_scale,
        ..Compile::default()
    }
}

fn values(trainer: &Trainer) -> Vec<f32> {
    let variables = trainer.variables().unwrap();
    let all = variables.iter().flat_map(|(_, value)| value.f32s());
    all.collect()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    let [a, b] = [a, b].map(|list| list.iter().copied().map(f64::from).collect::<Vec<f64>>());
    phalanx_testkit::largest_difference(&a, &b) as f32
}

mod policies {
    use super::*;

    #[test]
    fn variables_and_outputs_are_f32_and_products_are_not() {
        let exact = trainer(model(), settings(Policy::Float32, LossScale::Auto));
        let mut by_policy = [Policy::MixedBfloat16, Policy::MixedFloat16].map(|policy| {
            let mut mixed = trainer(model(), settings(policy, LossScale::Auto));
            assert_eq!(values(&mixed), values(&exact));
            for (name, value) in mixed.variables().unwrap() {
                assert_eq!(value.dtype(), DType::F32, "{name}");
            }
            mixed.predict_on_batch(&batch(0).x).unwrap().remove(0)
        });
        let exact = {
            let mut exact = exact;
            exact.predict_on_batch(&batch(0).x).unwrap().remove(0)
        };
        for (mixed, bits) in by_policy.iter_mut().zip([8, 11]) {
            assert_eq!(*mixed.shape(), Shape::f32([8, 3]));
            let error = largest_difference(&mixed.f32s(), &exact.f32s());
            let unit = 0.5f32.powi(bits);
            assert!(
                error > unit / 64.0 && error < unit * 8.0,
                "{error} of {unit}"
            );
        }
    }

    #[test]
    fn gradients_come_close_to_those_of_f32() {
        let step = |policy| {
            let mut trainer = trainer(model(), settings(policy, LossScale::Auto));
            let logs = trainer.train_on_batch(&batch(0)).unwrap();
            (logs["loss"], values(&trainer))
        };
        let (loss, exact) = step(Policy::Float32);
        for (policy, tolerance) in [(Policy::MixedBfloat16, 4e-3), (Policy::MixedFloat16, 5e-4)] {
            let (mixed_loss, mixed) = step(policy);
            assert!((mixed_loss - loss).abs() < f64::from(tolerance) * 4.0);
            let error = largest_difference(&mixed, &exact);
            assert!(error > 0.0 && error < tolerance, "{policy:?}: {error}");
        }
    }

    #[test]
    fn tails_and_sums_that_16_bits_cannot_hold_on_the_way_are_there() {
        let predicted = |layer: Sequential, policy, x: HostTensor| {
            let mut trainer = trainer(layer, settings(policy, LossScale::Auto));
            trainer.predict_on_batch(&[x]).unwrap()[0].to_f64()
        };
        let x = [-2.5f32, -3.0, -3.09375, -3.5];
        for (activation, expected) in [
            (
                Activation::Gelu,
                [-0.015_524, -0.004_050, -0.003_057, -0.000_814],
            ),
            (
                Activation::GeluTanh,
                [-0.015_084, -0.003_637, -0.002_682, -0.000_616],
            ),
        ] {
            let layer = Sequential::new([4]).add(ActivationLayer::new(activation));
            let got = predicted(layer, Policy::MixedBfloat16, HostTensor::new([1, 4], &x));
            for (got, expected) in got.iter().zip(expected) {
                let off = (got / expected - 1.0).abs();
                assert!(off < 5e-3, "{activation:?}: {got}, expected {expected}");
            }
        }
        let image = HostTensor::new([1, 7, 7, 1], &[1400.0f32; 49]);
        let layer = Sequential::new([7, 7, 1]).add(AveragePool2d::new(7));
        assert_eq!(predicted(layer, Policy::MixedFloat16, image), [1400.0]);
    }

    /// XLA:CPU's library for reductions took other bits for these.
    #[test]
    fn a_mean_of_bf16_is_one() {
        let block = |model: Sequential| {
            let conv = Conv2d::new(48, 3).padding(Padding::Same);
            let normal = model.add(conv).add(BatchNorm::new());
            normal.add(ActivationLayer::new(relu))
        };
        let model = block(block(Sequential::new([8, 8, 1]))).add(GlobalAveragePool2d::new());
        let x: Vec<f32> = (0..32 * 64)
            .map(|i| (i * 37 % 101) as f32 / 101.0)
            .collect();
        let x = HostTensor::new([32, 8, 8, 1], &x);
        let outputs =
            [Policy::Float32, Policy::MixedBfloat16, Policy::MixedFloat16].map(|policy| {
                let mut trainer = trainer(model.clone(), settings(policy, LossScale::Auto));
                trainer.predict_on_batch(std::slice::from_ref(&x)).unwrap()[0]
                    .f32s()
                    .to_vec()
            });
        for mixed in &outputs[1..] {
            let error = largest_difference(mixed, &outputs[0]);
            assert!(error < 0.01, "{error}");
        }
    }

    #[test]
    fn a_layer_may_have_a_policy_of_its_own() {
        let with = |policy| {
            let model = Sequential::new([6]).add(LayerSpec::from(Dense::new(3)).precision(policy));
            let mut trainer = trainer(model, settings(Policy::MixedBfloat16, LossScale::Auto));
            let outputs = trainer.predict_on_batch(&batch(0).x).unwrap();
            outputs[0].f32s().to_vec()
        };
        let plain = Sequential::new([6]).add(Dense::new(3));
        let mut plain = trainer(plain, settings(Policy::Float32, LossScale::Auto));
        let plain = plain.predict_on_batch(&batch(0).x).unwrap()[0]
            .f32s()
            .to_vec();
        assert_eq!(with(Policy::Float32), plain);
        assert_ne!(with(Policy::MixedBfloat16), plain);
    }

    #[test]
    fn policies_of_layers_are_kept_in_json() {
        let inner = Sequential::new([4])
            .named("inner")
            .add(Dense::new(4))
            .build()
            .unwrap();
        let model = Sequential::new([4])
            .add(LayerSpec::from(inner).precision(Policy::MixedFloat16))
            .add(LayerSpec::from(Dense::new(2)).precision(Policy::Float32))
            .build()
            .unwrap();
        let config = model.config();
        let text = config.to_string();
        assert!(text.contains("\"precision\":\"mixed_float16\""), "{text}");
        assert!(text.contains("\"precision\":\"float32\""), "{text}");
        assert_eq!(Model::from_config(&config).unwrap().config(), config);
        let wrong = text.replace("float32\"", "float23\"");
        let wrong = Model::from_config(&serde_json::from_str(&wrong).unwrap());
        let message = wrong.unwrap_err().to_string();
        assert!(
            message.contains("`precision`: expected one of float32"),
            "{message}"
        );
    }

    #[test]
    fn models_in_models_softmax_and_integers_go_together() {
        let inner = Sequential::new([4, 4])
            .named("inner")
            .add(Dense::new(4).activation(softmax));
        let mut net = Network::new();
        let words = net.input(Input::new([4]).dtype(DType::I32));
        let vectors = net.add(Embedding::new(7, 4), &[words]);
        let normal = net.add(LayerNorm::new(), &[vectors]);
        let inner = net.add(inner.build().unwrap(), &[normal]);
        let sum = net.add(Add, &[inner, normal]);
        let output = net.add(Dense::new(2).activation(softmax), &[sum]);
        let model = net.build(&[words], &[output]).unwrap();
        let words = HostTensor::new([2, 4], &[0i32, 1, 2, 3, 4, 5, 6, 0]);
        let outputs = [Policy::Float32, Policy::MixedBfloat16].map(|policy| {
            let compile = settings(policy, LossScale::Auto);
            let mut trainer = trainer(model.clone(), compile);
            trainer
                .predict_on_batch(std::slice::from_ref(&words))
                .unwrap()[0]
                .f32s()
                .to_vec()
        });
        assert!(largest_difference(&outputs[0], &outputs[1]) < 0.01);
        // Rounded to bfloat16 they would not add up.
        for pair in outputs[1].chunks(2) {
            assert!((pair[0] + pair[1] - 1.0).abs() < 1e-6);
        }
    }
}

mod sequences {
    use phalanx::models::{EncoderHead, TransformerEncoder};

    use super::*;

    #[test]
    fn padding_stays_padding_and_large_indices_stay_what_they_are() {
        let settings = TransformerEncoder {
            vocabulary: 600,
            length: 8,
            layers: 1,
            width: 16,
            heads: 2,
            feed_forward: 32,
            mask_zero: true,
            head: EncoderHead::Classes(3),
            ..TransformerEncoder::default()
        };
        let encoder = settings.build().unwrap();
        // 257 and 599 are no numbers in bfloat16.
        let tokens = [257, 599, 0, 0, 0, 0, 0, 0, 3, 511, 257, 0, 0, 0, 0, 0];
        let outputs = |policy, tokens: &[i32]| {
            let mut trainer = trainer(encoder.clone(), settings_of(policy));
            let tokens = HostTensor::new([2, 8], tokens);
            trainer.predict_on_batch(&[tokens]).unwrap()[0]
                .f32s()
                .to_vec()
        };
        let exact = outputs(Policy::Float32, &tokens);
        let mixed = outputs(Policy::MixedBfloat16, &tokens);
        let error = largest_difference(&exact, &mixed);
        assert!(error > 0.0 && error < 0.02, "{error}");
        let unpadded = tokens.map(|token| token.max(1));
        let unpadded = outputs(Policy::Float32, &unpadded);
        assert!(largest_difference(&exact, &unpadded) > 0.1);

        let words = Sequential::new([2])
            .add(Embedding::new(600, 4))
            .add(Flatten);
        let floats = HostTensor::new([1, 2], &[257f32, 599.0]);
        let looked_up = [Policy::Float32, Policy::MixedBfloat16].map(|policy| {
            let mut trainer = trainer(words.clone(), settings_of(policy));
            trainer
                .predict_on_batch(std::slice::from_ref(&floats))
                .unwrap()[0]
                .f32s()
                .to_vec()
        });
        assert!(largest_difference(&looked_up[0], &looked_up[1]) < 1e-3);
    }

    fn settings_of(policy: Policy) -> Compile {
        settings(policy, LossScale::Auto)
    }
}

mod loss_scales {
    use super::*;

    /// Keras' rule with a floor, on the host.
    struct Oracle {
        scale: f64,
        good: u32,
        skipped: f64,
    }

    impl Oracle {
        fn step(&mut self, finite: bool, growth: u32) {
            if !finite {
                self.good = 0;
                self.scale = (self.scale / 2.0).max(1.0);
                self.skipped += 1.0;
            } else if self.good == growth - 1 {
                self.good = 0;
                self.scale *= 2.0;
            } else {
                self.good += 1;
            }
        }
    }

    #[test]
    fn the_scale_follows_the_formula() {
        let growth_steps = 3;
        let scale = LossScale::Dynamic {
            initial: 4.0,
            growth_steps,
        };
        let mut trainer = trainer(model(), settings(Policy::Float32, scale));
        let mut oracle = Oracle {
            scale: 4.0,
            good: 0,
            skipped: 0.0,
        };
        let mut iterations = 0;
        let steps = b"gggggbggbgggbbgggggggbg";
        for (number, &kind) in steps.iter().enumerate() {
            let finite = kind == b'g';
            let batch = if finite {
                batch(number)
            } else {
                overflowing(number, f32::INFINITY)
            };
            let logs = trainer.train_on_batch(&batch).unwrap();
            oracle.step(finite, growth_steps);
            iterations += i64::from(finite);
            let expected = (oracle.scale, oracle.skipped, iterations);
            let got = (
                logs["loss_scale"],
                logs["skipped_steps"],
                trainer.iterations(),
            );
            assert_eq!(got, expected, "step {number}");
        }
        assert!(oracle.skipped == 5.0 && oracle.scale > 1.0);
    }

    /// With and without a batch that overflows in the middle.
    fn twice(compile: &Compile, large: f32) -> [Trainer; 2] {
        [true, false].map(|overflows| {
            let mut trainer = trainer(model(), compile.clone());
            for number in 0..6 {
                if overflows && number == 3 {
                    let before = values(&trainer);
                    let logs = trainer.train_on_batch(&overflowing(number, large)).unwrap();
                    assert_eq!(logs["skipped_steps"], 1.0);
                    assert!(logs["loss"].is_nan(), "{logs}");
                    assert_eq!(values(&trainer), before);
                    assert_eq!(trainer.iterations(), 3);
                }
                trainer.train_on_batch(&batch(number)).unwrap();
            }
            assert_eq!(trainer.iterations(), 6);
            trainer
        })
    }

    #[test]
    fn a_skipped_step_leaves_no_trace() {
        let mut compile = settings(Policy::Float32, LossScale::DYNAMIC);
        let [with, without] = twice(&compile, f32::INFINITY);
        assert_eq!(values(&with), values(&without));
        compile.optimizer = Optimizer::from(Adam::new(0.01))
            .gradient_accumulation(2)
            .ema(0.9);
        let [with, without] = twice(&compile, f32::INFINITY);
        assert_eq!(values(&with), values(&without));
    }

    #[test]
    fn epochs_of_skipped_steps_have_no_loss_and_training_goes_on() {
        let mut trainer = trainer(model(), settings(Policy::Float32, LossScale::DYNAMIC));
        let fit = |trainer: &mut Trainer, batch: Batch| {
            let data = Dataset::from_arrays(batch.x, batch.y).unwrap();
            let history = trainer.fit(&data.batch(8), silent(2)).unwrap();
            history.of("loss")
        };
        let losses = fit(&mut trainer, overflowing(0, f32::INFINITY));
        assert!(losses.len() == 2 && losses.iter().all(|loss| loss.is_nan()));
        assert_eq!(trainer.iterations(), 0);
        let losses = fit(&mut trainer, batch(0));
        assert!(losses.len() == 2 && losses.iter().all(|loss| loss.is_finite()));
        assert_eq!(trainer.iterations(), 2);
    }

    #[test]
    fn an_overflow_in_float16_is_skipped_and_survived() {
        let compile = settings(Policy::MixedFloat16, LossScale::Auto);
        // A number in f32, and none in half precision.
        let [mut with, without] = twice(&compile, 6e4 * 6e4);
        let difference = largest_difference(&values(&with), &values(&without));
        assert!(difference < 1e-3, "{difference}");
        let logs = with.train_on_batch(&batch(0)).unwrap();
        assert_eq!((logs["loss_scale"], logs["skipped_steps"]), (16384.0, 1.0));
    }

    #[test]
    fn scales_make_no_difference_to_f32_training() {
        let trained = [
            LossScale::Auto,
            LossScale::Fixed(1024.0),
            LossScale::DYNAMIC,
        ];
        let trained = trained.map(|scale| {
            let mut trainer = trainer(model(), settings(Policy::Float32, scale));
            let logs = trainer.train_on_batch(&batch(0)).unwrap();
            assert_eq!(
                logs.get("loss_scale").is_some(),
                scale == LossScale::DYNAMIC
            );
            values(&trainer)
        });
        assert_eq!(trained[0], trained[1]);
        assert_eq!(trained[0], trained[2]);
    }

    #[test]
    fn what_halving_does_not_help_is_an_error() {
        let scale = LossScale::Dynamic {
            initial: 2.0,
            growth_steps: 100,
        };
        let mut trainer = trainer(model(), settings(Policy::Float32, scale));
        trainer
            .train_on_batch(&overflowing(0, f32::INFINITY))
            .unwrap();
        let before = values(&trainer);
        let error = trainer
            .train_on_batch(&overflowing(1, f32::INFINITY))
            .unwrap_err();
        assert!(
            error.to_string().contains("even with a loss scale of 1"),
            "{error}"
        );
        assert_eq!(values(&trainer), before);
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        for (scale, expected) in [
            (
                LossScale::Fixed(0.5),
                "the loss scale is 0.5, expected a number from 1",
            ),
            (LossScale::Fixed(f64::NAN), "the loss scale is NaN"),
            (
                LossScale::Dynamic {
                    initial: 2.0,
                    growth_steps: 0,
                },
                "`growth_steps` of the loss scale is 0",
            ),
        ] {
            let refused = strategy().compile(model(), settings(Policy::Float32, scale));
            let message = refused.map(|_| ()).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}

mod accuracy {
    use super::*;

    /// The accuracy on the test rows after a training under each policy.
    fn reached(
        model: impl Fn() -> Sequential,
        data: &(Dataset, Dataset),
        epochs: usize,
        policies: &[Policy],
    ) -> Vec<f64> {
        let steps = data.0.len().unwrap() as u64 / 32;
        let reach = |&policy: &Policy| {
            let compile = Compile {
                optimizer: Adam::new(CosineDecay::new(3e-3, epochs as u64 * steps)).into(),
                loss: SparseCategoricalCrossentropy::from_logits().into(),
                metrics: vec![Accuracy.into()],
                precision: policy,
                ..Compile::default()
            };
            let mut trainer = trainer(model(), compile);
            let train = data.0.clone().shuffle(7).batch(32).drop_remainder();
            trainer.fit(&train, silent(epochs)).unwrap();
            trainer.evaluate(&data.1.batch(256)).unwrap()["accuracy"]
        };
        policies.iter().map(reach).collect()
    }

    const POLICIES: [Policy; 3] = [Policy::Float32, Policy::MixedBfloat16, Policy::MixedFloat16];

    #[test]
    fn digits_are_learned_as_well() {
        let data = datasets::digits().unwrap().split_at(1437).unwrap();
        let model = || {
            Sequential::new([8, 8, 1])
                .add(Flatten)
                .add(Dense::new(64).activation(relu))
                .add(Dense::new(10))
        };
        let reached = reached(model, &data, 20, &POLICIES);
        println!("digits: {reached:?}");
        assert!(reached[0] > 0.89, "{reached:?}");
        for mixed in &reached[1..] {
            assert!(*mixed >= reached[0] - 0.005, "{reached:?}");
        }
    }

    /// Images with one of four figures (two bars, a square, a cross) somewhere, under noise.
    fn figures(rows: usize) -> Dataset {
        let mut state = 1u32;
        let mut random = move |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        let mut x = vec![0f32; rows * 144];
        let mut y = Vec::new();
        for image in x.chunks_mut(144) {
            let (class, top, left) = (random(4), random(8), random(8));
            for (i, j) in (0..5).flat_map(|i| (0..5).map(move |j| (i, j))) {
                let inside = match class {
                    0 => i == 2,
                    1 => j == 2,
                    2 => i % 4 == 0 || j % 4 == 0,
                    _ => i == j || i + j == 4,
                };
                let at = (top + i) * 12 + left + j;
                image[at as usize] = if inside { 1.0 } else { 0.0 };
            }
            for pixel in image {
                *pixel += random(1000) as f32 / 1000.0 - 0.5;
            }
            y.push(class as i32);
        }
        let x = HostTensor::new([rows, 12, 12, 1], &x);
        Dataset::from_arrays(x, HostTensor::new([rows], &y)).unwrap()
    }

    #[test]
    fn images_are_learned_as_well_by_a_network_with_batch_norm() {
        let data = figures(3000).split_at(2000).unwrap();
        let model = || {
            let conv = |filters| {
                Conv2d::new(filters, 3)
                    .padding(Padding::Same)
                    .use_bias(false)
            };
            Sequential::new([12, 12, 1])
                .add(conv(8))
                .add(BatchNorm::new())
                .add(ActivationLayer::new(relu))
                .add(MaxPool2d::new(2))
                .add(conv(16).activation(relu))
                .add(BatchNorm::new().momentum(0.9))
                .add(GlobalMaxPool2d::new())
                .add(Dense::new(4))
        };
        let reached = reached(model, &data, 6, &POLICIES[..2]);
        println!("figures: {reached:?}");
        assert!(reached[0] > 0.9, "{reached:?}");
        assert!(reached[1] >= reached[0] - 0.005, "{reached:?}");
    }
}
