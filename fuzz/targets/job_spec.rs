//! The reader of job files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx_launch::spec::{Plan, Source, Spec};

fuzz_target!(|input: &[u8]| {
    let source = match Source::of_file("config.yaml", input) {
        Ok(source) => source,
        Err(error) => return assert!(error.contains("config.yaml")),
    };
    let spec = match Spec::read(&source) {
        Ok(spec) => spec,
        Err(error) => return assert!(!error.is_empty()),
    };
    // The daemon reads the same from a request.
    let again = Spec::read(&Source::of_json(&source.to_json())).expect("a job that was read is read again");
    assert_eq!((&again.roles, &again.args, &again.ours), (&spec.roles, &spec.args, &spec.ours));
    // Each task has its arguments.
    if spec.tasks() <= 100
        && let Ok(plan) = Plan::new(&spec)
    {
        assert_eq!(plan.tasks.len(), spec.tasks());
        assert!(plan.workers() >= 1 && plan.workers() <= plan.tasks.len());
    }
});
