//! What Keras compiled a model with, as settings of a training here.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Compile, LossScale, Losses, OutputMetric};
use crate::Result;
use crate::config::{Description, Setting};
use crate::import;
use crate::losses::Loss;
use crate::metrics::Metric;
use crate::optim::{Optimizer, Rule};
use crate::schedules::Schedule;

type OrReason<T> = std::result::Result<T, String>;

/// Short names of Keras, and names of classes that differ from ours by more than case and underscores.
const ALIASES: [(&str, &str); 12] = [
    ("acc", "accuracy"),
    ("mse", "mean_squared_error"),
    ("mae", "mean_absolute_error"),
    ("mape", "mean_absolute_percentage_error"),
    ("msle", "mean_squared_logarithmic_error"),
    ("bce", "binary_crossentropy"),
    ("kld", "kl_divergence"),
    ("kullbackleiblerdivergence", "kl_divergence"),
    ("logcosherror", "log_cosh"),
    ("iou", "mean_io_u"),
    ("onehotiou", "mean_io_u"),
    ("onehotmeaniou", "mean_io_u"),
];

/// Settings that change nothing of what is computed here.
const IGNORED: [&str; 7] = [
    "name",
    "dtype",
    "fn",
    "jit_compile",
    "is_legacy_optimizer",
    // Of metrics of regions, which see by their dims what targets are.
    "sparse_y_true",
    // Of Adafactor, which is the same with it and without.
    "relative_step",
];
/// What makes a text a regular expression of another meaning.
const EXPRESSION: [char; 14] = [
    '.', '^', '$', '*', '+', '?', '(', ')', '[', ']', '{', '}', '|', '\\',
];
/// How Keras 2 begins names of its own optimizers.
const OF_KERAS2: &str = "Custom>";
/// Its class of metrics that are the mean of a function.
const WRAPPER: &str = "MeanMetricWrapper";
/// Optimizers around another, whose loss they scale.
const SCALING: [&str; 2] = ["LossScaleOptimizer", "LossScaleOptimizerV3"];

impl Compile {
    /// What Keras compiled the model of a file with, `.keras`, `.h5` or the text of `model.to_json()`: the optimizer with its schedule, losses with their weights, metrics, and
    /// `steps_per_execution`, to train it on as Keras would.
    ///
    /// The optimizer begins anew: its moments and the number of its steps are not read; a `LossScaleOptimizer` around it, and its
    /// `loss_scale_factor`, are [`Compile::loss_scale`]. Metrics have the names that they have in Keras' logs. A
    /// loss here divides by the weights of the examples, where Keras divides by their number. `steps_per_execution` is for one device and
    /// replicas in one process: elsewhere set it to 1, or `compile` refuses it.
    ///
    /// ```no_run
    /// use phalanx::prelude::*;
    ///
    /// # fn main() -> phalanx::Result<()> {
    /// let (model, compile) = (SavedModel::load_keras("digits.keras")?, Compile::of_keras("digits.keras")?);
    /// let mut trainer = OneDeviceStrategy::new()?.compile(model, compile)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the model was not compiled, or with a function of a Python program or something else that there is not here; and as
    /// [`SavedModel::architecture`](crate::saved::SavedModel::architecture).
    pub fn of_keras(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let read = match import::keras_compilation(path)? {
            Some((model, compiled)) => Compilation(&compiled, &model.output_names()).read(),
            None => Err("the model was not compiled in Keras".into()),
        };
        read.map_err(|message| {
            let message =
                format!("{message}; name the optimizer, the loss and the metrics yourself");
            import::problem(&path.display().to_string(), "compile_config", message)
        })
    }
}

/// What Keras noted, and the names of the model's outputs.
struct Compilation<'a>(&'a Value, &'a [String]);

