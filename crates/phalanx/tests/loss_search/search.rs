//! The search.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_testkit::{asked_number, search_seed};
use serde_json::Value;

use crate::tried::compare;

/// How many cases Keras is asked for at a time.
const ROUND: u64 = 1000;

/// Asks Keras for cases until the time is over: `PHALANX_FUZZ_MINUTES`, else one round. The seed is `PHALANX_FUZZ_SEED`, else one of
/// the commit.
#[test]
fn search() {
    let Ok(python) = std::env::var("PHALANX_FUZZ_KERAS") else {
        return;
    };
    let seed = search_seed();
    let first = asked_number("PHALANX_FUZZ_FIRST").unwrap_or(0);
    let budget = Duration::from_secs(60 * asked_number("PHALANX_FUZZ_MINUTES").unwrap_or(0));
    let start = Instant::now();
    let (mut tried, mut wrong) = (0, Vec::new());
    while tried == 0 || start.elapsed() < budget {
        for case in cases(&python, seed, first + tried) {
            if let Err(what) = compare(&case) {
                let (kind, number) = (&case["kind"], &case["number"]);
                println!("{kind} of case {number}: {what}\n{case}");
                wrong.push(number.clone());
            }
        }
        tried += ROUND;
    }
    println!("seed {seed}: {tried} losses and metrics compared with Keras");
    assert!(wrong.is_empty(), "seed {seed}: cases {wrong:?} are wrong");
}

/// Cases with Keras' answers.
fn cases(python: &str, seed: u64, first: u64) -> Vec<Value> {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/loss_search/keras_answers.py"
    );
    let numbers = [seed, first, ROUND].map(|number| number.to_string());
    let mut command = Command::new(python);
    command.args(["-W", "ignore", script]).args(numbers);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.unwrap_or_else(|error| panic!("cannot start {python}: {error}"));
    assert!(output.status.success(), "{script}: {}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let cases = text.lines().map(serde_json::from_str);
    cases.collect::<Result<_, _>>().unwrap()
}
