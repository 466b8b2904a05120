//! The decisions of Keras' own callbacks on 200 random sequences of results, from `tests/golden/keras/make_callbacks.py`.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::*;
use crate::checkpoint::NamedTensors;
use crate::config::read;
use crate::data::InputBottleneck;
use crate::data::{Batch, HostTensor};
use crate::fit::history::InputReport;
use crate::fit::{ReplicaTimes, Watch};
use crate::metrics::Better;

/// A trainer whose only variable is the number of the epoch.
#[derive(Clone, Default)]
struct Fake(Rc<RefCell<FakeState>>);

#[derive(Default)]
struct FakeState {
    rate: f32,
    weights: f64,
    watches: bool,
    logs: Logs,
    saved: Vec<PathBuf>,
    /// What is known of epochs that servers have gone past, where they have.
    behind: Option<KeptEpochs>,
}

impl Training for Fake {
    fn is_chief(&self) -> bool {
        true
    }
    fn iterations(&self) -> i64 {
        0
    }
    fn counted_batches(&self) -> Result<i64> {
        Ok(0)
    }
    fn logs(&mut self) -> Result<Logs> {
        Ok(self.0.borrow().logs.clone())
    }
    fn learning_rate(&self) -> Result<f64> {
        Ok(f64::from(self.0.borrow().rate))
    }
    fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        self.0.borrow_mut().rate = rate as f32;
        Ok(())
    }
    fn follows_schedule(&self) -> bool {
        false
    }
    fn variables(&self) -> Result<NamedTensors> {
        let value = HostTensor::scalar(self.0.borrow().weights);
        Ok(vec![("w".to_owned(), value)])
    }
    fn variables_after(&self, epoch: usize) -> Result<Option<NamedTensors>> {
        match &self.0.borrow().behind {
            Some(kept) => Ok(kept.find(epoch).cloned()),
            None => self.variables().map(Some),
        }
    }
    fn set_variables(&mut self, values: &[(String, HostTensor)]) -> Result<()> {
        self.0.borrow_mut().weights = values[0].1.to_f64()[0];
        Ok(())
    }
    fn save_weights(&mut self, path: &Path) -> Result<()> {
        self.0.borrow_mut().saved.push(path.to_path_buf());
        Ok(())
    }
    fn save_model(&mut self, _: &Path) -> Result<()> {
        Ok(())
    }
    fn goals(&self) -> Vec<(String, Option<Better>)> {
        let names = [
            ("loss", Better::Lower),
            ("accuracy", Better::Higher),
            ("mse", Better::Lower),
        ];
        let names = names.into_iter();
        names
            .map(|(name, better)| (name.to_owned(), Some(better)))
            .collect()
    }
    fn notice(&self, _: &str) {}
    fn batch(&self) -> Option<&Batch> {
        None
    }
    fn watch_bad_steps(&mut self, _: bool) -> Result<()> {
        self.0.borrow_mut().watches = true;
        Ok(())
    }
    fn first_bad_step(&mut self) -> Result<Option<u64>> {
        let state = self.0.borrow();
        let is_bad = state.watches && !state.logs["loss"].is_finite();
        Ok(is_bad.then_some(0))
    }
    fn first_bad_tensor(&mut self, _: Option<&Batch>) -> Result<String> {
        Ok(String::new())
    }
    fn use_averages(&mut self, _: bool) -> Result<()> {
        Ok(())
    }
    fn variables_of(&self, _: bool) -> Result<NamedTensors> {
        self.variables()
    }
    fn has_servers(&self) -> bool {
        false
    }
    fn is_alone(&self) -> bool {
        true
    }
    fn planned_replicas(&self) -> usize {
        1
    }
    fn describe(&self, _: usize) -> String {
        String::new()
    }
    fn watch_replicas(&mut self, _: Watch) {}
    fn record_step(&mut self, _: usize, _: Duration) {}
    fn time_replicas_if_due(&mut self, _: Duration) -> Result<Option<ReplicaTimes>> {
        Ok(None)
    }
}

/// A training of the fake, epoch by epoch.
struct Drive {
    fake: Fake,
    callbacks: Callbacks,
    wishes: Wishes,
    place: HookPlace,
    states: CallbackStates,
}

impl Drive {
    fn new(callback: impl IntoCallback, states: CallbackStates) -> Self {
        let mut callbacks = Callbacks::default();
        callbacks.push(callback);
        let mut drive = Self {
            fake: Fake::default(),
            callbacks,
            wishes: Wishes::default(),
            place: HookPlace {
                validates: true,
                execution: 1,
                ..HookPlace::default()
            },
            states,
        };
        drive.fake.0.borrow_mut().rate = 0.1;
        drive.each(|callback, cx| callback.on_train_begin(cx));
        drive
    }

