//! The tour in `docs/ARCHITECTURE.md` is the way that a training really goes: stacks of a run, taken where it calls code of the
//! user, hold the calls of the tour in its order.
#![forbid(unsafe_code)]

use std::backtrace::Backtrace;
use std::path::Path;
use std::sync::{Arc, Mutex};

use phalanx::data::{Example, Source};
use phalanx::nn::Cx;
use phalanx::prelude::*;
use phalanx::strategy::ValueKind;
use phalanx_graph::Tensor;
use serde_json::Value;

/// The functions of ours that were being called when code of the user was, the outermost first.
type Stacks = Arc<Mutex<Vec<Vec<String>>>>;

/// Notes the functions of this crate that are being called, without closures.
fn note(stacks: &Stacks) {
    let text = Backtrace::force_capture().to_string();
    let mut frames: Vec<String> = text
        .lines()
        .filter_map(|line| line.trim_start().split_once(": "))
        .filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()))
        .map(|(_, name)| name)
        .filter(|name| name.starts_with("phalanx::") || name.starts_with("<phalanx::"))
        .map(|name| name.trim_end_matches("::{{closure}}").to_owned())
        .collect();
    frames.reverse();
    frames.dedup();
    stacks.lock().unwrap().push(frames);
}

/// A layer that changes nothing.
#[derive(Debug)]
struct Probe(Stacks);

impl Layer for Probe {
    fn kind(&self) -> &'static str {
        "probe"
    }

    fn config(&self) -> Value {
        Value::Null
    }

    fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
        note(&self.0);
        inputs[0].clone()
    }
}

/// Eight rows.
struct Rows(Stacks);

impl Source for Rows {
    fn len(&self) -> usize {
        8
    }

    fn get(&self, i: usize) -> phalanx::Result<Example> {
        note(&self.0);
        Ok(Example {
            x: vec![HostTensor::new([2], &[i as f32, 1.0])],
            y: vec![HostTensor::new([1], &[i as f32])],
            weight: None,
        })
    }
}

/// The calls that the tour names under a title: what stands in backticks between arrows and is no file.
fn tour(title: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ARCHITECTURE.md");
    let text = std::fs::read_to_string(page).unwrap();
    let start = text
        .find(&format!("- *{title}*"))
        .unwrap_or_else(|| panic!("the tour has no {title:?}"));
    let sentence = text[start..].split(". ").next().unwrap();
    let names = sentence.split('`').skip(1).step_by(2);
    names
        .filter(|name| !name.contains('/'))
        .map(str::to_owned)
        .collect()
}

/// Whether a frame is a call of the function that the tour names, with its type or without.
fn is_call(frame: &str, name: &str) -> bool {
    let mut parts = name.rsplit("::");
    let function = parts.next().unwrap();
    let of_type = parts
        .next()
        .is_none_or(|of_type| frame.contains(&format!("::{of_type}")));
    frame.ends_with(&format!("::{function}")) && of_type
}

/// The places of the tour's calls in a stack; panics with both where a call is not there, or not in this order.
fn places(stack: &[String], calls: &[String]) -> Vec<usize> {
    let mut from = 0;
    calls
        .iter()
        .map(|call| {
            let found = stack[from..].iter().position(|frame| is_call(frame, call));
            let place = found.unwrap_or_else(|| panic!("no {call} in {:#?}", &stack[from..]));
            from += place + 1;
            from - 1
        })
        .collect()
}

/// The stacks at a layer and at a source of data while a model trains for an epoch.
fn train() -> [Vec<String>; 2] {
    let (layer, rows) = (Stacks::default(), Stacks::default());
    let model = Sequential::new([2]).add(Probe(layer.clone()));
    let compile = Compile {
        optimizer: Sgd::new(0.1).into(),
        loss: MeanSquaredError.into(),
        ..Compile::default()
    };
    let data = Dataset::from_source(Rows(rows.clone())).shuffle(3);
    let strategy = OneDeviceStrategy::new().unwrap();
    let mut trainer = strategy.compile(model.add(Dense::new(1)), compile).unwrap();
    trainer
        .fit(&data.batch(4).prefetch(2), Fit::epochs(1))
        .unwrap();
    let in_fit = |stack: &&Vec<String>| {
        let mut frames = stack.iter();
        frames.any(|frame| is_call(frame, "FitRun::train_epoch"))
    };
    let layer = layer.lock().unwrap().iter().find(in_fit).unwrap().clone();
    let rows = rows.lock().unwrap()[0].clone();
    [layer, rows]
}

#[test]
fn a_training_goes_the_way_of_the_tour() {
    let [layer, rows] = train();

    let gradient = tour("A gradient");
    let (derivative, calls) = gradient.split_last().unwrap();
    assert!(calls.len() <= 5, "more than five calls: {calls:?}");
    let found = places(&layer, calls);
    let expected: Vec<usize> = (found[0]..found[0] + calls.len()).collect();
    assert_eq!(
        found, expected,
        "calls between those of the tour: {layer:#?}"
    );
    let last = include_str!("../src/fit/forward_backward.rs");
    assert!(
        last.contains(&format!("{derivative}(&loss")),
        "{derivative}"
    );

    let batch = tour("A batch");
    assert!(batch.len() >= 3, "{batch:?}");
    places(&rows, &batch);
}

#[test]
fn a_step_by_hand_goes_the_way_of_the_tour() {
    let stacks = Stacks::default();
    let strategy = OneDeviceStrategy::new().unwrap();
    let mut state = strategy.state(0).unwrap();
    let zero = HostTensor::scalar(0.0f32);
    let count = state
        .add_value("count", &zero, ValueKind::Replicated)
        .unwrap();
    let mut step = strategy.function(|cx, ()| {
        note(&stacks);
        [cx.value(&count)]
    });
    step.call(&mut state, &()).unwrap();
    let calls = tour("A step by hand");
    let body = stacks.lock().unwrap()[0].clone();
    places(&body, &calls[..1]);
}

#[test]
#[should_panic(expected = "no Trainer::other in")]
fn a_call_that_is_not_made_is_missed() {
    let stack = ["phalanx::fit::trainer::Trainer::fit".to_owned()];
    places(&stack, &["Trainer::fit".into(), "Trainer::other".into()]);
}
