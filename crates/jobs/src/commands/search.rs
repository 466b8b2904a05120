//! `phalanx tune`: what is searched, in short, and how the search goes.

use std::collections::BTreeSet;
use std::time::Duration;

use phalanx_launch::spec::{Flag, Source};
use phalanx_yaml::{Key, Node, Position, Value};
use serde_json::Value as Json;

use super::{Context, Done, show, spec};
use crate::args::{Format, TuneArgs};
use crate::client::Client;
use crate::failure::Failure;

const SEARCH: [&str; 2] = ["trainingInput", "hyperparameters"];

/// The job file of a search: the training file is its program, the options its hyperparameters.
pub(super) fn source(args: &TuneArgs) -> Result<Source, Failure> {
    let mut source = spec::source(&args.spec, None)?;
    let mut set = |name: &str, path: &[&'static str], value: Value| {
        let (name, path) = (name.to_owned(), path.to_vec());
        source.set(Flag { name, path, value });
    };
    if let Some(file) = &args.file {
        let file = Value::Text(file.display().to_string());
        set("TRAIN.YAML", &["phalanx", "program"], file);
    }
    let mut search = |name: &str, field: &'static str, value: Value| {
        set(name, &[SEARCH[0], SEARCH[1], field], value);
    };
    if !args.search.is_empty() {
        let params: Result<Vec<Node>, Failure> =
            args.search.iter().map(|text| parameter(text)).collect();
        search("--search", "params", Value::List(params?));
    }
    if let Some(tag) = &args.metric {
        search(
            "--metric",
            "hyperparameterMetricTag",
            Value::Text(tag.clone()),
        );
    }
    if args.minimize {
        search("--minimize", "goal", Value::Text("MINIMIZE".into()));
    }
    if let Some(trials) = args.trials {
        search("--trials", "maxTrials", Value::Int(trials.into()));
    }
    if let Some(parallel) = args.parallel {
        search(
            "--parallel",
            "maxParallelTrials",
            Value::Int(parallel.into()),
        );
    }
    Ok(source)
}

fn node(value: Value) -> Node {
    let at = Position::START;
    Node { value, at }
}

fn text(text: &str) -> Node {
    node(Value::Text(text.to_owned()))
}

/// `NAME=a,b,c` is a list of values, `NAME=1..8` whole numbers, `NAME=0.1..0.5` real ones; `:log` behind a range looks at small ones closely.
fn parameter(given: &str) -> Result<Node, Failure> {
    let wrong = || {
        Failure::usage(format!(
            "--search has {given:?}; write NAME=8,16,32 or NAME=LEAST..MOST, and :log behind a range for a logarithmic scale"
        ))
    };
    let (name, values) = given.split_once('=').ok_or_else(wrong)?;
    let mut fields = vec![("parameterName", text(name))];
    if let Some((least, rest)) = values.split_once("..") {
        let (most, scale) = match rest.strip_suffix(":log") {
            Some(most) => (most, "UNIT_LOG_SCALE"),
            None => (rest, "UNIT_LINEAR_SCALE"),
        };
        let (low, high): (f64, f64) = (
            least.parse().map_err(|_| wrong())?,
            most.parse().map_err(|_| wrong())?,
        );
        let whole = [least, most]
            .iter()
            .all(|number| number.parse::<i64>().is_ok());
        fields.push(("type", text(if whole { "INTEGER" } else { "DOUBLE" })));
        fields.push(("minValue", node(Value::Float(low))));
        fields.push(("maxValue", node(Value::Float(high))));
        fields.push(("scaleType", text(scale)));
    } else {
        let values: Vec<&str> = values.split(',').collect();
        let is_mistake = |value: &&str| value.is_empty() || value.ends_with(":log");
        if values.iter().any(is_mistake) {
            return Err(wrong());
        }
        let numbers: Option<Vec<f64>> = values.iter().map(|value| value.parse().ok()).collect();
        if let Some(mut numbers) = numbers {
            numbers.sort_by(f64::total_cmp);
            let numbers = numbers.into_iter().map(|number| node(Value::Float(number)));
            fields.push(("type", text("DISCRETE")));
            fields.push(("discreteValues", node(Value::List(numbers.collect()))));
        } else {
            let values = values.into_iter().map(text).collect();
            fields.push(("type", text("CATEGORICAL")));
            fields.push(("categoricalValues", node(Value::List(values))));
        }
    }
    let entry = |(name, node): (&str, Node)| {
        let (name, at) = (name.to_owned(), Position::START);
        (Key { name, at }, node)
    };
    Ok(node(Value::Map(fields.into_iter().map(entry).collect())))
}

/// Prints each trial as it ends, then all of them, the best first. Ctrl-C leaves the search going on.
pub(super) fn follow(context: &Context, client: &Client, name: &str) -> Done {
    if context.format == Format::Text {
        eprintln!(
            "search {name}; `phalanx jobs describe {name} --summarize` shows it, `phalanx jobs cancel {name}` ends it"
        );
    }
    let mut seen = BTreeSet::new();
    loop {
        let job = client.job(name)?;
        for trial in job["trainingOutput"]["trials"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let id = trial["trialId"].as_str().unwrap_or_default().to_owned();
            let ended = trial["endTime"].is_string();
            if ended && context.format == Format::Text && seen.insert(id.clone()) {
                eprintln!("trial {id}: {}", line(trial));
            }
        }
        if job["endTime"].is_string() {
            let output = best_first(&job);
            context.print(&output, show::trials)?;
            let state = job["state"].as_str().unwrap_or_default();
            if state != "SUCCEEDED" {
                eprint!("{}", show::summary(&job));
            }
            return Ok(super::code(state));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn line(trial: &Json) -> String {
    let value = trial["finalMetric"]["objectiveValue"].as_f64();
    let value = value.map_or_else(
        || trial["state"].as_str().unwrap_or_default().to_owned(),
        |value| value.to_string(),
    );
    let values = trial["hyperparameters"].as_object().into_iter().flatten();
    let values: Vec<String> = values
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    show::printable(&format!("{value}  {}", values.join(" ")))
}

/// The output of a search with its trials by their value.
fn best_first(job: &Json) -> Json {
    let mut output = job["trainingOutput"].clone();
    let minimize = job["trainingInput"]["hyperparameters"]["goal"] == "MINIMIZE";
    if let Some(trials) = output["trials"].as_array_mut() {
        let cost = |trial: &Json| {
            let value = trial["finalMetric"]["objectiveValue"].as_f64();
            value.map_or(f64::INFINITY, |value| if minimize { value } else { -value })
        };
        trials.sort_by(|one, other| cost(one).total_cmp(&cost(other)));
    }
    output
}