    fn each(
        &mut self,
        hook: impl FnMut(&mut dyn Callback, &mut CallbackContext<'_>) -> Result<()>,
    ) {
        let around = (self.place, &mut self.wishes, &self.states);
        let mut fake = self.fake.clone();
        self.callbacks.each(&mut fake, around, hook).unwrap();
    }

    /// An epoch; whether training is to end.
    fn epoch(&mut self, epoch: usize, logs: &Logs) -> bool {
        self.place.epoch = epoch;
        self.each(|callback, cx| callback.on_epoch_begin(epoch, cx));
        self.fake.0.borrow_mut().weights = epoch as f64;
        let mut done = EpochLogs {
            epoch,
            logs: logs.clone(),
            steps: 1,
            seconds: 0.0,
            throughput: None,
            input: InputReport {
                bottleneck: InputBottleneck {
                    waited: 0.0,
                    slowest: "",
                },
                stages: Vec::new(),
                skipped: 0,
                validation_skipped: 0,
                lost_bytes: 0,
            },
            replica_times: None,
            slow_workers: Vec::new(),
            times: None,
            verdict: None,
        };
        self.each(|callback, cx| callback.on_epoch_end(&mut done, cx));
        self.wishes.stop.is_some()
    }
}

/// What is driven through all epochs, interrupted once by a checkpoint whose state another callback takes over.
fn interrupted<C: IntoCallback>(
    epochs: &[Logs],
    at: usize,
    make: impl Fn() -> C,
    mut after: impl FnMut(&Drive),
) -> Drive {
    let mut drive = Drive::new(make(), CallbackStates::new());
    for (epoch, logs) in epochs.iter().enumerate() {
        if epoch == at {
            let (rate, weights) = {
                let before = drive.fake.0.borrow();
                (before.rate, before.weights)
            };
            let states = drive.callbacks.states();
            drive = Drive::new(make(), states);
            let mut fake = drive.fake.0.borrow_mut();
            (fake.rate, fake.weights) = (rate, weights);
        }
        let is_over = drive.epoch(epoch, logs);
        after(&drive);
        if is_over {
            break;
        }
    }
    drive.each(|callback, cx| callback.on_train_end(cx));
    drive
}

fn cases() -> Vec<Value> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/keras/callbacks.json"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 200);
    cases
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| {
        assert_eq!(value, "NaN");
        f64::NAN
    })
}

fn epochs(case: &Value) -> Vec<Logs> {
    let logs = |epoch: &Value| {
        let entries = epoch.as_object().unwrap().iter();
        entries
            .map(|(name, value)| (name.clone(), number(value)))
            .collect()
    };
    case["epochs"]
        .as_array()
        .unwrap()
        .iter()
        .map(logs)
        .collect()
}

/// The settings without those named, and without those that are nothing.
fn settings(value: &Value, without: &[&str]) -> Value {
    let fields = value.as_object().unwrap().iter();
    let kept = fields.filter(|(name, value)| !without.contains(&name.as_str()) && !value.is_null());
    let kept = kept.map(|(name, value)| (name.clone(), value.clone()));
    Value::Object(kept.collect::<Map<_, _>>())
}

fn f32s(value: &Value) -> Vec<f32> {
    let values = value.as_array().unwrap().iter();
    values.map(|value| number(value) as f32).collect()
}

/// A case with the epoch in which its training is interrupted.
fn each(name: &str, mut check: impl FnMut(usize, &[Logs], usize, &Value, &Value)) {
    for (index, case) in cases().iter().enumerate() {
        let (epochs, case) = (epochs(case), &case[name]);
        let at = index % (epochs.len() + 1);
        check(index, &epochs, at, &case["settings"], &case["decided"]);
    }
}

#[test]
fn early_stopping_ends_where_keras_does() {
    each("early_stopping", |index, epochs, at, given, decided| {
        let template = EarlyStopping::default();
        let callback: EarlyStopping =
            read("early_stopping", &template, &settings(given, &[])).unwrap();
        let last = Arc::new(Mutex::new(callback.clone()));
        let mut done = 0;
        let make = || {
            // The last one made is looked at.
            *last.lock().unwrap() = callback.clone();
            Arc::clone(&last)
        };
        let drive = interrupted(epochs, at, make, |_| done += 1);
        assert_eq!(done, decided["done"], "{index}: {given}");
        let best = last.lock().unwrap().best_epoch();
        assert_eq!(best, decided["best_epoch"], "{index}: {given}");
        let weights = drive.fake.0.borrow().weights;
        assert_eq!(weights, number(&decided["weights"]), "{index}: {given}");
    });
}

