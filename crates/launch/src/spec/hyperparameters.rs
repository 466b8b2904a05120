//! `trainingInput.hyperparameters`: what is searched, and how.

use serde::{Deserialize, Serialize};

use phalanx_yaml::{Node, Position, Value};

use super::fields::{Fields, Notes, number_of, text_of};

/// A search for the best hyperparameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hyperparameters {
    /// Whether large or small values of the metric are good.
    pub goal: Goal,
    /// The tag of the metric.
    pub metric: String,
    /// Trials in all, at least 1.
    pub max_trials: usize,
    /// Trials at the same time, at least 1.
    pub max_parallel: usize,
    /// After this number of failed trials the search fails; 0 leaves that to the search, which gives up when its first three trials fail.
    pub max_failed: usize,
    /// Whether trials that are worse than the median of the others end early.
    pub early_stopping: bool,
    /// How values are chosen.
    pub algorithm: Algorithm,
    /// A search before whose trials count.
    pub resume: Option<String>,
    /// What is searched; never empty.
    pub params: Vec<Parameter>,
}

/// Which values of a metric are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Goal {
    /// Large ones.
    Maximize,
    /// Small ones.
    Minimize,
}

/// How the values of the next trial are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// By what the trials so far gave.
    Bayesian,
    /// All combinations in turn.
    Grid,
    /// At random.
    Random,
}

/// One hyperparameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// Its name, given to the program as `--name=value`.
    pub name: String,
    /// Its values.
    pub kind: ParameterKind,
}

/// The values of a hyperparameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ParameterKind {
    /// Real numbers from `min` to `max`.
    Double {
        /// The least.
        min: f64,
        /// The largest.
        max: f64,
        /// How they lie between the two.
        scale: Scale,
    },
    /// Whole numbers from `min` to `max`.
    Integer {
        /// The least.
        min: i64,
        /// The largest.
        max: i64,
        /// How they lie between the two.
        scale: Scale,
    },
    /// One of some texts.
    Categorical(Vec<String>),
    /// One of some numbers, in rising order.
    Discrete(Vec<f64>),
}

/// How values are spread over the unit interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// Evenly by their logarithm: small values are looked at more closely.
    Log,
    /// As `Log` from the other end: large values are looked at more closely.
    ReverseLog,
}

const FIELDS: [&str; 9] = [
    "goal",
    "params",
    "maxTrials",
    "maxParallelTrials",
    "maxFailedTrials",
    "hyperparameterMetricTag",
    "resumePreviousJobId",
    "enableTrialEarlyStopping",
    "algorithm",
];
const PARAMETER: [&str; 7] = [
    "parameterName",
    "type",
    "minValue",
    "maxValue",
    "categoricalValues",
    "discreteValues",
    "scaleType",
];
const PATH: &str = "trainingInput.hyperparameters";
/// The most values of one parameter.
const MOST_VALUES: usize = 1000;
/// The most values of an INTEGER that are listed, as for a grid.
pub(crate) const MOST_INTEGERS: i64 = 1_000_000;
/// The most trials of a search.
const MOST_TRIALS: i64 = 100_000;

pub(super) fn read(node: &Node, notes: &mut Notes) -> Option<Hyperparameters> {
    let fields = Fields::of(node, PATH, &FIELDS, notes);
    let goals = ["MAXIMIZE", "MINIMIZE", "GOAL_TYPE_UNSPECIFIED"];
    let goal = match fields.word("goal", &goals, notes) {
        Some("MINIMIZE") => Goal::Minimize,
        _ => Goal::Maximize,
    };
    let algorithms = ["ALGORITHM_UNSPECIFIED", "GRID_SEARCH", "RANDOM_SEARCH"];
    let algorithm = match fields.word("algorithm", &algorithms, notes) {
        Some("GRID_SEARCH") => Algorithm::Grid,
        Some("RANDOM_SEARCH") => Algorithm::Random,
        _ => Algorithm::Bayesian,
    };
    let count = |name, least, notes: &mut Notes| {
        let number = fields.whole(name, least, MOST_TRIALS, notes);
        number.map_or(least as usize, |number| number as usize)
    };
    let max_trials = count("maxTrials", 1, notes);
    let max_parallel = count("maxParallelTrials", 1, notes);
    let max_failed = count("maxFailedTrials", 0, notes);
    let metric = fields.text("hyperparameterMetricTag", notes);
    let early_stopping = fields.flag("enableTrialEarlyStopping", notes);
    let resume = fields.text("resumePreviousJobId", notes);
    let params = params(&fields, notes)?;
    grid(algorithm, &params, fields.at(), notes);
    Some(Hyperparameters {
        goal,
        metric: metric.unwrap_or_else(|| "training/hptuning/metric".to_owned()),
        max_trials,
        max_parallel,
        max_failed,
        early_stopping: early_stopping.unwrap_or(false),
        algorithm,
        resume,
        params,
    })
}

