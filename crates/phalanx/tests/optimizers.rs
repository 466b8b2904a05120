//! Every optimizer, its options and the schedules against Keras, step by step.

mod oracle;

use std::ops::Range;

use oracle::{Batch, array, name, snake_case};
use phalanx::nn::Constraint;
use phalanx::optim::{Optimizer, ParamSpec, Rule, Sgd, SlotSpec};
use phalanx::schedules::{
    CosineDecay, CosineDecayRestarts, ExponentialDecay, OneCycle, PolynomialDecay,
    RampUpExponentialDecay, Schedule,
};
use phalanx_graph::{HostTensor, Shape};
use phalanx_testkit::assert_close;
use serde_json::{Value, json};

const TOLERANCE: f64 = 5e-6;

#[test]
fn steps_are_those_of_keras() {
    let engine = oracle::engine();
    let records = oracle::records("optimizers.json");
    assert!(records.len() >= 81, "{} records", records.len());
    let mut batch = Batch::default();
    let iterations = batch.input(HostTensor::scalar(0_i64));
    let mut runs: Vec<Run<'_>> = Vec::new();
    for record in &records {
        let start = runs
            .last()
            .map_or((1, 0), |run| (run.gradients.end, run.outputs.end));
        runs.push(Run::trace(&mut batch, &iterations, record, start));
    }
    let mut program = batch.compile(&engine);
    let steps = runs.iter().map(|run| run.steps().len()).max().unwrap();
    for step in 0..steps {
        program.inputs[0] = HostTensor::scalar(step as i64);
        for run in &runs {
            run.feed(step, &mut program.inputs);
        }
        let results = program.run(&engine);
        for run in &runs {
            let results = &results[run.outputs.clone()];
            run.check(step, results);
            program.inputs[run.state.clone()].clone_from_slice(results);
        }
    }
}

/// A record within the program: variables and slots, then gradients; the next variables and slots.
struct Run<'a> {
    record: &'a Value,
    optimizer: Optimizer,
    params: Vec<ParamSpec>,
    state: Range<usize>,
    gradients: Range<usize>,
    outputs: Range<usize>,
}

impl<'a> Run<'a> {
    fn trace(
        batch: &mut Batch,
        iterations: &phalanx_graph::Tensor,
        record: &'a Value,
        (input, output): (usize, usize),
    ) -> Self {
        let optimizer = optimizer(record);
        let initial = variables(record);
        let params: Vec<ParamSpec> = initial.iter().map(|(spec, _)| spec.clone()).collect();
        let slots = optimizer.slots(&params);
        let values: Vec<_> = initial
            .iter()
            .map(|(_, x)| batch.input(x.clone()))
            .collect();
        let fill = |slot: &SlotSpec| HostTensor::full(slot.shape.clone(), slot.fill);
        let carried: Vec<_> = slots.iter().map(|slot| batch.input(fill(slot))).collect();
        let zeros = |spec: &ParamSpec| HostTensor::zeros(spec.shape.clone());
        let gradients: Vec<_> = params.iter().map(|spec| batch.input(zeros(spec))).collect();
        let applied = optimizer.apply(&params, iterations, &values, &gradients, &carried);
        applied
            .params
            .iter()
            .for_each(|tensor| batch.output(tensor));
        applied.slots.iter().for_each(|tensor| batch.output(tensor));
        let size = params.len() + slots.len();
        let (state, outputs) = (input..input + size, output..output + size);
        let gradients = state.end..state.end + params.len();
        Self {
            record,
            optimizer,
            params,
            state,
            gradients,
            outputs,
        }
    }

    fn steps(&self) -> &[Value] {
        self.record["steps"].as_array().unwrap()
    }

    fn feed(&self, step: usize, inputs: &mut [HostTensor]) {
        for (at, gradient) in self
            .gradients
            .clone()
            .zip(arrays(&self.steps()[step]["gradients"]))
        {
            inputs[at] = gradient;
        }
    }