#[test]
fn rates_fall_on_plateaus_as_in_keras() {
    each(
        "reduce_lr_on_plateau",
        |index, epochs, at, given, decided| {
            let template = ReduceLrOnPlateau::default();
            let callback: ReduceLrOnPlateau =
                read("reduce_lr_on_plateau", &template, &settings(given, &[])).unwrap();
            let mut rates = Vec::new();
            let after = |drive: &Drive| rates.push(drive.fake.0.borrow().rate);
            interrupted(epochs, at, || callback.clone(), after);
            assert_eq!(rates, f32s(&decided["rates"]), "{index}: {given}");
        },
    );
}

#[test]
fn scheduled_rates_are_those_of_keras() {
    each(
        "learning_rate_scheduler",
        |index, epochs, at, given, decided| {
            let (factor, every) = (number(&given["factor"]), number(&given["every"]) as usize);
            let make = || {
                LearningRateScheduler::per_epoch(move |epoch, rate| match epoch % every {
                    0 => rate * factor,
                    _ => rate,
                })
            };
            let mut rates = Vec::new();
            let after = |drive: &Drive| rates.push(drive.fake.0.borrow().rate);
            interrupted(epochs, at, make, after);
            assert_eq!(rates, f32s(&decided["rates"]), "{index}: {given}");
        },
    );
}

#[test]
fn the_same_paths_are_written_after_the_same_epochs() {
    each("model_checkpoint", |index, epochs, at, given, decided| {
        let mut fields = settings(given, &["batches"]);
        fields["save_weights_only"] = json!(true);
        let callback: ModelCheckpoint =
            read("model_checkpoint", &ModelCheckpoint::default(), &fields).unwrap();
        let batches = number(&given["batches"]) as usize;
        let mut drive = Drive::new(callback.clone(), CallbackStates::new());
        let mut saved = Vec::new();
        for (epoch, logs) in epochs.iter().enumerate() {
            if epoch == at {
                let states = drive.callbacks.states();
                saved.append(&mut drive.fake.0.borrow_mut().saved);
                drive = Drive::new(callback.clone(), states);
            }
            drive.place.epoch = epoch;
            drive.each(|callback, cx| callback.on_epoch_begin(epoch, cx));
            drive.fake.0.borrow_mut().logs =
                [("loss".to_owned(), logs["loss"])].into_iter().collect();
            for batch in 0..batches {
                drive.each(|callback, cx| callback.on_train_batch_end(batch, cx));
            }
            drive.epoch(epoch, logs);
        }
        saved.append(&mut drive.fake.0.borrow_mut().saved);
        // Where Keras ends the training with an error nothing is written.
        let expected = decided["saved"].as_array().unwrap().iter();
        let expected: Vec<PathBuf> = expected
            .filter_map(Value::as_str)
            .map(PathBuf::from)
            .collect();
        assert_eq!(saved, expected, "{index}: {given}");
    });
}

