//! Callbacks of a `fit`: their order, what they do to a training, and that a checkpoint keeps what they remember.

#[path = "../any_device/mod.rs"]
mod any_device;
mod checkpoints;
mod not_numbers;
mod some_validations;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx::checkpoint::CallbackState;
use phalanx::engine::{Engine, EngineOptions};
use phalanx::fit::EpochLogs;
use phalanx::fit::callbacks::{
    Callback, CallbackContext, EarlyStopping, IntoCallback, Lambda, LearningRateScheduler,
    ModelCheckpoint, ReduceLrOnPlateau, RemoteMonitor, SwapEmaWeights,
};
use phalanx::prelude::*;
use phalanx::{Error, Result};
use phalanx_testkit::Scratch;

/// A folder of these tests.
fn scratch(name: &str) -> Scratch {
    Scratch::new(env!("CARGO_TARGET_TMPDIR"), &format!("callbacks-{name}"))
}

fn trainer() -> Trainer {
    trainer_at(0.05)
}

fn trainer_at(rate: impl Into<Schedule>) -> Trainer {
    trainer_on(&OneDeviceStrategy::new().unwrap(), rate)
}

fn trainer_on(strategy: &OneDeviceStrategy, rate: impl Into<Schedule>) -> Trainer {
    let model = Sequential::new([4])
        .add(Dense::new(8).activation(tanh))
        .add(Dropout::new(0.2))
        .add(Dense::new(3));
    let compile = Compile {
        optimizer: Adam::new(rate).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        seed: 3,
        ..Compile::default()
    };
    strategy.compile(model, compile).unwrap()
}

/// Two batches of training, one of validation.
fn rows(count: usize) -> Batches {
    let x: Vec<f32> = (0..count * 4).map(|i| (i as f32 * 0.37).sin()).collect();
    let y: Vec<i32> = (0..count).map(|i| (i * i % 3) as i32).collect();
    let x = HostTensor::new([count, 4], &x);
    let rows = Dataset::from_arrays(x, HostTensor::new([count], &y)).unwrap();
    rows.shuffle(5).batch(6)
}

fn fit(epochs: usize) -> Fit {
    Fit::epochs(epochs)
        .validation(&rows(6))
        .progress(Progress::Silent)
}

fn variables(trainer: &Trainer) -> Vec<(String, HostTensor)> {
    trainer.variables().unwrap()
}

/// Notes every hook; its state is their number.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<String>>>);

impl Noted {
    fn note(&self, what: impl Into<String>) -> Result<()> {
        self.0.lock().unwrap().push(what.into());
        Ok(())
    }
}

type Cx<'a, 'b> = &'a mut CallbackContext<'b>;

impl Callback for Noted {
    fn kind(&self) -> &'static str {
        "noted"
    }
    fn on_train_begin(&mut self, cx: Cx<'_, '_>) -> Result<()> {
        let before: Option<usize> = cx.restored()?;
        self.note(format!("train {before:?}"))
    }
    fn on_train_end(&mut self, _: Cx<'_, '_>) -> Result<()> {
        self.note("train end")
    }
    fn on_epoch_begin(&mut self, epoch: usize, _: Cx<'_, '_>) -> Result<()> {
        self.note(format!("epoch {epoch}"))
    }
    fn on_epoch_end(&mut self, done: &mut EpochLogs, _: Cx<'_, '_>) -> Result<()> {
        let names: Vec<&str> = done.logs.iter().map(|(name, _)| name).collect();
        self.note(format!("epoch end {}", names.join(" ")))
    }
    fn on_train_batch_begin(&mut self, batch: usize, _: Cx<'_, '_>) -> Result<()> {
        self.note(format!("batch {batch}"))
    }
    fn on_train_batch_end(&mut self, batch: usize, cx: Cx<'_, '_>) -> Result<()> {
        assert!(cx.logs()?["loss"].is_finite());
        self.note(format!("batch end {batch} of {}", cx.iterations()))
    }
    fn on_test_begin(&mut self, _: Cx<'_, '_>) -> Result<()> {
        self.note("test")
    }
    fn on_test_batch_begin(&mut self, batch: usize, _: Cx<'_, '_>) -> Result<()> {
        self.note(format!("test batch {batch}"))
    }
    fn on_test_batch_end(&mut self, batch: usize, _: Cx<'_, '_>) -> Result<()> {
        self.note(format!("test batch end {batch}"))
    }
    fn on_test_end(&mut self, logs: &Logs, _: Cx<'_, '_>) -> Result<()> {
        let names: Vec<&str> = logs.iter().map(|(name, _)| name).collect();
        self.note(format!("test end {}", names.join(" ")))
    }
    fn on_predict_begin(&mut self, cx: Cx<'_, '_>) -> Result<()> {
        self.note(format!("predict {:?}", cx.steps()))
    }
    fn on_predict_batch_begin(&mut self, batch: usize, _: Cx<'_, '_>) -> Result<()> {
        self.note(format!("predict batch {batch}"))
    }
    fn on_predict_batch_end(&mut self, batch: usize, _: Cx<'_, '_>) -> Result<()> {
        self.note(format!("predict batch end {batch}"))
    }
    fn on_predict_end(&mut self, _: Cx<'_, '_>) -> Result<()> {
        self.note("predict end")
    }
    fn state(&self) -> CallbackState {
        CallbackState {
            values: self.0.lock().unwrap().len().into(),
            tensors: Vec::new(),
        }
    }
}