/// A grid of real numbers has no end: AI Platform refuses it, too.
fn grid(algorithm: Algorithm, params: &[Parameter], at: Position, notes: &mut Notes) {
    if algorithm != Algorithm::Grid {
        return;
    }
    for Parameter { name, kind } in params {
        let what = match kind {
            ParameterKind::Double { .. } => "which is DOUBLE".to_owned(),
            ParameterKind::Integer { min, max, .. } if max - min >= MOST_INTEGERS => {
                let count = max - min + 1;
                format!("which is INTEGER with {count} values, expected {MOST_INTEGERS} at most")
            }
            _ => continue,
        };
        notes.wrong(
            at,
            format!("GRID_SEARCH cannot go through {name:?}, {what}"),
            "make it DISCRETE with the values of the grid, or search by RANDOM_SEARCH",
        );
    }
}

fn params(fields: &Fields<'_>, notes: &mut Notes) -> Option<Vec<Parameter>> {
    let Some(node) = fields.get("params") else {
        notes.wrong(
            fields.at(),
            format!("{PATH} has no params"),
            "list what is searched",
        );
        return None;
    };
    let Value::List(items) = &node.value else {
        let message = format!("{PATH}.params is {}, expected a list", node.describe());
        notes.wrong(
            node.at,
            message,
            "begin each parameter with `- parameterName:`",
        );
        return None;
    };
    if items.is_empty() || items.len() > MOST_VALUES {
        let message = format!(
            "{PATH}.params has {} entries, expected 1 to {MOST_VALUES}",
            items.len()
        );
        notes.wrong(node.at, message, "list what is searched");
    }
    let before = notes.problems.len();
    let params: Vec<Parameter> = items.iter().filter_map(|item| param(item, notes)).collect();
    for (index, param) in params.iter().enumerate() {
        if params[..index].iter().any(|other| other.name == param.name) {
            let message = format!("the parameter {:?} is listed twice", param.name);
            notes.wrong(items[index].at, message, "remove one of the two");
        }
    }
    (notes.problems.len() == before).then_some(params)
}

fn param(node: &Node, notes: &mut Notes) -> Option<Parameter> {
    let fields = Fields::of(node, "a parameter", &PARAMETER, notes);
    let name = fields.text("parameterName", notes);
    let usable = |name: &String| {
        let mut characters = name.chars();
        let first = characters
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        first
            && characters.all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
            && name.len() <= 128
    };
    let name = match name {
        Some(name) if usable(&name) => name,
        Some(name) => {
            let message = format!(
                "parameterName is {:?}",
                name.chars().take(40).collect::<String>()
            );
            notes.wrong(
                fields.place("parameterName"),
                message,
                "use letters, digits, `_`, `-` and `.`",
            );
            return None;
        }
        None => {
            notes.wrong(node.at, "a parameter has no parameterName", "name it");
            return None;
        }
    };
    let kinds = ["DOUBLE", "INTEGER", "CATEGORICAL", "DISCRETE"];
    let Some(kind) = fields.word("type", &kinds, notes) else {
        if fields.get("type").is_none() {
            notes.wrong(
                node.at,
                format!("{name:?} has no type"),
                format!("add one of {}", kinds.join(", ")),
            );
        }
        return None;
    };
    let kind = match kind {
        "DOUBLE" => double(&fields, &name, notes),
        "INTEGER" => integer(&fields, &name, notes),
        "CATEGORICAL" => categorical(&fields, &name, notes),
        _ => discrete(&fields, &name, notes),
    }?;
    Some(Parameter { name, kind })
}

fn scale(fields: &Fields<'_>, min: f64, max: f64, notes: &mut Notes) -> Option<Scale> {
    let scales = [
        "NONE",
        "UNIT_LINEAR_SCALE",
        "UNIT_LOG_SCALE",
        "UNIT_REVERSE_LOG_SCALE",
    ];
    let scale = match fields.word("scaleType", &scales, notes) {
        Some("UNIT_LOG_SCALE") => Scale::Log,
        Some("UNIT_REVERSE_LOG_SCALE") => Scale::ReverseLog,
        _ => Scale::Linear,
    };
    if scale != Scale::Linear && min <= 0.0 {
        let message = format!("a logarithmic scale needs minValue above 0, it is {min}");
        notes.wrong(
            fields.place("scaleType"),
            message,
            "raise minValue, or use UNIT_LINEAR_SCALE",
        );
        return None;
    }
    debug_assert!(min <= max);
    Some(scale)
}