    fn check(&self, step: usize, results: &[HostTensor]) {
        let expected = &self.steps()[step];
        let what = format!("{}, step {step}", name(self.record));
        let rate = self.optimizer.learning_rate().value(step as u64);
        let expected_rate = expected["learning_rate"].as_f64().unwrap();
        assert_close(&format!("{what}: rate"), &[rate], &[expected_rate], 1e-8);
        for (result, expected) in results.iter().zip(arrays(&expected["variables"])) {
            assert_close(&what, &result.to_f64(), &expected.to_f64(), TOLERANCE);
        }
        let averages = self.optimizer.average_slots(&self.params);
        assert_eq!(averages.is_empty(), expected.get("ema").is_none(), "{what}");
        if averages.is_empty() {
            return;
        }
        for (slot, expected) in averages.into_iter().zip(self.averages(step)) {
            let result = &results[self.params.len() + slot];
            let what = format!("{what}: average");
            assert_close(&what, &result.to_f64(), &expected, TOLERANCE);
        }
    }

    /// Keras' averages; with accumulated gradients the averages of its variables over updates, where Keras takes every batch.
    fn averages(&self, step: usize) -> Vec<Vec<f64>> {
        let of = |step: usize, what: &str| -> Vec<Vec<f64>> {
            arrays(&self.steps()[step][what])
                .map(|array| array.to_f64())
                .collect()
        };
        let config = &self.record["config"];
        let Some(window) = config["gradient_accumulation_steps"].as_u64() else {
            return of(step, "ema");
        };
        let momentum = config["ema_momentum"].as_f64().unwrap();
        let window = window as usize;
        let ends = (window - 1..=step).step_by(window).skip(1);
        let mean = |(average, value): (&mut f64, f64)| {
            *average = momentum * *average + (1.0 - momentum) * value;
        };
        ends.fold(
            of(step.min(window - 1), "variables"),
            |mut averages, end| {
                let values = of(end, "variables").into_iter().flatten();
                averages.iter_mut().flatten().zip(values).for_each(mean);
                averages
            },
        )
    }
}

fn optimizer(record: &Value) -> Optimizer {
    let kind = record["optimizer"].as_str().unwrap().to_lowercase();
    let mut config = record["config"].clone();
    // What changes nothing in Keras.
    config.as_object_mut().unwrap().remove("relative_step");
    if let Some(excluded) = record.get("exclude_from_weight_decay") {
        config["exclude_from_weight_decay"] = excluded.clone();
    }
    if let Some(schedule) = config.pointer("/learning_rate/schedule") {
        let mut fields = config["learning_rate"]["config"].clone();
        fields["kind"] = json!(snake_case(schedule.as_str().unwrap()));
        config["learning_rate"] = fields;
    }
    Optimizer::from_config(&kind, &config).unwrap()
}

fn variables(record: &Value) -> Vec<(ParamSpec, HostTensor)> {
    let variables = record["variables"].as_array().unwrap().iter();
    let each = variables.map(|variable| {
        let initial = array(&variable["initial"]).unwrap();
        let mut spec = ParamSpec::new(format!("dense/{}", name(variable)), initial.shape().clone());
        let constraint = record["constraints"].get(name(variable));
        spec.constraint = constraint.map(|c| serde_json::from_value(c.clone()).unwrap());
        (spec, initial)
    });
    each.collect()
}

fn arrays(list: &Value) -> impl Iterator<Item = HostTensor> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|value| array(value).unwrap())
}

/// On the host in f64 and in a program in f32, which is what Keras computes in.
#[test]
fn schedules_are_those_of_keras() {
    let records = oracle::records("schedules.json");
    assert!(records.len() >= 25, "{} records", records.len());
    let mut batch = Batch::default();
    let mut cases = Vec::new();
    for record in &records {
        let kind = snake_case(record["schedule"].as_str().unwrap());
        let schedule = Schedule::from_config(&kind, &record["config"]).unwrap();
        let steps = record["steps"].as_array().unwrap().iter();
        for (step, value) in steps.zip(record["values"].as_array().unwrap()) {
            let (step, value) = (step.as_u64().unwrap(), value.as_f64().unwrap());
            let input = batch.input(HostTensor::scalar(step as i64));
            batch.output(&schedule.trace(&input));
            let what = format!("{}, step {step}", name(record));
            assert_close(
                &format!("{what} on the host"),
                &[schedule.value(step)],
                &[value],
                1e-7,
            );
            cases.push((what, value));
        }
    }
    let results = batch.run(&oracle::engine());
    for ((what, expected), result) in cases.iter().zip(results) {
        assert_close(what, &result.to_f64(), &[*expected], 2e-7);
    }
}

