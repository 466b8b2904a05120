//! The turns of `bench/peers/README.md`.

use std::error::Error;
use std::io::BufRead;
use std::time::Instant;

/// What some steps took.
pub(crate) struct Turn {
    /// A step, in milliseconds.
    pub(crate) step_ms: f64,
    /// Of the last.
    pub(crate) loss: f64,
}

/// Says that it is ready; then, for each line of input with a number, has that number of steps taken and says how long they took.
pub(crate) fn serve(
    mut turn: impl FnMut(usize) -> phalanx::Result<Turn>,
) -> Result<(), Box<dyn Error>> {
    let version = env!("CARGO_PKG_VERSION");
    println!(
        "{}",
        serde_json::json!({"framework": "phalanx", "version": version, "variant": ""})
    );
    for line in std::io::stdin().lock().lines() {
        let steps: usize = line?.trim().parse()?;
        let Turn { step_ms, loss } = turn(steps)?;
        println!(
            "{}",
            serde_json::json!({"median_ms": step_ms, "n": steps, "loss": loss})
        );
    }
    Ok(())
}

/// Takes steps that each return their loss once it is on the host; their median.
#[allow(dead_code, reason = "some programs time all steps of a turn together")]
pub(crate) fn median(
    steps: usize,
    mut step: impl FnMut() -> phalanx::Result<f64>,
) -> phalanx::Result<Turn> {
    let mut in_ms = Vec::with_capacity(steps);
    let mut loss = f64::NAN;
    for _ in 0..steps {
        let start = Instant::now();
        loss = step()?;
        in_ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    in_ms.sort_by(f64::total_cmp);
    let step_ms = in_ms[in_ms.len() / 2];
    Ok(Turn { step_ms, loss })
}
