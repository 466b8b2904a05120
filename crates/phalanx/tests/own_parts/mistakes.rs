//! What is said of parts that do not fit.

use phalanx::metrics::{MetricStateSpec, StatefulMetric};
use phalanx::optim::{ParamSpec, UpdateRule, Updated};
use phalanx::schedules::LearningRateSchedule;
use serde_json::json;

use super::*;

/// What a part answers, which is wrong in one way.
#[derive(Clone, Debug)]
struct Answers {
    kind: &'static str,
    config: Value,
    slots: Vec<&'static str>,
    own_slots: Vec<&'static str>,
    rate: Schedule,
}

fn right() -> Answers {
    Answers {
        kind: "mine",
        config: json!({}),
        slots: Vec::new(),
        own_slots: Vec::new(),
        rate: 0.1.into(),
    }
}

impl UpdateRule for Answers {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn config(&self) -> Value {
        self.config.clone()
    }

    fn learning_rate(&self) -> &Schedule {
        &self.rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        self.slots.iter().map(|name| (*name, 0.0)).collect()
    }

    fn own_slots(&self) -> Vec<(&'static str, f64)> {
        self.own_slots.iter().map(|name| (*name, 0.0)).collect()
    }

    /// Never any slot.
    fn update(
        &self,
        _: &ParamSpec,
        _: &[Tensor],
        param: &Tensor,
        _: &Tensor,
        _: &[Tensor],
    ) -> Updated {
        Updated::new(param.clone(), [])
    }
}

/// The rate in a graph, and on the host at most this.
#[derive(Debug)]
struct Rates(&'static str, f64);

impl LearningRateSchedule for Rates {
    fn kind(&self) -> &'static str {
        self.0
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn value(&self, step: u64) -> f64 {
        match self.0 {
            "root" => (200.0 - step as f64).sqrt() * 1e-3,
            _ => (0.1 * (step as f64 + 1.0)).min(self.1),
        }
    }

    fn trace(&self, step: &Tensor) -> Tensor {
        match self.0 {
            "of_integers" => step.clone(),
            "root" => (200.0 - step.convert(DType::F32)).sqrt() * 1e-3,
            _ => (step.convert(DType::F32) + 1.0) * 0.1,
        }
    }
}

/// One number of a state of these arrays.
#[derive(Debug)]
struct Counts(Vec<&'static str>);

impl StatefulMetric for Counts {
    fn kind(&self) -> &'static str {
        "counts"
    }

    fn state(&self) -> Vec<MetricStateSpec> {
        let shape = Shape::new(DType::F64, [2]);
        let spec = |name: &&'static str| MetricStateSpec {
            name,
            shape: shape.clone(),
        };
        self.0.iter().map(spec).collect()
    }

    fn update(&self, _: &Tensor, y_pred: &Tensor, _: Option<&Tensor>) -> Vec<Tensor> {
        vec![y_pred.sum_all()]
    }

    fn result(&self, state: &[Vec<f64>]) -> f64 {
        state[0][0]
    }
}

/// What compiling with it says, or training a step.
fn said(compile: Compile) -> String {
    let made = OneDeviceStrategy::on(engine()).compile(model(), compile);
    let record = &oracle::records("own_parts.json")[0];
    let fitted = made.and_then(|mut trainer| trainer.fit(&data(record).batch(18), quiet(1)));
    fitted.unwrap_err().to_string()
}

#[track_caller]
fn check(said: &str, expected: &str) {
    assert!(said.contains(expected), "`{expected}` is not in: {said}");
}

#[test]
fn rules_that_do_not_fit_are_refused() {
    let said = |answers: Answers| said(compile(Optimizer::custom(answers)));
    let adam = Answers {
        kind: "adam",
        ..right()
    };
    check(
        &said(adam),
        "adam: there is an optimizer of this kind already",
    );
    let number = Answers {
        config: json!(3),
        ..right()
    };
    check(
        &said(number),
        "mine: `config` must give an object of settings, got 3",
    );
    let shared = Answers {
        config: json!({"clipnorm": 1}),
        ..right()
    };
    check(
        &said(shared),
        "the setting `clipnorm`, which every optimizer has",
    );
    for slots in [vec!["a", "a"], vec!["average"], vec!["of/it"]] {
        let last = *slots.last().unwrap();
        check(&said(Answers { slots, ..right() }), &format!("`{last}`"));
    }
    let own_slots = vec!["learning_rate"];
    check(
        &said(Answers {
            own_slots,
            ..right()
        }),
        "there are two slots `learning_rate`",
    );
    let own_slots = vec!["count"];
    check(
        &said(Answers {
            own_slots,
            ..right()
        }),
        "`begin` must give as many own slots as there are",
    );
    let slots = vec!["a"];
    check(
        &said(Answers { slots, ..right() }),
        "`update` must give the variable f32[3,4] and the slots [f32[3,4]], got the variable f32[3,4] and the slots []",
    );
    let lazy = Optimizer::custom(right()).lazy();
    check(
        &lazy.check().unwrap_err().to_string(),
        "this rule needs whole variables",
    );
}

#[test]
fn schedules_that_do_not_fit_are_refused() {
    let said = |rates: Rates| said(compile(Sgd::new(rates).into()));
    check(
        &said(Rates("noam_decay", 9.0)),
        "there is a schedule of this kind already",
    );
    check(
        &said(Rates("of_integers", 9.0)),
        "`trace` must give a rate f32[], got i64[]",
    );
    check(
        &said(Rates("half", 0.2)),
        "half: at step 3 `trace` gives the rate 0.4, and `value` gives 0.2; make both the same formula",
    );
    check(&said(Rates("late", 500.0)), "late: at step 9973 ");
}

/// Both formulas are without a number after the training's last step.
#[test]
fn a_schedule_that_ends_is_not_refused() {
    let compile = compile(Sgd::new(Rates("root", 0.0)).into());
    let one = OneDeviceStrategy::on(engine());
    let mut trainer = one.compile(model(), compile).unwrap();
    let record = &oracle::records("own_parts.json")[0];
    trainer.fit(&data(record).batch(18), quiet(1)).unwrap();
}

#[test]
fn metrics_that_do_not_fit_are_refused() {
    let said = |counts: Counts| {
        said(Compile {
            metrics: vec![counts.into()],
            ..compile(Sgd::default().into())
        })
    };
    check(
        &said(Counts(vec!["a", "a"])),
        "counts: `state` has two arrays `a`; call one otherwise",
    );
    check(
        &said(Counts(vec!["a"])),
        "`update` must add arrays of the dims [[2]] of its state, got [[]]",
    );
}

/// A training file has no words for them.
#[test]
fn settings_of_a_file_are_refused() {
    let rate = Schedule::from(InverseRoot {
        first: 0.1,
        steps: 3,
    });
    let metrics = Compile {
        optimizer: Sgd::default().into(),
        ..compile(Sgd::default().into())
    };
    for (compile, kind) in [
        (compile(Optimizer::custom(right())), "`mine`"),
        (compile(Sgd::new(rate).into()), "`sgd`"),
        (metrics, "`within`"),
    ] {
        let settings = compile.optimizer_settings();
        let settings = settings.and_then(|_| compile.loss_settings(&["y".to_owned()]));
        check(&settings.unwrap_err().to_string(), kind);
    }
}
