//! `phalanx train train.yaml`.

use std::path::Path;

use phalanx::Error;
use phalanx::checkpoint::TrainingState;
use phalanx::data::{Batch, Batches, Dataset};
use phalanx::fit::{Fit, HParam, History, Logs, SaveBehind, callbacks};
use phalanx::nn::Model;
use phalanx_cluster::Variables;
use phalanx_yaml::Bytes;
use serde_json::{Value, json};

use super::Context;
use super::buckets;
use super::estimate::first_batch;
use super::follow;
use super::session::{self, Session, failed};
use super::smoke;
use crate::args::TrainArgs;
use crate::config::{self, SaveFreq, TrainConfig};
use crate::data_facts::Facts;
use crate::failure::{Exit, Failure};
use crate::files::check_callbacks;
use crate::held_out::HeldOutCheck;
use crate::record::Record;
use crate::resumed_settings::changed_settings;
use crate::rows::{self, Rows};
use crate::run_folder::{Lock, RunFolder};
use crate::scaling::Scaling;
use crate::signals::Signals;
use crate::speed_log::SpeedLog;
use crate::split::check_parts;
use crate::{args, checks, model, output, preemption};

/// Trains, saves the model and the logs, and tests.
pub(crate) fn run(context: &mut Context, args: &TrainArgs) -> Result<(), Failure> {
    if let Some(rendezvous) = &args.rendezvous {
        Variables::define("PHALANX_RENDEZVOUS", rendezvous);
    }
    context.find_workers()?;
    let mut config = session::config(&args.file, &overrides(args))?;
    if let Some(output) = &args.output {
        config.output.clone_from(output);
    }
    check_callbacks(&config).map_err(session::wrong)?;
    if context.is_followed && config.fit.save_freq.is_none() {
        config.fit.save_freq = Some(SaveFreq::Epoch);
    }
    if args.dry_run {
        return dry_run(context, &mut config);
    }
    if context.is_evaluator {
        return follow::beside(context, &mut config, args.resume);
    }
    if let Some(cloud) = config.fit.preemption_notice {
        preemption::wait_until_withdrawn(cloud, session::others_wait(context, &config)?)?;
    }
    if context.is_server() {
        return session::serve(context, &config);
    }
    if args.smoke {
        return smoke::run(context, config, args);
    }
    let (folder, tested) = train(context, config, args)?;
    report(context, &folder, tested.as_ref())
}

/// The training, and what the trained model is on the test rows.
pub(super) fn train(
    context: &mut Context,
    mut config: TrainConfig,
    args: &TrainArgs,
) -> Result<(RunFolder, Option<Logs>), Failure> {
    // Before the training, which may be long.
    let (folder, _lock) = run_folder(context, &config, args)?;
    buckets::fetch(context, &mut config)?;
    let goes_on = args.resume || folder.is_of_restart()?;
    let (rows, model) = data_and_model(context, &config, goes_on.then_some(&folder))?;
    let mut session = Session::start(context, &config, model)?;
    let folder = folder.written_by(session.trainer.placement());
    check(context, &config, &rows, session.classes(), |batch| {
        session.trainer.check_batch(batch)
    })?;
    let resumed = goes_on && resume(context, &mut session, &folder, &rows.facts)?;
    if !resumed {
        session.load_first_weights(context, &rows.facts)?;
    }
    let is_chief = context.is_chief();
    if !resumed && is_chief {
        // One of another training, which was to be replaced.
        TrainingState::remove(folder.checkpoint()).map_err(|error| failed(&error))?;
        folder.forget_speed();
    }
    let plan = plan(context, &session, &rows, args, &folder)?;
    let plan = if resumed { plan.resume() } else { plan };
    let batches = session.to_train(&rows.train)?;
    // The record of a training that is refused would be what the next one is compared with.
    let checked = session.trainer.check_resume(&batches, &plan);
    checked.map_err(|error| failed(&error))?;
    let record = context.record(&config, &rows.facts);
    if is_chief {
        record.write(folder.path())?;
        folder.write_job(false)?;
    }
    folder.write_history(session.trainer.history())?;
    folder.write_test(None)?;
    let history = fit(context, &mut session, &batches, plan, args, &folder)?;
    save(context, &session, &folder, &record)?;
    folder.write_history(&history)?;
    let tested = match args.smoke {
        true => smoke::check(&history)?,
        false => test(&mut session, &rows)?,
    };
    folder.write_test(tested.as_ref())?;
    Ok((folder, tested))
}