impl Compilation<'_> {
    fn read(&self) -> OrReason<Compile> {
        let settings = self.0;
        let steps = settings["steps_per_execution"].as_u64().unwrap_or(1);
        let (noted, loss_scale) = scaled(match &settings["optimizer"] {
            // HDF5 files.
            Value::Null => &settings["optimizer_config"],
            optimizer => optimizer,
        })?;
        Ok(Compile {
            optimizer: optimizer(&noted)?,
            loss_scale,
            loss: self.losses(&settings["loss"], &settings["loss_weights"])?,
            metrics: self.metrics(&settings["metrics"])?,
            weighted_metrics: self.metrics(&settings["weighted_metrics"])?,
            steps_per_execution: usize::try_from(steps).map_err(|error| error.to_string())?,
            ..Compile::default()
        })
    }

    /// One loss is of every output.
    fn losses(&self, losses: &Value, weights: &Value) -> OrReason<Losses> {
        let of_each = match losses {
            Value::Null => return Err("it has no loss".into()),
            one if is_one(one) => (0..self.1.len()).map(|output| (output, one)).collect(),
            _ => self.by_output(losses)?,
        };
        let weights = match numbers(weights) {
            weights @ (Value::Null | Value::Number(_)) => vec![weights; self.1.len()],
            weights => {
                let mut all = vec![&Value::Null; self.1.len()];
                for (output, weight) in self.by_output(weights)? {
                    all[output] = weight;
                }
                all
            }
        };
        let mut all = Losses::default();
        for (output, value) in of_each.into_iter().filter(|(_, loss)| !loss.is_null()) {
            let weight = match numbers(weights[output]) {
                Value::Null => 1.0,
                weight => weight.as_f64().ok_or_else(|| {
                    format!("a weight of its losses is {weight}, expected a number")
                })?,
            };
            all = all.and(output, loss(value)?, weight);
        }
        Ok(all)
    }

    /// Of one output its metrics, of several a list of each.
    fn metrics(&self, metrics: &Value) -> OrReason<Vec<OutputMetric>> {
        let of_each = match (metrics, self.1) {
            (Value::Null, _) => Vec::new(),
            (Value::Array(_), [_]) => vec![(0, metrics)],
            (one, [_]) if is_one(one) => vec![(0, one)],
            _ => self.by_output(metrics)?,
        };
        let mut found = Vec::new();
        for (output, metrics) in of_each {
            for value in flat(metrics) {
                found.push(OutputMetric::of(output, metric(value)?));
            }
        }
        Ok(found)
    }

    /// The parts of a list with one for each output, or of an object with their names.
    fn by_output<'v>(&self, value: &'v Value) -> OrReason<Vec<(usize, &'v Value)>> {
        let outputs = self.1;
        match value {
            Value::Array(each) if each.len() == outputs.len() => {
                Ok(each.iter().enumerate().collect())
            }
            Value::Object(named) if !is_one(value) => {
                let named = named.iter().map(|(name, value)| {
                    let output = outputs.iter().position(|output| output == name);
                    let output = output.ok_or_else(|| {
                        let outputs = outputs.join(", ");
                        format!("it names the output `{name}`, and the model has {outputs}")
                    })?;
                    Ok((output, value))
                });
                named.collect()
            }
            other => Err(format!(
                "expected a part for each of {} outputs, got {other}",
                outputs.len()
            )),
        }
    }
}

/// Whether this is a loss or a metric, and no collection of them.
fn is_one(value: &Value) -> bool {
    value.is_string() || value.get("class_name").is_some()
}

/// Whether Keras has it, and not a program of its own; HDF5 files do not say.
fn is_of_keras(value: &Value) -> bool {
    value["module"].as_str().is_none_or(|module| {
        let package = module.split('.').next();
        package.is_some_and(|package| ["keras", "tf_keras", "builtins"].contains(&package))
    })
}

/// What is in lists in lists.
fn flat(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(values) => values.iter().flat_map(flat).collect(),
        Value::Null => Vec::new(),
        one => vec![one],
    }
}

/// The optimizer in one that scales the loss, and the scale; of any other itself, with its `loss_scale_factor`.
fn scaled(noted: &Value) -> OrReason<(Value, LossScale)> {
    let name = noted["class_name"].as_str().unwrap_or_default();
    let name = name.strip_prefix(OF_KERAS2).unwrap_or(name);
    if !(is_of_keras(noted) && SCALING.contains(&name)) {
        let (optimizer, factor) = without_factor(noted);
        return Ok((optimizer, factor.map_or(LossScale::Auto, LossScale::Fixed)));
    }
    let settings = &noted["config"];
    let (optimizer, _) = without_factor(&settings["inner_optimizer"]);
    let initial = settings["initial_scale"].as_f64();
    let initial = initial.ok_or("its LossScaleOptimizer has no number as `initial_scale`")?;
    let growth = settings["dynamic_growth_steps"].as_u64();
    let scale = match (settings["dynamic"] == false, growth.map(u32::try_from)) {
        (true, _) => LossScale::Fixed(initial),
        (false, Some(Ok(growth_steps))) => LossScale::Dynamic {
            initial,
            growth_steps,
        },
        _ => {
            return Err(
                "its LossScaleOptimizer has no whole number as `dynamic_growth_steps`".into(),
            );
        }
    };
    Ok((optimizer, scale))
}

/// An optimizer without the factor that it multiplies the loss by, and the factor.
fn without_factor(noted: &Value) -> (Value, Option<f64>) {
    let mut optimizer = noted.clone();
    let settings = optimizer.get_mut("config").and_then(Value::as_object_mut);
    let factor = settings.and_then(|settings| settings.remove("loss_scale_factor"));
    (optimizer, factor.and_then(|factor| factor.as_f64()))
}

