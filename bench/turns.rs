//! The turns of `bench/peers/README.md`.

use std::error::Error;
use std::io::BufRead;

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