/// Saves the model with its record, where this process writes.
fn save(
    context: &mut Context,
    session: &Session,
    folder: &RunFolder,
    record: &Record,
) -> Result<(), Failure> {
    session.save(folder)?;
    if !folder.writes() {
        return Ok(());
    }
    context.become_chief();
    record.write(&folder.model())?;
    folder.write_job(true)
}

/// The folder of the training, which nobody else writes to while the lock lives.
fn run_folder(
    context: &Context,
    config: &TrainConfig,
    args: &TrainArgs,
) -> Result<(RunFolder, Option<Lock>), Failure> {
    if !context.is_chief() {
        return Ok((RunFolder::of_another(config), None));
    }
    let (folder, lock) = RunFolder::create(config)?;
    folder.check_not_over()?;
    if !args.overwrite && !folder.is_of_restart()? {
        folder.check_unused(args.resume)?;
    }
    if args.overwrite && args.resume && folder.has_checkpoint()? && !context.global.quiet {
        output::notice(
            "note: --overwrite replaces nothing: with --resume training goes on from the checkpoint that is there",
        );
    }
    Ok((folder, Some(lock)))
}

/// What the command line sets in the file. An option of its own counts more than `--set`.
fn overrides(args: &TrainArgs) -> Vec<String> {
    let mut overrides = args.set.clone();
    let epochs = args.epochs.map(|epochs| format!("fit.epochs={epochs}"));
    let steps = args.steps_per_epoch;
    let steps = steps.map(|steps| format!("fit.steps_per_epoch={steps}"));
    overrides.extend(epochs.into_iter().chain(steps));
    overrides
}

/// How features are scaled in the training of a folder, if it goes on from a checkpoint; `config` must ask for the same.
fn kept_scaling(config: &TrainConfig, folder: &RunFolder) -> Result<Option<Scaling>, Failure> {
    let record = match folder.has_checkpoint()? {
        true => Record::read(folder.path())?,
        false => None,
    };
    let Some(record) = record else {
        return Ok(None);
    };
    if let Some((key, now, then)) = record.other_on_resume(config) {
        let (file, shown) = (config.origin.display(), folder.path().display());
        let message = format!(
            "`{key}` of {file} is {now}, and the checkpoint in {shown} was trained with {then}"
        );
        return Err(Failure::new(Exit::Usage, message).next(format!(
            "bring `{key}` back to what it was, or train without --resume"
        )));
    }
    Ok(Some(record.facts.scaling))
}

/// Reads the data and builds the model, and says what they are; `before` is the folder of the training that goes on, if one does.
pub(super) fn data_and_model(
    context: &mut Context,
    config: &TrainConfig,
    before: Option<&RunFolder>,
) -> Result<(Rows, Model), Failure> {
    let kept = before.map(|folder| kept_scaling(config, folder));
    let kept = kept.transpose()?.flatten();
    let rows = rows::load_on(config, kept.as_ref()).map_err(session::wrong)?;
    describe(context, &rows)?;
    let model = model::of_data(config, &rows.facts).map_err(session::wrong)?;
    if context.global.shows_text() {
        context.output.line(model.summary())?;
    }
    Ok((rows, model))
}

/// Everything before the first step, without memory for the model: the data, the layers, the loss, and the program of a step.
fn dry_run(context: &mut Context, config: &mut TrainConfig) -> Result<(), Failure> {
    buckets::fetch(context, config)?;
    let (rows, model) = data_and_model(context, config, None)?;
    let step = session::estimator(context, config, model)?;
    let config = &*config;
    let classes = session::classes_of(step.model());
    check(context, config, &rows, classes, |batch| {
        step.check_batch(batch)
    })?;
    for warning in step.warnings() {
        context.warn(&warning);
    }
    let batch = first_batch(config, step.model(), &rows)?;
    let estimate = step.estimate(&batch, config.fit.batch_size);
    let memory = Bytes(estimate.map_err(|error| failed(&error))?.total);
    match context.global.progress {
        args::Progress::Json => context
            .output
            .line(json!({"event": "dry_run", "step_bytes": memory.0})),
        _ => context.output.line(format_args!(
            "dry run: a step of {} examples was compiled and needs {memory}; nothing was trained or written",
            config.fit.batch_size
        )),
    }
}

