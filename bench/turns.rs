//! The turns of `bench/peers/README.md`.

use std::error::Error;
use std::io::BufRead;
use std::time::Instant;

use phalanx::data::Batch;
use phalanx::prelude::*;

/// Says that it is ready; then, for each line of input with a number, takes so many steps and says how long they took.
pub(crate) fn serve(mut trainer: Trainer, data: &Batch) -> Result<(), Box<dyn Error>> {
    let version = env!("CARGO_PKG_VERSION");
    println!(
        "{}",
        serde_json::json!({"framework": "phalanx", "version": version, "variant": ""})
    );
    for line in std::io::stdin().lock().lines() {
        let steps: usize = line?.trim().parse()?;
        let mut in_ms = Vec::with_capacity(steps);
        let mut loss = f64::NAN;
        for _ in 0..steps {
            let start = Instant::now();
            let logs = trainer.train_on_batch(data)?;
            in_ms.push(start.elapsed().as_secs_f64() * 1e3);
            loss = logs.get("loss").unwrap_or(f64::NAN);
        }
        println!(
            "{}",
            serde_json::json!({"median_ms": median(&mut in_ms), "n": steps, "loss": loss})
        );
    }
    Ok(())
}

/// The middle value, the upper of two.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
