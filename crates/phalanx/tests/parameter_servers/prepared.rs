//! Predictions and tests on a worker, whose normalizations are folded into convolutions, have the values that the servers have now.

use phalanx::engine::KernelsMode;

use super::*;

const ROWS: usize = 16;

/// Large enough to gain from registered kernels.
fn model() -> Model {
    let bare = || {
        Conv2d::new(64, (3, 3))
            .padding(Padding::Same)
            .use_bias(false)
    };
    Sequential::new([12, 12, 64])
        .add(bare())
        .add(BatchNorm::new().momentum(0.5))
        .add(ActivationLayer::new(relu))
        .add(bare())
        .add(BatchNorm::new().momentum(0.5))
        .add(GlobalAveragePool2d::new())
        .add(Dense::new(3))
        .build()
        .unwrap()
}

fn compile() -> Compile {
    Compile {
        optimizer: Sgd::new(0.05).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    }
}

#[test]
fn results_have_the_values_of_now() {
    let x = cases::wave(ROWS * 12 * 12 * 64, 0.37);
    let x = HostTensor::new([ROWS, 12, 12, 64], &x);
    let y: Vec<i32> = (0..ROWS).map(|row| (row % 3) as i32).collect();
    let data = Dataset::from_arrays(x, HostTensor::new([ROWS], &y)).unwrap();
    let data = data.batch(ROWS);
    on_workers((1, 1), &sync(), |strategy| {
        let alone = Engine::new(&EngineOptions {
            kernels: KernelsMode::Off,
            ..EngineOptions::default()
        });
        let alone = alone.unwrap();
        let whole = OneDeviceStrategy::on(&alone).compile(model(), compile());
        let (mut whole, mut before) = (whole.unwrap(), f64::NAN);
        let mut trainer = strategy.compile(model(), compile()).unwrap();
        for epochs in 1..=3 {
            let fit = Fit::epochs(epochs)
                .progress(Progress::Silent)
                .validation(&data);
            trainer.fit(&data, fit).unwrap();
            whole.set_variables(&trainer.variables().unwrap()).unwrap();
            let [found, expected] = [&mut trainer, &mut whole].map(|trainer| {
                let outputs = trainer.predict(&data).unwrap()[0].to_f64();
                let loss = trainer.evaluate(&data).unwrap().get("loss").unwrap();
                [outputs, vec![loss]].concat()
            });
            let difference = apart(&found, &expected);
            assert!(difference <= 1e-5, "epoch {epochs}: {difference}");
            let loss = expected[expected.len() - 1];
            let is_other = before.is_nan() || (loss - before).abs() > 1e-3;
            assert!(is_other, "epoch {epochs}: {loss} after {before}");
            before = loss;
        }
    });
}