/// A line about the data.
fn describe(context: &mut Context, rows: &Rows) -> Result<(), Failure> {
    let count = |rows: Option<&Dataset>| rows.and_then(Dataset::len).unwrap_or(0);
    let (train, validation, test) = (
        count(Some(&rows.train)),
        count(rows.validation.as_ref()),
        count(rows.test.as_ref()),
    );
    let facts = &rows.facts;
    if context.global.progress == args::Progress::Json {
        let texts = facts.texts.iter().map(|text| {
            json!({"column": text.shown(), "length": text.length(), "vocabulary": text.size()})
        });
        let categories = facts.categories.iter();
        let categories =
            categories.map(|own| json!({"column": own.shown(), "vocabulary": own.size()}));
        return context.output.line(json!({
            "event": "data", "train": train, "validation": validation, "test": test,
            "left_out": rows.dropped, "dims": facts.example_dims(), "columns": facts.columns, "classes": facts.classes,
            "labels": facts.labels, "texts": texts.collect::<Vec<_>>(), "categories": categories.collect::<Vec<_>>(),
        }));
    }
    if !context.global.shows_text() {
        return Ok(());
    }
    let mut line = format!("data: {train} examples to train on");
    for (count, purpose) in [(validation, "to validate"), (test, "to test")] {
        if count > 0 {
            line += &format!(", {count} {purpose}");
        }
    }
    line += &format!("; each of {}", facts.shown_dims());
    if !facts.classes.is_empty() {
        line += &format!("; {}", shown_classes(&facts.classes));
    }
    for label in facts
        .labels
        .iter()
        .filter(|label| !label.classes.is_empty())
    {
        line += &format!("; {} of {}", label.name, shown_classes(&label.classes));
    }
    for text in &facts.texts {
        let (shown, size, unit) = (text.shown(), text.size(), text.unit());
        line += &match text.vectorizer.vocabulary() {
            Some(_) => format!("; {} {unit} of {shown}, a vocabulary of {size}", size - 2),
            None => format!("; {unit} of {shown} by a tokenizer of {size} tokens"),
        };
    }
    for category in &facts.categories {
        let (shown, size) = (category.shown(), category.size());
        line += &match category.hash {
            Some(bins) => format!("; names of {shown} in {bins} bins"),
            None => format!("; {} names of {shown}, a vocabulary of {size}", size - 2),
        };
    }
    if rows.dropped > 0 {
        line += &format!("; {} rows with missing values left out", rows.dropped);
    }
    context.output.line(line)
}

fn shown_classes(classes: &[String]) -> String {
    let shown: Vec<&str> = classes.iter().take(5).map(String::as_str).collect();
    let more = if classes.len() > 5 { ", .." } else { "" };
    format!("{} classes: {}{more}", classes.len(), shown.join(", "))
}

fn check(
    context: &Context,
    config: &TrainConfig,
    rows: &Rows,
    classes: usize,
    check_batch: impl Fn(&Batch) -> phalanx::Result<()>,
) -> Result<(), Failure> {
    let warnings = checks::check(config, rows, classes, check_batch);
    let warnings = warnings.map_err(|problem| session::wrong(config.problems(vec![problem])))?;
    for warning in rows.warnings.iter().chain(&warnings) {
        context.warn(warning);
    }
    Ok(())
}

/// Takes the state of the checkpoint, if there is one.
fn resume(
    context: &Context,
    session: &mut Session,
    folder: &RunFolder,
    facts: &Facts,
) -> Result<bool, Failure> {
    let path = folder.checkpoint();
    let tell = |text: String| {
        if !context.global.quiet {
            output::notice(text);
        }
    };
    let shown = path.display();
    if !folder.has_checkpoint()? {
        tell(format!("no checkpoint at {shown} yet: training begins"));
        return Ok(false);
    }
    let (state, left_out) = TrainingState::load_newest(&path).map_err(|error| failed(&error))?;
    if !left_out.is_empty() {
        tell(format!("warning: {}", left_out.join("; ")));
    }
    check_seed(state.seed(), session.config.fit.seed, &path)?;
    let before = Record::read(folder.path())?;
    check_facts(&session.config, folder, before.as_ref(), facts)?;
    let held_out = HeldOutCheck::new(&session.config, facts).check(&state);
    held_out.map_err(|error| failed(&error))?;
    let restored = session.trainer.set_training_state(&state);
    restored.map_err(|error| match error {
        Error::User(message) => {
            let file = session.config.origin.display();
            let message = format!("cannot go on from the checkpoint at {shown}: {message}");
            Failure::new(Exit::Usage, message).next(format!(
                "correct {file} to what it was, or train without --resume"
            ))
        }
        other => failed(&other),
    })?;
    if let Some(note) = before.and_then(|before| other_settings(session, &before)) {
        tell(note);
    }
    let (done, step) = (state.position().epoch, state.iterations());
    let epochs = session.config.fit.epochs;
    if done >= epochs as u64 {
        tell(format!(
            "nothing is trained: the checkpoint at {shown}, after step {step}, has {done} epochs done, and {epochs} are asked for; ask for more with --epochs"
        ));
    } else {
        let epoch = done + 1;
        tell(format!(
            "training goes on from {shown}, after step {step}, in epoch {epoch}"
        ));
    }
    Ok(true)
}

