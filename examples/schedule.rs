//! A training loop of its own on parameter servers: the first worker schedules a function that takes some steps, the others run it,
//! each on its own batches of the handwritten digits. The accuracy on digits that it was not trained on is 0.9.
//!
//! Build it by `cargo build --release --example schedule`, and start it by
//! `phalanx launch --workers 3 --ps 1 -- target/release/examples/schedule`. Without a cluster it says so and ends. With
//! `PHALANX_EXAMPLE_STEPS` set it takes that many steps, in twenties.

use std::process::ExitCode;

use phalanx::engine::{Engine, EngineOptions};
use phalanx::prelude::*;
use phalanx::strategy::{ClusterCoordinator, ParameterServerOptions};

const STEPS: usize = 20;

fn main() -> ExitCode {
    phalanx::run(program)
}

fn program() -> phalanx::Result<()> {
    if std::env::var_os("TF_CONFIG").is_none() {
        println!(
            "there is no cluster; start it by `phalanx launch --workers 3 --ps 1 -- target/release/examples/schedule`"
        );
        return Ok(());
    }
    let engine = Engine::new(&EngineOptions::default())?;
    let options = ParameterServerOptions::new();
    let Some(strategy) = ParameterServerStrategy::from_env_with(&engine, &options)? else {
        return Ok(()); // this process was a parameter server
    };
    let model = Sequential::new([8, 8, 1])
        .add(Rescaling::new(1.0 / 16.0))
        .add(Flatten)
        .add(Dense::new(64).activation(relu))
        .add(Dense::new(10))
        .build()?;
    let compile = Compile {
        optimizer: Sgd::new(0.1).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        seed: 7,
        ..Compile::default()
    };
    let (train, test) = datasets::digits()?.split_at(1437)?;
    let trainer = strategy.compile(model, compile)?;
    let mut cluster = ClusterCoordinator::new(&strategy, trainer)?;
    // Each worker reads all of the digits in an order of its own.
    let batches = cluster.per_worker_dataset(move |context| {
        Ok(train.shuffle(context.input_pipeline_id as u64).batch(32))
    });
    let steps = cluster.function("steps", move |cx, trainer: &mut Trainer, count: usize| {
        let mut loss = 0.0;
        for _ in 0..count {
            let batch = cx.next_batch(&batches)?;
            loss += cx.train(trainer, &batch)?.get("loss").unwrap_or(0.0);
        }
        Ok(loss / count as f64)
    })?;
    if !cluster.start()? {
        return Ok(()); // this process was a worker
    }
    let few = std::env::var("PHALANX_EXAMPLE_STEPS").ok();
    let few: Option<usize> = few.and_then(|steps| steps.parse().ok());
    for round in 1..=few.map_or(5, |_| 1) {
        let calls = few.map_or(10, |few| few.div_ceil(STEPS).max(1));
        let losses = (0..calls).map(|_| cluster.schedule(&steps, &STEPS));
        let losses = losses.collect::<Result<Vec<_>, _>>()?;
        cluster.join()?;
        let last = losses[calls - 1].fetch()?;
        let logs = cluster.state_mut().evaluate(&test.batch(120))?;
        println!("round {round}: training loss {last:.3}; test: {logs}");
    }
    Ok(())
}