#[test]
fn the_csv_file_is_that_of_keras() {
    let folder = std::env::temp_dir().join(format!("phalanx-csv-logger-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    each("csv_logger", |index, epochs, at, given, decided| {
        let path = folder.join(format!("{index}.csv"));
        if let Some(before) = given["before"].as_str() {
            std::fs::write(&path, before).unwrap();
        }
        let mut fields = settings(given, &["before"]);
        fields["filename"] = json!(path);
        let make = || -> CsvLogger { read("csv_logger", &CsvLogger::default(), &fields).unwrap() };
        // Between a checkpoint and the end of the process that wrote it rows may follow, which do not stay.
        let mut count = 0;
        interrupted(epochs, at, make, |_| {
            count += 1;
            if count == at {
                let mut text = std::fs::read_to_string(&path).unwrap();
                text += "of an epoch that is done again\r\n";
                std::fs::write(&path, text).unwrap();
            }
        });
        let text = std::fs::read_to_string(&path).unwrap();
        let text = match at == epochs.len() {
            true => text.replace("of an epoch that is done again\r\n", ""),
            false => text,
        };
        assert_eq!(text, decided["text"].as_str().unwrap(), "{index}: {given}");
    });
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn losses_that_are_not_numbers_end_it_at_the_batch_of_keras() {
    each("terminate_on_nan", |index, epochs, _, _, decided| {
        let mut drive = Drive::new(TerminateOnNan::new(), CallbackStates::new());
        let mut batches = 0;
        for (batch, logs) in epochs.iter().enumerate() {
            drive.fake.0.borrow_mut().logs = logs.clone();
            drive.each(|callback, cx| callback.on_train_batch_end(batch, cx));
            batches += 1;
            if drive.wishes.stop.is_some() {
                break;
            }
        }
        assert_eq!(batches, decided["batches"], "{index}");
    });
}

/// Three epochs of which the second is the best, the last of them in a job that had begun before epoch `first`; these are gone through
/// again by a process that came in the place of the job's first worker, and one more with this loss. The variables at the end.
fn taken_over<C: IntoCallback>(
    make: impl Fn() -> C,
    first: usize,
    has_checkpoint: bool,
    last: f64,
) -> f64 {
    let logs = |loss: f64| -> Logs { [("loss".to_owned(), loss)].into_iter().collect() };
    let over = [3.0, 1.0, 2.0].map(logs);
    let mut before = Drive::new(make(), CallbackStates::new());
    let mut begun = Vec::new();
    for (epoch, logs) in over.iter().enumerate() {
        if epoch == first && first > 0 {
            begun = values_of(&before.callbacks.states());
        }
        before.epoch(epoch, logs);
    }
    let mut states = before.callbacks.states();
    states.retain(|_| has_checkpoint);
    let kept = KeptEpochs::take_from(&mut states, begun);
    let mut after = Drive::new(make(), states);
    after.fake.0.borrow_mut().behind = Some(kept);
    for (epoch, logs) in over.iter().enumerate().skip(first) {
        after.epoch(epoch, logs);
    }
    after.fake.0.borrow_mut().behind = None;
    after.epoch(3, &logs(last));
    after.each(|callback, cx| callback.on_train_end(cx));
    after.fake.0.borrow().weights
}

/// Parameter servers have the values of now, and no more of the epochs that are over.
#[test]
fn the_best_of_epochs_before_a_restart_is_what_the_checkpoint_has() {
    let early = || {
        EarlyStopping::new("loss")
            .patience(9)
            .restore_best_weights(true)
    };
    // The job began anew, or with the worse epoch behind it, or with the best.
    for first in 0..3 {
        let taken = |has_checkpoint, last| {
            let best = taken_over(|| KeepBest::new("loss"), first, has_checkpoint, last);
            let by_patience = taken_over(early, first, has_checkpoint, last);
            assert_eq!(by_patience, best, "{first}");
            best
        };
        assert_eq!(taken(true, 4.0), 1.0, "{first}");
        assert_eq!(taken(true, 0.5), 3.0, "{first}");
        // Lost: the last ones stay.
        assert_eq!(taken(false, 4.0), 3.0, "{first}");
    }
}

/// The settings of the program that goes on count, whatever the one before kept.
#[test]
fn early_stopping_restores_what_is_asked_for_now() {
    let logs = |loss: f64| Logs::from_iter([("loss".to_owned(), loss)]);
    let watching = || EarlyStopping::new("loss").patience(9);
    let mut before = Drive::new(watching().restore_best_weights(true), CallbackStates::new());
    before.epoch(0, &logs(1.0));
    let mut after = Drive::new(watching(), before.callbacks.states());
    after.epoch(1, &logs(2.0));
    after.each(|callback, cx| callback.on_train_end(cx));
    assert_eq!(after.fake.0.borrow().weights, 1.0);
    // The best ones were not kept, and others are not the best.
    let mut before = Drive::new(watching(), CallbackStates::new());
    before.epoch(0, &logs(1.0));
    let restoring = watching().restore_best_weights(true);
    let mut after = Drive::new(restoring, before.callbacks.states());
    after.epoch(1, &logs(2.0));
    after.epoch(2, &logs(3.0));
    after.each(|callback, cx| callback.on_train_end(cx));
    assert_eq!(after.fake.0.borrow().weights, 2.0);
}

/// Rows that could not be written have the header before them, or are to get it.
#[test]
fn a_table_that_is_written_late_has_one_header() {
    let name = format!("phalanx-late-table-{}.csv", std::process::id());
    let path = std::env::temp_dir().join(name);
    for (bytes, unwritten) in [(0, "epoch,loss\r\n0,1.0\r\n"), (20, "0,1.0\r\n")] {
        let values = json!({"keys": ["loss"], "bytes": bytes, "unwritten": unwritten});
        let state = CallbackState {
            values,
            tensors: Vec::new(),
        };
        let states = vec![("csv_logger".to_owned(), state)];
        let mut drive = Drive::new(CsvLogger::new(&path), states);
        drive.epoch(1, &Logs::from_iter([("loss".to_owned(), 0.5)]));
        let written = std::fs::read_to_string(&path).unwrap();
        assert_eq!(written, "epoch,loss\r\n0,1.0\r\n1,0.5\r\n");
        std::fs::remove_file(&path).unwrap();
    }
}