fn optimizer(value: &Value) -> OrReason<Optimizer> {
    if value.is_null() {
        return Err("it has no optimizer".into());
    }
    let mut found = Noted::read("optimizer", value, &Rule::descriptions())?;
    if found.fields.get("use_ema") != Some(&Value::Bool(true)) {
        // RMSprop of Keras 2 has both by default.
        let noted_all_the_same = ["ema_momentum", "ema_overwrite_frequency"];
        (found.fields).retain(|field, _| !noted_all_the_same.contains(&field.as_str()));
    }
    if found.kind == "nadam" && value["config"].get("decay").is_some() {
        return Err("its `Nadam` is of before Keras 2.11, whose `decay` is of its momentum, which has no like here".into());
    }
    if found.fields.contains_key("lr") {
        set_early(found.kind, &mut found.fields)?;
    }
    set_rate(&mut found.fields)?;
    let excluded = found.fields.get("exclude_layers");
    let mut texts = excluded.and_then(Value::as_array).into_iter().flatten();
    if texts.any(|text| text.as_str().is_some_and(|text| text.contains(EXPRESSION))) {
        return Err("its `exclude_layers` has regular expressions, and here they are texts".into());
    }
    let made = Optimizer::from_config(found.kind, &found.fields.into());
    made.map_err(|error| error.to_string())
}

/// What files before Keras 2.3, which call the rate `lr`, do not say.
fn set_early(kind: &str, fields: &mut Map<String, Value>) -> OrReason<()> {
    if fields.get("clipnorm").is_some_and(Value::is_number) {
        return Err("its `clipnorm` is of before Keras 2.3, where it was the norm of all gradients in one package and of each in another".into());
    }
    if kind == "adagrad" {
        let start = fields.entry("initial_accumulator_value");
        start.or_insert_with(|| json!(0.0));
    }
    Ok(())
}

/// Puts the learning rate into the form that it has here.
fn set_rate(fields: &mut Map<String, Value>) -> OrReason<()> {
    if let Some(rate) = fields.remove("lr") {
        fields.insert("learning_rate".into(), rate);
    }
    if let Some(rate) = fields.get_mut("learning_rate") {
        *rate = match rate.as_f64() {
            Some(number) => shortest(number),
            None => {
                let schedule = Noted::read("schedule", rate, &Schedule::descriptions())?;
                json!({schedule.kind: schedule.fields})
            }
        };
    }
    if let Some(decay) = fields.remove("decay") {
        let rate = fields.get("learning_rate");
        let rate = rate.filter(|rate| rate.is_number());
        let rate =
            rate.ok_or("its `decay` is beside a schedule of the rate, which has no like here")?;
        // Of optimizers before Keras 2.11: the rate of step `t`, from 0, is divided by `1 + decay t`.
        let slower = json!({"inverse_time_decay": {"initial_learning_rate": rate, "decay_steps": 1, "decay_rate": shortest(decay.as_f64().unwrap_or_default())}});
        fields.insert("learning_rate".into(), slower);
    }
    Ok(())
}

/// A number that Keras has as an f32, and a file with the digits of an f64.
fn shortest(number: f64) -> Value {
    let digits = (number as f32).to_string();
    json!(digits.parse::<f64>().unwrap_or(number))
}

fn loss(value: &Value) -> OrReason<Loss> {
    let found = Noted::read("loss", value, &Loss::descriptions())?;
    let made = Loss::from_config(found.kind, &found.fields.into());
    made.map_err(|error| error.to_string())
}

/// A metric under its name in Keras' logs.
fn metric(value: &Value) -> OrReason<Metric> {
    // `accuracy` chooses by the loss, and the class compares what is equal.
    if value["class_name"] == "Accuracy" && is_of_keras(value) {
        let name = value["config"]["name"].as_str().unwrap_or("accuracy");
        return metric(&json!("equality")).map(|equality| equality.named(name));
    }
    // Keras 2 notes which accuracy `accuracy` is, and before it has seen a target it does not know.
    let name = &value["config"]["name"];
    let is_short = ["accuracy", "acc"].iter().any(|short| name == short);
    let is_accuracy = wrapped(value).is_none_or(|function| function.ends_with("accuracy"));
    if value["class_name"] == WRAPPER && is_short && is_accuracy {
        return metric(name);
    }
    let found = Noted::read("metric", value, &Metric::descriptions())?;
    let is_function = value["class_name"] == "function" || wrapped(value).is_some();
    if is_function && !is_a_function(found.kind) {
        let message = "its metric is a function `{}` of a program, since Keras has a class of this name and no function";
        return Err(message.replace("{}", found.kind));
    }
    if ["sum", "mean"].contains(&found.kind) {
        return Err(format!(
            "Keras' {} of a compiled model takes targets as the values and predictions as their weights, which has no like here",
            found.kind
        ));
    }
    let made = Metric::from_config(found.kind, &found.fields.into());
    let made = made.map_err(|error| error.to_string())?;
    let name = value.as_str().or_else(|| value["config"]["name"].as_str());
    Ok(match name {
        Some(name) if name != found.kind => made.named(name),
        _ => made,
    })
}