/// What Keras' `fit` calls, by its documentation and its source.
#[test]
fn hooks_are_called_in_the_order_of_keras() {
    let noted = Noted::default();
    let mut trainer = trainer();
    trainer
        .fit(&rows(12), fit(2).callback(noted.clone()))
        .unwrap();
    let epoch = |epoch: usize| {
        format!(
            "epoch {epoch}, batch 0, batch end 0 of {}, batch 1, batch end 1 of {}, test, test batch 0, test batch end 0, test end loss accuracy, epoch end loss accuracy val_loss val_accuracy",
            2 * epoch + 1,
            2 * epoch + 2
        )
    };
    let expected = format!("train None, {}, {}, train end", epoch(0), epoch(1));
    assert_eq!(noted.0.lock().unwrap().join(", "), expected);
}

#[test]
fn evaluations_and_predictions_call_the_hooks_of_their_callbacks() {
    let noted = Noted::default();
    let callbacks = || [noted.clone()];
    let mut trainer = trainer();
    let logs = trainer.evaluate_with(&rows(12), callbacks()).unwrap();
    let outputs = trainer.predict_with(&rows(12), callbacks()).unwrap();
    let expected = "test, test batch 0, test batch end 0, test batch 1, test batch end 1, test end loss accuracy, predict Some(2), predict batch 0, predict batch end 0, predict batch 1, predict batch end 1, predict end";
    assert_eq!(noted.0.lock().unwrap().join(", "), expected);
    assert_eq!(trainer.evaluate(&rows(12)).unwrap(), logs);
    assert_eq!(trainer.predict(&rows(12)).unwrap(), outputs);
}

#[test]
fn a_stop_within_an_epoch_ends_it_with_its_validation() {
    let noted = Noted::default();
    let stop = Lambda::new().on_train_batch_end(|batch, cx| {
        if (cx.epoch(), batch) == (1, 0) {
            cx.stop("enough");
        }
        Ok(())
    });
    let history = trainer()
        .fit(&rows(12), fit(5).callback(stop).callback(noted.clone()))
        .unwrap();
    assert_eq!(history.epochs.len(), 2);
    assert_eq!(history.epochs[1].steps, 1);
    let notes = noted.0.lock().unwrap().join(", ");
    assert!(
        notes.ends_with("epoch 1, batch 0, batch end 0 of 3, test, test batch 0, test batch end 0, test end loss accuracy, epoch end loss accuracy val_loss val_accuracy, train end"),
        "{notes}"
    );
}