fn check_seed(there: u64, here: u64, checkpoint: &Path) -> Result<(), Failure> {
    if there == here {
        return Ok(());
    }
    let shown = checkpoint.display();
    let message = format!(
        "the checkpoint at {shown} is of the seed {there}, and fit has {here}, which orders the data otherwise"
    );
    Err(Failure::new(Exit::Usage, message).next(format!(
        "write `seed: {there}` to go on, or train without --resume"
    )))
}

/// What is said of a model, a loss, a precision or a batch size that are not as they were.
fn other_settings(session: &Session, before: &Record) -> Option<String> {
    let then = before.config().ok()?;
    // As it was written: the batch size is of all replicas here.
    let (text, file) = (session.config.text.as_bytes(), &session.config.origin);
    let now = config::parse_with(text, file, &session.config.overrides).ok()?;
    changed_settings(&then, &now)
}

/// Words that had other numbers would have the vectors of other words, and a test on other rows some that were trained on.
fn check_facts(
    config: &TrainConfig,
    folder: &RunFolder,
    before: Option<&Record>,
    facts: &Facts,
) -> Result<(), Failure> {
    let Some(before) = before.map(|record| &record.facts) else {
        return Ok(());
    };
    check_parts(config, before, facts.examples)
        .map_err(|problem| session::wrong(config.problems(vec![problem])))?;
    let shown = folder.path().display();
    let mut pairs = before.texts.iter().zip(&facts.texts);
    let words = pairs.find(|(before, now)| before.vectorizer != now.vectorizer);
    let message = match (words, before.other_numbers(facts)) {
        (Some((_, now)), _) if now.vectorizer.vocabulary().is_none() => format!(
            "the tokenizer of {} is another than the one of the checkpoint in {shown}",
            now.shown()
        ),
        (Some((_, now)), _) => format!(
            "the words of {} in the training rows are others than those of the checkpoint in {shown}, or in another order",
            now.shown()
        ),
        (None, Some(how)) => format!("{how} of the checkpoint in {shown}"),
        (None, None) => return Ok(()),
    };
    Err(Failure::new(Exit::Usage, message)
        .next("bring the data, and what `data` says of them, back to what they were, or train without --resume"))
}

/// How to train, and what to do on the way.
fn plan(
    context: &Context,
    session: &Session,
    rows: &Rows,
    args: &TrainArgs,
    folder: &RunFolder,
) -> Result<Fit, Failure> {
    let mut fit = Fit::epochs(session.config.fit.epochs)
        .progress(context.progress)
        .validation_freq(session.config.fit.validation_freq.value)
        .keep_checkpoints(session.config.fit.keep_checkpoints)
        .data_settings(data_settings(&session.config))
        .data_meaning(rows.facts.meaning())
        .callback(HeldOutCheck::new(&session.config, &rows.facts));
    let logs = folder.clone();
    fit = fit.after_epoch(move |epoch| {
        // The whole of it is written at the end; training does not depend on a line of it.
        if let Err(error) = logs.append_history(epoch) {
            let (number, shown) = (epoch.epoch + 1, logs.path().display());
            output::notice(format_args!(
                "warning: no line for epoch {number} in the history.jsonl of {shown}: {error}"
            ));
        }
        Ok(())
    });
    // Workers of parameter servers call the hooks of many batches one after the other.
    let strategy = session.config.strategy.as_ref();
    if strategy.is_none_or(|strategy| strategy.name != "parameter_server") {
        let (batch_size, is_alone) = (session.config.fit.batch_size, context.worker.is_none());
        fit = fit.callback(SpeedLog::new(folder.clone(), batch_size, is_alone));
    }
    if let Some(log) = &session.config.fit.keep_best {
        fit = fit.keep_best(&log.value);
    }
    if let Some(validation) = &rows.validation {
        fit = fit.validation(&session.batches(validation)?);
    }
    if let Some(steps) = &session.config.fit.validation_steps {
        fit = fit.validation_steps(steps.value);
    }
    if writes_checkpoints(session, args) {
        fit = fit
            .checkpoint(folder.checkpoint())
            .save_behind(SaveBehind::Wait);
    }
    if let Some(SaveFreq::Batches(batches)) = session.config.fit.save_freq {
        fit = fit.save_freq(batches);
    }
    if let Some(events) = &session.config.fit.tensorboard {
        fit = fit.tensorboard(events.clone().settings(hparams(&session.config)));
    }
    let config = &session.config;
    for callback in &config.callbacks {
        let made = callback.make(callbacks::from_config);
        fit = fit.callback(made.map_err(|problem| session::wrong(config.problems(vec![problem])))?);
    }
    Ok(fit)
}