/// At each step of a cycle, and after it, where PyTorch's ends with an error, as at its last.
#[test]
fn cycles_are_those_of_pytorch() {
    let records = oracle::records("../torch/schedules.json");
    assert_eq!(records.len(), 10);
    let mut batch = Batch::default();
    let mut cases = Vec::new();
    for record in &records {
        let mut config = record["config"].clone();
        let most = config["max_lr"].as_f64().unwrap();
        config["max_learning_rate"] = most.into();
        config.as_object_mut().unwrap().remove("max_lr");
        let schedule = Schedule::from_config("one_cycle", &config).unwrap();
        let values = record["values"].as_array().unwrap();
        let values = values.iter().map(|value| value.as_f64().unwrap());
        let after = values.clone().next_back();
        for (step, value) in (0_i64..).zip(values.chain(after)) {
            let input = batch.input(HostTensor::scalar(step));
            batch.output(&schedule.trace(&input));
            let got = schedule.value(step as u64);
            let what = format!("{}, step {step}", name(record));
            assert!(
                (got - value).abs() < 1e-14,
                "{what} on the host: {got}, expected {value}"
            );
            cases.push((what, value, most));
        }
    }
    let results = batch.run(&oracle::engine());
    for ((what, expected, most), result) in cases.iter().zip(results) {
        let got = result.to_f64()[0];
        assert!(
            (got - expected).abs() < 4e-7 * most,
            "{what}: {got}, expected {expected}"
        );
    }
}

/// Under names and settings of ours, where `OneCycleLR` has one of its own.
#[test]
fn other_schedules_are_those_of_pytorch() {
    let records = oracle::records_of("../torch/schedules.json", "others");
    assert_eq!(records.len(), 7);
    for record in &records {
        let kind = record["schedule"].as_str().unwrap();
        let schedule = Schedule::from_config(kind, &record["config"]).unwrap();
        let values = record["values"].as_array().unwrap();
        let expected: Vec<f64> = values.iter().map(|value| value.as_f64().unwrap()).collect();
        let got: Vec<f64> = (0..)
            .map(|step| schedule.value(step))
            .take(expected.len())
            .collect();
        assert_close(name(record), &got, &expected, 1e-12);
    }
}

/// Also where f32 is too coarse to count periods, or to see how they grow.
#[test]
fn programs_and_host_agree_on_schedules() {
    let ramp = RampUpExponentialDecay::new(0.01, 41, 7)
        .start_learning_rate(0.002)
        .min_learning_rate(0.001)
        .sustain_steps(13);
    let schedules: [Schedule; 9] = [
        Schedule::from(ramp.clone().steps_per_epoch(20)).for_replicas(8),
        Schedule::from(ramp).for_replicas(8),
        ExponentialDecay::new(0.1, 41, 0.9).staircase().into(),
        PolynomialDecay::new(0.1, 41).power(0.5).cycle().into(),
        PolynomialDecay::new(0.1, 41).power(0.5).into(),
        CosineDecay::new(0.0, 41).warmup(0.1, 41).into(),
        CosineDecayRestarts::new(0.1, 41)
            .t_mul(1.0)
            .m_mul(0.9)
            .into(),
        // Its second restart is at 1001.
        CosineDecayRestarts::new(0.1, 500).t_mul(1.002).into(),
        OneCycle::new(0.1, 999).three_phase().into(),
    ];
    let mut batch = Batch::default();
    let mut cases = Vec::new();
    for schedule in &schedules {
        for step in (0..13).flat_map(|k| [41 * k, 41 * k + 1, 41 * k + 40, 996 + k]) {
            let input = batch.shared(HostTensor::scalar(step as i64));
            batch.output(&schedule.trace(&input));
            cases.push((
                format!("{}, step {step}", schedule.kind()),
                schedule.value(step),
            ));
        }
    }
    let results = batch.run(&oracle::engine());
    for ((what, expected), result) in cases.iter().zip(results) {
        assert_close(what, &result.to_f64(), &[*expected], 2e-7);
    }
}