#[test]
fn early_stopping_gives_the_variables_of_the_best_epoch() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let keep = Lambda::new().on_epoch_end(move |done, cx| {
        noted
            .lock()
            .unwrap()
            .push((done.logs["val_loss"], cx.variables()?));
        Ok(())
    });
    // What cannot improve: the first epoch stays the best.
    let early = EarlyStopping::new("val_loss")
        .min_delta(1e6)
        .patience(2)
        .restore_best_weights(true);
    let early = Arc::new(Mutex::new(early));
    let mut trainer = trainer();
    let history = trainer
        .fit(
            &rows(12),
            fit(9).callback(keep).callback(Arc::clone(&early)),
        )
        .unwrap();
    assert_eq!(history.epochs.len(), 3);
    assert_eq!(early.lock().unwrap().stopped_epoch(), Some(2));
    assert_eq!(variables(&trainer), seen.lock().unwrap()[0].1);
    assert_ne!(variables(&trainer), seen.lock().unwrap()[2].1);
    // Nothing is trained once it was ended, and everything is if it was not.
    let again = fit(9).callback(Arc::clone(&early)).resume();
    assert_eq!(trainer.fit(&rows(12), again).unwrap().epochs.len(), 3);
    assert_eq!(
        trainer
            .fit(&rows(12), fit(9).resume())
            .unwrap()
            .epochs
            .len(),
        9
    );
}

#[test]
fn rates_are_scheduled_by_epoch_and_by_step() {
    let rates = Arc::new(Mutex::new(Vec::new()));
    for is_per_step in [false, true] {
        let noted = Arc::clone(&rates);
        let schedule = match is_per_step {
            true => LearningRateScheduler::per_step(|step| 0.5 / (step + 1) as f64),
            false => LearningRateScheduler::per_epoch(|epoch, rate| match epoch {
                0 => rate,
                _ => rate / 2.0,
            }),
        };
        let note = Lambda::new().on_train_batch_end(move |_, cx| {
            noted.lock().unwrap().push(cx.learning_rate()? as f32);
            Ok(())
        });
        let plan = fit(2).callback(schedule).callback(note);
        let history = trainer().fit(&rows(12), plan).unwrap();
        let last = *rates.lock().unwrap().last().unwrap();
        assert_eq!(history.of("learning_rate")[1] as f32, last);
    }
    let step = |step: u16| (0.5 / f64::from(step + 1)) as f32;
    assert_eq!(
        *rates.lock().unwrap(),
        [0.05, 0.05, 0.025, 0.025, step(0), step(1), step(2), step(3)]
    );
}

#[test]
fn mistakes_are_told_before_the_first_step() {
    let refused = |fit: Fit| {
        let mut trainer = trainer();
        let error = trainer
            .fit(&rows(12), fit.progress(Progress::Silent))
            .unwrap_err();
        assert_eq!(trainer.iterations(), 0);
        error.to_string()
    };
    let error = refused(Fit::epochs(1).callback(EarlyStopping::new("val_loss")));
    assert_eq!(
        error,
        "early_stopping was given `val_loss`, and the logs are loss, accuracy; name one of them; those that begin with val_ need a validation; of a log that a callback adds, say with `mode` which values are better"
    );
    let error = refused(Fit::epochs(1).callback(ModelCheckpoint::new("{epoch:q}")));
    assert!(error.contains("`filepath` is `{epoch:q}`"), "{error}");
    let keras = ModelCheckpoint::new("{epoch}.h5").save_weights_only(true);
    let error = refused(Fit::epochs(1).callback(keras));
    assert_eq!(
        error,
        "model_checkpoint: `{epoch}.h5` is by its ending of Keras, which does not read what is written, a file of safetensors; name it `{epoch}.weights.h5`"
    );
    let error = refused(Fit::epochs(1).callback(ReduceLrOnPlateau::new("loss").factor(1.0)));
    assert!(
        error.contains("`factor` must be at least 0 and below 1"),
        "{error}"
    );
}

/// Rates are f32 on the device: 0.001 is 0.0010000000474974513 there.
#[test]
fn rates_are_told_in_the_digits_that_they_have() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&told);
    let options = EngineOptions {
        notice: Arc::new(move |line| kept.lock().unwrap().push(line.to_owned())),
        ..any_device::options()
    };
    let strategy = OneDeviceStrategy::on(&Engine::new(&options).unwrap());
    let mut trainer = trainer_on(&strategy, 0.001);
    let never_better = ReduceLrOnPlateau::new("loss").patience(1).min_delta(1e3);
    let history = trainer
        .fit(&rows(12), fit(3).callback(never_better))
        .unwrap();
    let rates = history
        .epochs
        .iter()
        .map(|done| done.logs.get("learning_rate").unwrap());
    assert_eq!(rates.collect::<Vec<_>>(), [0.001, 0.001, 0.0001]);
    let told = told.lock().unwrap();
    let told: Vec<&String> = told
        .iter()
        .filter(|line| line.contains("rate is reduced"))
        .collect();
    assert!(
        told[0].contains("is reduced to 0.0001 after epoch 2: "),
        "{told:?}"
    );
    assert!(
        told[1].contains("is reduced to 1e-5 after epoch 3: "),
        "{told:?}"
    );
}

