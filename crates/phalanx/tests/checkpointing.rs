//! Blocks that are computed again on the way back: the same training in less memory.

use phalanx::data::Batch;
use phalanx::prelude::*;

/// A convolution with batch normalization, dropout and a penalty.
fn block(number: usize) -> LayerSpec {
    let conv = Conv2d::new(8, 3).padding(Padding::Same).use_bias(false);
    let penalty = Regularizer::L2 { l2: 0.01 };
    let block = Sequential::new([10, 10, 8])
        .named(format!("block_{number}"))
        .add(conv.clone().kernel_regularizer(penalty))
        .add(BatchNorm::new())
        .add(ActivationLayer::new(relu))
        .add(conv)
        .add(ActivationLayer::new(tanh))
        .add(Dropout::new(0.2));
    LayerSpec::from(block.build().unwrap())
}

fn model(checkpointed: bool) -> Model {
    let mut model = Sequential::new([10, 10, 3]).add(Conv2d::new(8, 1));
    for number in 0..4 {
        model = model.add(block(number));
    }
    let model = model.add(GlobalAveragePool2d::new()).add(Dense::new(3));
    let mut model = model.build().unwrap();
    if checkpointed {
        let count =
            model.set_checkpointed_where(|path| path.starts_with("block_") && !path.contains('/'));
        assert_eq!(count, 4);
    }
    model
}

fn batch() -> Batch {
    let x: Vec<f32> = (0..32 * 300)
        .map(|i| (i * 7919 % 1009) as f32 / 504.5 - 1.0)
        .collect();
    let y: Vec<i32> = (0..32).map(|i| i % 3).collect();
    Batch {
        x: vec![HostTensor::new([32, 10, 10, 3], &x)],
        y: vec![HostTensor::new([32], &y)],
        weight: None,
        first: 0,
    }
}

#[test]
fn training_is_the_same_and_takes_less_memory() {
    let strategy = OneDeviceStrategy::new().unwrap();
    let trained = [false, true].map(|checkpointed| {
        let compile = Compile {
            optimizer: Sgd::new(0.1).into(),
            loss: SparseCategoricalCrossentropy::from_logits().into(),
            ..Compile::default()
        };
        let mut trainer = strategy.compile(model(checkpointed), compile).unwrap();
        let losses = [0; 2].map(|_| trainer.train_on_batch(&batch()).unwrap()["loss"]);
        let values = trainer.variables().unwrap();
        let values: Vec<f32> = values.iter().flat_map(|(_, value)| value.f32s()).collect();
        let memory = trainer.estimate(&batch(), 32).unwrap();
        (losses, values, memory.temporary)
    });
    let [(losses, values, kept), (losses_again, values_again, again)] = trained;
    for (a, b) in losses.iter().zip(losses_again) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    for (a, b) in values.iter().zip(values_again) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    println!("temporary bytes: {kept} kept, {again} computed again");
    assert!(again * 10 < kept * 7, "{again} of {kept}");
}

#[test]
fn it_is_kept_in_json() {
    let config = model(true).config();
    assert_eq!(
        config.to_string().matches("\"checkpointed\":true").count(),
        4
    );
    let again = Model::from_config(&config).unwrap();
    assert_eq!(again.config(), config);
    let wrong = config
        .to_string()
        .replace("\"checkpointed\":true", "\"checkpointed\":1");
    let wrong = Model::from_config(&serde_json::from_str(&wrong).unwrap()).unwrap_err();
    let message = wrong.to_string();
    assert!(
        message.contains("`checkpointed`: expected true or false, got 1"),
        "{message}"
    );
}