/// For each rule, with decay: the variable and its slots go as at that rate.
#[test]
fn a_factor_of_a_variable_is_a_rate_of_its_own() {
    let mut batch = Batch::default();
    let specs = [ParamSpec::new("head/kernel", Shape::f32([2, 3]))];
    let numbers = |seed: &str| {
        let numbers: Vec<f32> = oracle::uniform(seed, 6).map(|x| x as f32).collect();
        HostTensor::new([2, 3], &numbers)
    };
    let iterations = batch.input(HostTensor::scalar(4_i64));
    let [value, gradient] = ["value", "gradient"].map(|seed| batch.input(numbers(seed)));
    let mut names = Vec::new();
    for kind in Rule::KINDS {
        let with = |rate: f64| {
            let settings = json!({"learning_rate": rate, "weight_decay": 0.1});
            Optimizer::from_config(kind, &settings).unwrap()
        };
        let both = [with(0.3), with(0.1).learning_rate_factor("head", 3.0)];
        for optimizer in both {
            let slots = optimizer.slots(&specs);
            let fill = |slot: &SlotSpec| match slot.param {
                Some(_) => HostTensor::full(slot.shape.clone(), 0.5),
                None => HostTensor::full(slot.shape.clone(), slot.fill),
            };
            let carried: Vec<_> = slots.iter().map(|slot| batch.input(fill(slot))).collect();
            let (value, gradient) = ([value.clone()], [gradient.clone()]);
            let applied = optimizer.apply(&specs, &iterations, &value, &gradient, &carried);
            let of_variable = slots.iter().zip(&applied.slots);
            let of_variable = of_variable.filter(|(slot, _)| slot.param.is_some());
            let after = applied
                .params
                .iter()
                .chain(of_variable.map(|(_, slot)| slot));
            after.for_each(|tensor| {
                batch.output(tensor);
                names.push(kind);
            });
        }
    }
    let results: Vec<Vec<f64>> = (batch.run(&oracle::engine()).iter())
        .map(HostTensor::to_f64)
        .collect();
    for of_kind in names.chunk_by(|a, b| a == b) {
        let first = names.iter().position(|name| name == &of_kind[0]).unwrap();
        let (whole, by_factor) = results[first..first + of_kind.len()].split_at(of_kind.len() / 2);
        for (whole, by_factor) in whole.iter().zip(by_factor) {
            assert_close(of_kind[0], by_factor, whole, 1e-6);
        }
    }
}

#[test]
fn averages_and_variables_keep_still_within_a_window() {
    keeps_still(None);
    keeps_still(Some(&Constraint::NonNeg));
}

fn keeps_still(constraint: Option<&Constraint>) {
    let kept = |x: f64| x.max(constraint.map_or(f64::MIN, |_| 0.0));
    let mut batch = Batch::default();
    let mut specs = [ParamSpec::new("a", Shape::f32([]))];
    specs[0].constraint = constraint.cloned();
    let optimizer = Optimizer::from(Sgd::new(0.1))
        .gradient_accumulation(3)
        .ema(0.75)
        .ema_overwrite_frequency(2);
    let slots = optimizer.slots(&specs);
    let iterations = batch.input(HostTensor::scalar(0_i64));
    let value = batch.input(HostTensor::scalar(0.3_f32));
    let fill = |slot: &SlotSpec| HostTensor::full(slot.shape.clone(), slot.fill);
    let carried: Vec<_> = slots.iter().map(|slot| batch.input(fill(slot))).collect();
    let gradient = batch.input(HostTensor::scalar(2.0_f32));
    let applied = optimizer.apply(&specs, &iterations, &[value], &[gradient], &carried);
    let after = applied.params.iter().chain(&applied.slots);
    after.for_each(|tensor| batch.output(tensor));
    let engine = oracle::engine();
    let mut program = batch.compile(&engine);
    let average = 1 + optimizer.average_slots(&specs)[0];
    let (mut weight, mut mean) = (0.3, 0.3);
    for number in 1..=18 {
        program.inputs[0] = HostTensor::scalar(number as i64 - 1);
        let results = program.run(&engine);
        if number % 3 == 0 {
            weight = kept(weight - 0.2);
            mean = match number {
                3 => weight,
                _ => 0.75 * mean + 0.25 * weight,
            };
            if number % 6 == 0 {
                weight = mean;
            }
        }
        let got = [0, average].map(|at| results[at].to_f64()[0]);
        assert_close(&format!("batch {number}"), &got, &[weight, mean], TOLERANCE);
        program.inputs[1..=results.len()].clone_from_slice(&results);
    }
}