#[test]
fn a_callback_that_sets_the_rate_is_refused_beside_a_schedule() {
    let plateau = ReduceLrOnPlateau::new("loss");
    let scheduler = LearningRateScheduler::per_step(|_| 0.1);
    for (kind, fit) in [
        ("reduce_lr_on_plateau", fit(1).callback(plateau)),
        ("learning_rate_scheduler", fit(1).callback(scheduler)),
    ] {
        let mut trainer = trainer_at(CosineDecay::new(0.05, 100));
        let error = trainer.fit(&rows(12), fit).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "{kind} sets the learning rate, and the rate of the optimizer follows a schedule; give the optimizer a number as its rate, or leave {kind} out"
            )
        );
        assert_eq!(trainer.iterations(), 0);
    }
}

/// With moving averages of its variables.
fn averaging() -> Trainer {
    let model = Sequential::new([4]).add(Dense::new(3));
    let compile = Compile {
        optimizer: Optimizer::from(Sgd::new(0.5)).ema(0.9),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let strategy = OneDeviceStrategy::new().unwrap();
    strategy.compile(model, compile).unwrap()
}

#[test]
fn the_best_epoch_is_kept_as_it_was_validated() {
    for on_epoch in [false, true] {
        let mut trainer = averaging();
        let swap = SwapEmaWeights::new().swap_on_epoch(on_epoch);
        let plan = fit(5).keep_best("val_loss").callback(swap);
        let history = trainer.fit(&rows(12), plan).unwrap();
        let best = history
            .of("val_loss")
            .into_iter()
            .fold(f64::INFINITY, f64::min);
        assert_eq!(trainer.evaluate(&rows(6)).unwrap()["loss"], best);
    }
}

/// Fails in the second batch of a test or a prediction.
struct Failing;

impl Failing {
    fn fail_at(batch: usize) -> Result<()> {
        match batch {
            0 => Ok(()),
            _ => Err(Error::User("a bad batch".into())),
        }
    }
}

impl Callback for Failing {
    fn kind(&self) -> &'static str {
        "failing"
    }
    fn on_test_batch_begin(&mut self, batch: usize, _: Cx<'_, '_>) -> Result<()> {
        Self::fail_at(batch)
    }
    fn on_predict_batch_begin(&mut self, batch: usize, _: Cx<'_, '_>) -> Result<()> {
        Self::fail_at(batch)
    }
}

#[test]
fn averages_are_in_place_for_an_evaluation_and_a_prediction_alone() {
    let mut trainer = averaging();
    for batch in rows(12).iter(0, 0) {
        trainer.train_on_batch(&batch.unwrap()).unwrap();
    }
    let (before, state) = (variables(&trainer), trainer.training_state().unwrap());
    let swap = || SwapEmaWeights::new().into_shared();
    let plain = trainer.predict(&rows(12)).unwrap();
    let averaged = trainer.predict_with(&rows(12), [swap()]).unwrap();
    assert_ne!(plain, averaged);
    assert_eq!(variables(&trainer), before);
    let failing = || [swap(), Failing.into_shared()];
    trainer.evaluate_with(&rows(12), failing()).unwrap_err();
    assert_eq!(variables(&trainer), before);
    trainer.predict_with(&rows(12), failing()).unwrap_err();
    assert_eq!(variables(&trainer), before);
    let plan = fit(1).validation(&rows(12)).callback(SwapEmaWeights::new());
    trainer.fit(&rows(12), plan.callback(Failing)).unwrap_err();
    let trained = variables(&trainer);
    trainer.set_training_state(&state).unwrap();
    let mut steps = rows(12).iter(0, 0);
    steps
        .try_for_each(|batch| trainer.train_on_batch(&batch?).map(drop))
        .unwrap();
    assert_eq!(variables(&trainer), trained);
}