fn bounds(fields: &Fields<'_>, name: &str, notes: &mut Notes) -> Option<(f64, f64)> {
    let (min, max) = (
        fields.number("minValue", notes),
        fields.number("maxValue", notes),
    );
    match (min, max) {
        (Some(min), Some(max)) if min <= max && (max - min).is_finite() => Some((min, max)),
        (Some(min), Some(max)) => {
            let message = format!("{name:?} goes from {min} to {max}");
            notes.wrong(
                fields.place("maxValue"),
                message,
                "make maxValue at least minValue",
            );
            None
        }
        _ => {
            if fields.get("minValue").is_none() || fields.get("maxValue").is_none() {
                let message = format!("{name:?} needs minValue and maxValue");
                notes.wrong(fields.at(), message, "add them");
            }
            None
        }
    }
}

fn double(fields: &Fields<'_>, name: &str, notes: &mut Notes) -> Option<ParameterKind> {
    let (min, max) = bounds(fields, name, notes)?;
    let scale = scale(fields, min, max, notes)?;
    Some(ParameterKind::Double { min, max, scale })
}

fn integer(fields: &Fields<'_>, name: &str, notes: &mut Notes) -> Option<ParameterKind> {
    let (min, max) = bounds(fields, name, notes)?;
    let whole = |value: f64| value.fract() == 0.0 && value.abs() <= (1u64 << 53) as f64;
    if !whole(min) || !whole(max) {
        let message = format!("{name:?} is INTEGER and goes from {min} to {max}");
        notes.wrong(fields.place("minValue"), message, "use whole numbers");
        return None;
    }
    let scale = scale(fields, min, max, notes)?;
    let (min, max) = (min as i64, max as i64);
    Some(ParameterKind::Integer { min, max, scale })
}

fn categorical(fields: &Fields<'_>, name: &str, notes: &mut Notes) -> Option<ParameterKind> {
    let values = list(fields, "categoricalValues", name, notes, text_of)?;
    Some(ParameterKind::Categorical(values))
}

fn discrete(fields: &Fields<'_>, name: &str, notes: &mut Notes) -> Option<ParameterKind> {
    let values = list(fields, "discreteValues", name, notes, number_of)?;
    if values.windows(2).any(|pair| pair[0] >= pair[1]) {
        let message = format!("the discreteValues of {name:?} do not rise");
        notes.wrong(
            fields.place("discreteValues"),
            message,
            "list each once, the least first",
        );
        return None;
    }
    Some(ParameterKind::Discrete(values))
}

fn list<T>(
    fields: &Fields<'_>,
    field: &str,
    name: &str,
    notes: &mut Notes,
    of: fn(&Node) -> Option<T>,
) -> Option<Vec<T>> {
    let items = fields.get(field).map(|node| &node.value);
    let values: Option<Vec<T>> = match items {
        Some(Value::List(items)) if (1..=MOST_VALUES).contains(&items.len()) => {
            items.iter().map(of).collect()
        }
        _ => None,
    };
    if values.is_none() {
        let message = format!("{name:?} needs {field}, a list of 1 to {MOST_VALUES} values");
        notes.wrong(fields.place(field), message, "list the values");
    }
    values
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::spec::{Source, Spec};

    #[test]
    fn a_grid_has_an_end() {
        let read = |kind: &str, max: i64| {
            let param = json!({"parameterName": "x", "type": kind, "minValue": 1, "maxValue": max});
            let search = json!({"goal": "MINIMIZE", "algorithm": "GRID_SEARCH", "params": [param]});
            let input = json!({"args": ["true"], "hyperparameters": search});
            Spec::read(&Source::of_json(&json!({"trainingInput": input})))
        };
        assert!(read("INTEGER", 1_000_000).is_ok());
        for (kind, max, what) in [
            ("INTEGER", 1_000_001, "which is INTEGER with 1000001 values"),
            ("INTEGER", 1 << 53, "which is INTEGER with"),
            ("DOUBLE", 2, "which is DOUBLE"),
        ] {
            let why = read(kind, max).unwrap_err();
            assert!(
                why.contains("cannot go through \"x\", ") && why.contains(what),
                "{why}"
            );
        }
    }
}