/// Constraints that go a part of the way go it once in an update, also where averages may take the variables' place in another.
#[test]
fn a_constraint_is_applied_once() {
    let mut batch = Batch::default();
    let mut spec = ParamSpec::new("a", Shape::f32([2, 1]));
    let settings = json!({"min_max_norm": {"rate": 0.5}});
    spec.constraint = serde_json::from_value(settings).unwrap();
    let specs = [spec];
    let iterations = batch.input(HostTensor::scalar(0_i64));
    let value = batch.input(HostTensor::new([2, 1], &[0.0_f32, 3.0]));
    let gradient = batch.input(HostTensor::new([2, 1], &[0.0_f32; 2]));
    for optimizer in [
        Optimizer::from(Sgd::new(0.1)),
        Optimizer::from(Sgd::new(0.1))
            .ema(0.5)
            .ema_overwrite_frequency(1000),
    ] {
        let fill = |slot: &SlotSpec| HostTensor::full(slot.shape.clone(), slot.fill);
        let slots = optimizer.slots(&specs);
        let slots: Vec<_> = slots.iter().map(|slot| batch.input(fill(slot))).collect();
        let (params, gradients) = ([value.clone()], [gradient.clone()]);
        let applied = optimizer.apply(&specs, &iterations, &params, &gradients, &slots);
        batch.output(&applied.params[0]);
    }
    for param in batch.run(&oracle::engine()) {
        assert_close("once", &param.to_f64(), &[0.0, 2.0], TOLERANCE);
    }
}

#[test]
fn an_infinite_gradient_is_not_clipped_away() {
    let mut batch = Batch::default();
    let iterations = batch.input(HostTensor::scalar(0_i64));
    let spec = |name: &str| ParamSpec::new(name, Shape::f32([2]));
    let specs = [spec("a"), spec("b")];
    let values = [0.0_f32, 1.0];
    let params = [(); 2].map(|()| batch.input(HostTensor::new([2], &values)));
    let broken = batch.input(HostTensor::new([2], &[1.0, f32::INFINITY]));
    let optimizer = Optimizer::from(Sgd::default()).global_clipnorm(1.0);
    let rate = batch.input(HostTensor::scalar(0.1_f32));
    let gradients = [params[0].clone(), broken];
    let rates = [rate];
    let applied = optimizer.apply(&specs, &iterations, &params, &gradients, &rates);
    applied.params.iter().for_each(|param| batch.output(param));
    // Each by itself, and finite, but for its squares.
    let large = batch.input(HostTensor::new([2], &[1.0, 1e30_f32]));
    let gradients = [params[0].clone(), large];
    let optimizer = Optimizer::from(Sgd::default()).clipnorm(1.0);
    let applied = optimizer.apply(&specs, &iterations, &params, &gradients, &rates);
    applied.params.iter().for_each(|param| batch.output(param));
    let results = batch.run(&oracle::engine());
    for (i, param) in results.iter().enumerate() {
        let is_spoilt = i != 2;
        assert!(
            param.f32s().iter().all(|x| x.is_nan() == is_spoilt),
            "{i}: {param:?}"
        );
    }
}