#[test]
fn validation_and_saving_are_by_the_averages() {
    let saved = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&saved);
    let note = Lambda::new().on_epoch_end(move |_, cx| {
        keep.lock().unwrap().push(cx.variables()?);
        Ok(())
    });
    let mut swapped = averaging();
    let plan = fit(2)
        .callback(SwapEmaWeights::new().swap_on_epoch(true))
        .callback(note);
    let history = swapped.fit(&rows(12), plan).unwrap();
    // By hand: after two batches the averages are what the variables become at the end of a `fit`.
    let mut plain = averaging();
    plain.fit(&rows(12), fit(1)).unwrap();
    assert_eq!(variables(&plain), saved.lock().unwrap()[0]);
    let loss = plain.evaluate(&rows(6)).unwrap()["loss"];
    assert_eq!(loss, history.epochs[0].logs["val_loss"]);
    // The training itself does not see them.
    let mut without = averaging();
    let expected = without.fit(&rows(12), fit(2)).unwrap();
    assert_eq!(expected.of("loss"), history.of("loss"));
    assert_ne!(expected.of("val_loss"), history.of("val_loss"));
    assert_eq!(variables(&without), variables(&swapped));
    assert_eq!(
        without.training_state().unwrap().slots(),
        swapped.training_state().unwrap().slots()
    );
    let error = trainer().fit(&rows(12), fit(1).callback(SwapEmaWeights::new()));
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("averages the variables")
    );
}

/// A server that results are sent to, and its address.
fn listener() -> (TcpListener, String) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", server.local_addr().unwrap());
    (server, address)
}

/// What was sent in the next request, once `answer` was called.
fn received(server: &TcpListener, answer: impl FnOnce()) -> String {
    let (mut stream, _) = server.accept().unwrap();
    let timeout = Some(Duration::from_secs(20));
    stream.set_read_timeout(timeout).unwrap();
    let mut text = Vec::new();
    let mut byte = [0];
    let complete = |text: &[u8]| {
        let text = String::from_utf8_lossy(text);
        let (head, body) = text.split_once("\r\n\r\n")?;
        let length = head.split_once("Content-Length: ")?.1;
        let length: usize = length.split("\r\n").next()?.parse().ok()?;
        (body.len() == length).then(|| body.to_owned())
    };
    let body = loop {
        stream.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
        if let Some(body) = complete(&text) {
            break body;
        }
    };
    assert!(text.starts_with(b"POST /publish/epoch/end/ HTTP/1.1\r\n"));
    answer();
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    body
}

#[test]
fn results_are_sent_before_an_interrupted_training_returns() {
    let (server, address) = listener();
    let stop = Arc::new(AtomicBool::new(false));
    let is_answered = Arc::new(AtomicBool::new(false));
    let (set, told) = (Arc::clone(&stop), Arc::clone(&is_answered));
    let answering = std::thread::spawn(move || {
        received(&server, || {
            // Longer than what is left of the training.
            std::thread::sleep(Duration::from_millis(100));
            told.store(true, Ordering::Relaxed);
        })
    });
    let stopping = Lambda::new().on_epoch_end(move |_, _| {
        set.store(true, Ordering::Relaxed);
        Ok(())
    });
    let plan = fit(2).callback(RemoteMonitor::new(address));
    let plan = plan.callback(stopping).stop_when(&stop);
    let stopped = trainer().fit(&rows(12), plan).unwrap_err();
    assert!(matches!(stopped, Error::Stopped(_)), "{stopped}");
    assert!(is_answered.load(Ordering::Relaxed));
    answering.join().unwrap();
}

#[test]
fn results_are_sent_and_a_silent_server_costs_nothing() {
    let (server, address) = listener();
    let answered = std::thread::spawn(move || [(); 2].map(|()| received(&server, || ())));
    let sent = RemoteMonitor::new(&*address).send_as_json(true);
    // Nobody listens there.
    let lost = RemoteMonitor::new("http://127.0.0.1:1");
    let history = trainer()
        .fit(&rows(12), fit(2).callback(sent).callback(lost))
        .unwrap();
    for (text, epoch) in answered.join().unwrap().iter().zip(&history.epochs) {
        let sent: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(sent["epoch"], epoch.epoch);
        assert_eq!(sent["val_loss"].as_f64().unwrap(), epoch.logs["val_loss"]);
    }
    let wrong = RemoteMonitor::new("https://example.com");
    let error = trainer()
        .fit(&rows(12), fit(1).callback(wrong))
        .unwrap_err();
    assert!(
        error.to_string().contains("`https://example.com/publish"),
        "{error}"
    );
}
