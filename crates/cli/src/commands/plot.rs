//! `phalanx plot runs/*`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use phalanx_summary::{Chart, Curve, png, svg};

use super::Context;
use crate::args::PlotArgs;
use crate::failure::{Exit, Failure};
use crate::files::{check_target, write};
use crate::runs::{PastRun, differences, files_of, read_all};

/// What names the picture.
const OUTPUT: &str = "--output";
/// What a result of a validation is named.
const VALIDATION: &str = "val_";
/// The size of a chart of the terminal, in characters.
const SIZE: (usize, usize) = (60, 14);

/// Draws the curves of trainings in the terminal, or as a picture: PNG where the name of the file ends so, else SVG.
pub(crate) fn run(context: &mut Context, args: &PlotArgs) -> Result<(), Failure> {
    if let Some(path) = &args.output {
        let read: Vec<PathBuf> = args.runs.iter().flat_map(|run| files_of(run)).collect();
        check_target(path, &read, OUTPUT)?;
    }
    let runs = read_all(&args.runs)?;
    let charts = charts(&runs, &args.log)?;
    let Some(path) = &args.output else {
        for chart in &charts {
            context.output.line(chart.to_text(SIZE.0, SIZE.1))?;
        }
        for (group, run) in runs.iter().enumerate() {
            let letter = char::from(b'A' + (group % 26) as u8);
            context
                .output
                .line(format_args!("{letter}  {}", named(run, group, &runs)))?;
        }
        return Ok(());
    };
    let is_png = path
        .extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("png"));
    let picture = match is_png {
        true => png(&charts)
            .map_err(|error| Failure::of(Exit::Failed, &error))?
            .png()
            .to_vec(),
        false => svg(&charts).into_bytes(),
    };
    write(path, &picture, OUTPUT)?;
    context.output.line(path.display())
}

/// A chart for each log, with the log of the validation in it.
fn charts(runs: &[PastRun], asked: &[String]) -> Result<Vec<Chart>, Failure> {
    let bare = |log: &str| log.strip_prefix(VALIDATION).unwrap_or(log).to_owned();
    let there: BTreeSet<String> = (runs.iter().flat_map(|run| run.logs.keys()))
        .map(|log| bare(log))
        .collect();
    let wanted: Vec<String> = match asked {
        // What a training writes of its machine and its time is drawn when it is asked for.
        [] => (there
            .iter()
            .filter(|log| !log.contains('/') && !log.contains("_vs_")))
        .filter(|log| !log.starts_with("batch_"))
        .cloned()
        .collect(),
        asked => asked.iter().map(|log| bare(log)).collect(),
    };
    if let Some(missing) = wanted.iter().find(|log| !there.contains(*log)) {
        let logs: Vec<&str> = there.iter().map(String::as_str).collect();
        let message = format!(
            "no run has a log `{missing}`; there are {}",
            logs.join(", ")
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    Ok(wanted.iter().map(|log| chart(runs, log)).collect())
}

fn chart(runs: &[PastRun], log: &str) -> Chart {
    let mut curves = Vec::new();
    for (group, run) in runs.iter().enumerate() {
        for is_dashed in [false, true] {
            let prefix = if is_dashed { VALIDATION } else { "" };
            let Some(points) = run.logs.get(&format!("{prefix}{log}")) else {
                continue;
            };
            let name = named(run, group, runs);
            curves.push(Curve {
                name: if is_dashed {
                    "its validation".into()
                } else {
                    name
                },
                points: points.clone(),
                group,
                is_dashed,
            });
        }
    }
    Chart {
        title: log.to_owned(),
        axis: if log.contains('/') || log.starts_with("batch_") {
            "step".to_owned()
        } else {
            "epoch".to_owned()
        },
        curves,
    }
}

/// The name of a run with the first settings by which it differs from the others.
fn named(run: &PastRun, index: usize, runs: &[PastRun]) -> String {
    let settings: Vec<String> = differences(runs)
        .iter()
        .filter(|(key, _)| key != "output" && !key.starts_with("fit.tensorboard"))
        .take(3)
        .map(|(key, values)| {
            let short = key.rsplit('.').next().unwrap_or(key);
            format!("{short} {}", values[index])
        })
        .collect();
    match settings[..] {
        [] => run.name.clone(),
        _ => format!("{} ({})", run.name, settings.join(", ")),
    }
}