/// The function that a metric takes the mean of.
fn wrapped(value: &Value) -> Option<&str> {
    let function = &value["config"]["fn"];
    let name = function.as_str().or(function["config"].as_str());
    name.filter(|_| value["class_name"] == WRAPPER)
}

/// Whether Keras has a function for this kind of metric, and not a class alone: for losses and accuracies.
fn is_a_function(kind: &str) -> bool {
    let of_a_loss = |loss: &Description| loss.name == kind;
    kind.ends_with("accuracy") || Loss::descriptions().iter().any(of_a_loss)
}

/// A component as Keras noted it: its kind here, and its settings.
struct Noted {
    kind: &'static str,
    fields: Map<String, Value>,
}

impl Noted {
    /// Of one of these; `what` it is in messages.
    fn read(what: &str, value: &Value, known: &[Description]) -> OrReason<Self> {
        let class = value["class_name"].as_str();
        let name = match class {
            // A function of Keras.
            Some("function") => value["config"].as_str(),
            Some(WRAPPER) => wrapped(value).or(class),
            _ => class.or(value.as_str()),
        };
        let found = name.filter(|_| is_of_keras(value)).and_then(|name| {
            let name = plain(name.strip_prefix(OF_KERAS2).unwrap_or(name));
            let alias = ALIASES.iter().find(|(theirs, _)| *theirs == name);
            let name = alias.map_or(name, |(_, ours)| plain(ours));
            known.iter().find(|kind| plain(kind.name) == name)
        });
        let found = found.ok_or_else(|| {
            format!(
                "its {what} is `{}`, which there is not here",
                name.unwrap_or("a value without a class")
            )
        })?;
        let mut fields = Map::new();
        for (field, value) in value["config"].as_object().into_iter().flatten() {
            let known = found
                .settings
                .iter()
                .find(|known| known.field.name == field);
            // None, where there is something by default.
            let accepts_none = |known: &Setting| {
                !known.default.is_null() && known.field.kind.accepts(&Value::Null)
            };
            let turns_off = value.is_null() && known.is_some_and(accepts_none);
            let keeps = keeps(field, value, known.is_some());
            if turns_off || keeps.map_err(|message| format!("its {what}: {message}"))? {
                let value = numbers(value);
                let whole = known.and_then(|known| whole(known, value));
                fields.insert(field.clone(), whole.unwrap_or_else(|| value.clone()));
            }
        }
        Ok(Self {
            kind: found.name,
            fields,
        })
    }
}

/// A value whose whole numbers a program of Python had as floats, such as steps of a schedule that it computed; none where they may be floats.
fn whole(known: &Setting, value: &Value) -> Option<Value> {
    let kind = &known.field.kind;
    let whole = without_points(value);
    (!kind.accepts(value) && kind.accepts(&whole)).then_some(whole)
}

fn without_points(value: &Value) -> Value {
    let is_whole = |number: &f64| number.fract() == 0.0 && number.abs() < 2.0_f64.powi(53);
    match (value, value.as_f64().filter(is_whole)) {
        (_, Some(number)) => json!(number as i64),
        (Value::Array(items), None) => items.iter().map(without_points).collect(),
        (other, None) => other.clone(),
    }
}

/// What is in an array that Keras noted as such.
fn numbers(value: &Value) -> &Value {
    match value["class_name"].as_str() {
        Some("__tensor__" | "__numpy__") => &value["config"]["value"],
        _ => value,
    }
}

/// Whether a setting says something; one that there is not here may say that it does nothing.
fn keeps(field: &str, value: &Value, is_known: bool) -> OrReason<bool> {
    if field == "reduction" {
        let means = [
            "sum_over_batch_size",
            "mean",
            "mean_with_sample_weight",
            "auto",
        ];
        return match value.as_str() {
            Some(reduction) if means.contains(&reduction) => Ok(false),
            // Keras' None, whose gradient is the sum's.
            _ => Err(format!(
                "its `reduction` is `{}`, and only the mean has a like here",
                value.as_str().unwrap_or("none")
            )),
        };
    }
    let is_nothing = value.is_null() || IGNORED.contains(&field);
    // A whole 0 may be the number of a class.
    let is_zero = (value.is_f64() || field == "num_regressors") && value.as_f64() == Some(0.0);
    let is_off = value == false || is_zero || field == "axis" && value == -1;
    Ok(!is_nothing && (is_known || !is_off))
}

/// A name without case and underscores.
fn plain(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}