/// What decides the examples of an epoch.
fn data_settings(config: &TrainConfig) -> String {
    let steps = config.fit.steps_per_epoch;
    let steps = steps.map_or_else(String::new, |steps| format!(" {steps} steps"));
    format!("{}{steps}", config.data_text)
}

/// The settings by which trainings are compared in TensorBoard.
fn hparams(config: &TrainConfig) -> Vec<(String, HParam)> {
    let text = |text: &str| HParam::Text(text.to_owned());
    let number = |number: u64| HParam::Number(number as f64);
    let losses: Vec<&str> = config
        .losses
        .iter()
        .map(|loss| &*loss.component.name)
        .collect();
    let mut settings = vec![
        ("epochs".to_owned(), number(config.fit.epochs as u64)),
        (
            "batch_size".to_owned(),
            number(config.fit.batch_size as u64),
        ),
        ("seed".to_owned(), number(config.fit.seed)),
        ("loss".to_owned(), text(&losses.join(", "))),
        ("optimizer".to_owned(), text(&config.optimizer.name)),
    ];
    let own = config.optimizer.settings.as_object().into_iter().flatten();
    settings.extend(own.map(|(name, value)| {
        let value = match value {
            Value::Bool(flag) => HParam::Flag(*flag),
            value => value
                .as_f64()
                .map_or_else(|| text(&value.to_string()), HParam::Number),
        };
        (format!("optimizer.{name}"), value)
    }));
    settings
}

const fn writes_checkpoints(session: &Session, args: &TrainArgs) -> bool {
    args.resume || session.config.fit.save_freq.is_some()
}

/// Trains; a signal or a notice of the cloud ends it with a checkpoint, whether or not the training writes others.
fn fit(
    context: &Context,
    session: &mut Session,
    batches: &Batches,
    plan: Fit,
    args: &TrainArgs,
    folder: &RunFolder,
) -> Result<History, Failure> {
    let (signals, _watcher) = session::watch_for_end(context, &session.config)?;
    let trained = session.trainer.fit(batches, plan.stop_when(&signals.stop));
    trained.map_err(|error| match error {
        Error::Stopped(_) => stopped(session, &signals, args, folder),
        other => failed(&other),
    })
}

fn stopped(session: &Session, signals: &Signals, args: &TrainArgs, folder: &RunFolder) -> Failure {
    let path = folder.checkpoint();
    if !writes_checkpoints(session, args)
        && let Err(error) = session.trainer.save_checkpoint(&path)
    {
        return failed(&error);
    }
    let step = session.trainer.iterations();
    let message = format!(
        "stopped after step {step}; all of it is in {}",
        path.display()
    );
    Failure::new(signals.exit(), message).next("go on with the same command and --resume")
}

fn test(session: &mut Session, rows: &Rows) -> Result<Option<Logs>, Failure> {
    let Some(test) = &rows.test else {
        return Ok(None);
    };
    let batches = session.batches(test)?;
    let logs = session
        .trainer
        .evaluate(&batches)
        .map_err(|error| failed(&error))?;
    if logs.get("loss").is_some_and(|loss| !loss.is_finite()) {
        let diverged = "the loss on the test rows is infinite or not a number: the training went too far; try a lower learning rate or gradient clipping (`clipnorm`), and look at the values of the test rows";
        return Err(failed(&Error::Training(diverged.into())));
    }
    Ok(Some(logs))
}

fn report(context: &mut Context, folder: &RunFolder, tested: Option<&Logs>) -> Result<(), Failure> {
    if let Some(logs) = tested {
        context.result("test", logs)?;
    }
    let (model, logs) = (folder.model(), folder.path());
    if context.global.progress == args::Progress::Json {
        let saved = json!({"event": "saved", "model": model, "logs": logs});
        return context.output.line(saved);
    }
    context
        .output
        .line(format_args!("model: {}", model.display()))?;
    context
        .output
        .line(format_args!("logs:  {}", logs.display()))
}
