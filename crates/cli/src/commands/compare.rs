//! `phalanx compare a b`.

use serde_json::{Value, json};

use super::Context;
use crate::args::{CompareArgs, Progress};
use crate::failure::Failure;
use crate::runs::{PastRun, differences, read_all};

/// Prints in which settings trainings differ, and what they came to.
pub(crate) fn run(context: &mut Context, args: &CompareArgs) -> Result<(), Failure> {
    let runs = read_all(&args.runs)?;
    let (settings, results) = (differences(&runs), results(&runs));
    if context.global.progress == Progress::Json {
        let names: Vec<&String> = runs.iter().map(|run| &run.name).collect();
        let object = |rows: &[(String, Vec<String>)]| -> Value {
            let rows = rows.iter();
            Value::Object(
                rows.map(|(key, values)| (key.clone(), json!(values)))
                    .collect(),
            )
        };
        let line = json!({"event": "compare", "runs": names, "settings": object(&settings), "results": object(&results)});
        return context.output.line(line);
    }
    let heading = runs.iter().map(|run| run.name.clone()).collect();
    let mut rows = vec![("setting".to_owned(), heading)];
    rows.extend(settings);
    if rows.len() == 1 {
        rows[0].0 = "no setting differs".into();
    }
    let marked = rows.len();
    rows.extend(results);
    for (index, line) in aligned(&rows).into_iter().enumerate() {
        if index == marked {
            context.output.line("")?;
        }
        context.output.line(line)?;
    }
    Ok(())
}

/// The last of each log, the test, and the time: a row each, with a value for each run.
fn results(runs: &[PastRun]) -> Vec<(String, Vec<String>)> {
    let mut logs: Vec<&String> = runs.iter().flat_map(|run| run.logs.keys()).collect();
    logs.sort();
    logs.dedup();
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for log in logs.iter().filter(|log| !log.contains('/')) {
        rows.push(row(log, runs, |run| {
            run.logs.get(*log)?.last().map(|point| point.1)
        }));
    }
    let tested = runs.iter().filter_map(|run| run.test.as_ref()?.as_object());
    let mut tested: Vec<&String> = tested.flat_map(|test| test.keys()).collect();
    tested.sort();
    tested.dedup();
    for log in tested {
        rows.push(row(&format!("test {log}"), runs, |run| {
            run.test.as_ref()?[log].as_f64()
        }));
    }
    rows.push(row("epochs", runs, |run| {
        run.last.as_ref()?["epoch"].as_f64()
    }));
    rows.push(row("ms a step, last epoch", runs, |run| {
        let last = run.last.as_ref()?;
        Some(last["seconds"].as_f64()? * 1e3 / last["steps"].as_f64()?.max(1.0))
    }));
    let verdict = |run: &PastRun| {
        let told = run.last.as_ref().and_then(|last| last["verdict"].as_str());
        told.map_or("-", |told| told.split(':').next().unwrap_or(told))
            .to_owned()
    };
    rows.push(("waits for".into(), runs.iter().map(verdict).collect()));
    rows
}

fn row(
    name: &str,
    runs: &[PastRun],
    value: impl Fn(&PastRun) -> Option<f64>,
) -> (String, Vec<String>) {
    let shown = |run: &PastRun| match value(run) {
        Some(value) if value.fract() == 0.0 && value.abs() < 1e9 => format!("{value}"),
        // Four digits would say nothing.
        Some(value) if value.abs() < 1e-3 => format!("{value:.4e}"),
        Some(value) => format!("{value:.4}"),
        None => "-".to_owned(),
    };
    (name.to_owned(), runs.iter().map(shown).collect())
}

/// Rows in columns.
fn aligned(rows: &[(String, Vec<String>)]) -> Vec<String> {
    let columns = rows.first().map_or(0, |(_, values)| values.len());
    let width = |column: usize| {
        let cells = rows
            .iter()
            .map(|(_, values)| values[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let first = rows.iter().map(|(name, _)| name.chars().count()).max();
    let first = first.unwrap_or(0);
    let line = |(name, values): &(String, Vec<String>)| {
        let cells = values.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(value, width)| format!("{value:>width$}"))
            .collect();
        format!("{name:first$}  {}", cells.join("  "))
    };
    rows.iter().map(line).collect()
}
