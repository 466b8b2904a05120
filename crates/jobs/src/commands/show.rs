//! Jobs as tables and as text.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use phalanx_yaml::suggest;
use serde_json::Value as Json;

use super::{Context, Done};
use crate::args::{Format, ListArgs};
use crate::failure::Failure;

/// Prints text, and says whether anybody reads it: a reader that has gone is no failure.
pub(super) fn out(text: &str) -> Result<bool, Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    crate::failure::is_read(written)
}

/// Text of a program's for a terminal: what would move its cursor or colour it is shown instead.
pub(super) fn printable(text: &str) -> String {
    let shown = |c: char| match c {
        '\t' => '\t',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(shown).collect()
}

fn text<'a>(job: &'a Json, name: &str) -> &'a str {
    job[name].as_str().unwrap_or("")
}

/// Rows in columns as wide as they must be.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        rows.iter()
            .filter_map(|row| row.get(at))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Fields of one value or of each of a list, a line each, tabs between them. `trainingOutput.trials[0].state` is one within others, and empty if
/// it is not there.
pub(super) fn values(json: &Json, fields: &[String]) -> String {
    let field = |one: &Json, path: &String| {
        let pointer = path.replace(['[', '.'], "/").replace(']', "");
        match one.pointer(&format!("/{pointer}")) {
            None | Some(Json::Null) => String::new(),
            Some(Json::String(text)) => printable(text),
            Some(other) => other.to_string(),
        }
    };
    let line = |one: &Json| {
        let cells = fields.iter().map(|path| field(one, path));
        cells.collect::<Vec<_>>().join("\t") + "\n"
    };
    match json {
        Json::Array(all) => all.iter().map(line).collect(),
        one => line(one),
    }
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| printable(cell)).collect()
}

/// What jobs may be sorted by, and `labels.KEY`.
const SORTED: [&str; 6] = [
    "jobId",
    "state",
    "createTime",
    "startTime",
    "endTime",
    "errorMessage",
];

fn check_sort(field: &str) -> Result<(), Failure> {
    if SORTED.contains(&field) || field.starts_with("labels.") {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--sort-by has {field:?}, which no job has; {}, or labels.KEY",
        suggest(field, &SORTED)
    )))
}

/// The text of a field that jobs are sorted by; empty where a job has none.
fn at<'a>(job: &'a Json, field: &str) -> &'a str {
    match field.strip_prefix("labels.") {
        Some(label) => text(&job["labels"], label),
        None => text(job, field),
    }
}

pub(super) fn list(context: &Context, args: &ListArgs) -> Done {
    let limit = args.limit.unwrap_or(usize::MAX);
    for field in &args.sort_by {
        check_sort(field.trim_start_matches('~'))?;
    }
    let fetched = if args.sort_by.is_empty() {
        limit
    } else {
        usize::MAX
    };
    let page = args.page_size.clamp(1, 100);
    let mut jobs = context
        .client()?
        .list(args.filter.as_deref(), page, fetched)?;
    // Sorting keeps the order of equals, so that the first field decides when it is sorted by last.
    for field in args.sort_by.iter().rev() {
        match field.strip_prefix('~') {
            Some(field) => jobs.sort_by(|one, other| at(other, field).cmp(at(one, field))),
            None => jobs.sort_by(|one, other| at(one, field).cmp(at(other, field))),
        }
    }
    jobs.truncate(limit);
    if args.uri {
        let uri =
            |job: &Json| format!("projects/{}/jobs/{}\n", context.project, text(job, "jobId"));
        out(&jobs.iter().map(uri).collect::<String>())?;
        return Ok(ExitCode::SUCCESS);
    }
    context.print(&Json::from(jobs.clone()), |_| {
        let mut rows = vec![row(&["JOB_ID", "STATUS", "CREATED"])];
        rows.extend(jobs.iter().map(|job| {
            row(&[
                text(job, "jobId"),
                text(job, "state"),
                text(job, "createTime"),
            ])
        }));
        table(&rows)
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn queue(context: &Context) -> Done {
    let answer = context.client()?.get("/api/queue")?;
    context.print(&answer["jobs"], |jobs| {
        let jobs = jobs.as_array().map(Vec::as_slice).unwrap_or_default();
        let priority = |job: &Json| match &job["trainingInput"]["scheduling"]["priority"] {
            Json::Null => "0".to_owned(),
            value => value.to_string().trim_matches('"').to_owned(),
        };
        let mut rows = vec![row(&[
            "POSITION",
            "JOB_ID",
            "PRIORITY",
            "CREATED",
            "WAITS_FOR",
        ])];
        rows.extend(jobs.iter().map(|job| {
            row(&[
                text(job, "jobPosition"),
                text(job, "jobId"),
                &priority(job),
                text(job, "createTime"),
                text(&job["phalanx"], "waitsFor"),
            ])
        }));
        table(&rows)
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn describe(context: &Context, job: &str, summarize: bool) -> Done {
    let client = context.client()?;
    let shown = client.job(job)?;
    match (&context.format, summarize) {
        (Format::Text, true) => out(&summary(&shown)).map(drop)?,
        (Format::Text, false) => out(&phalanx_yaml::to_yaml(&shown)).map(drop)?,
        _ => context.print(&shown, summary)?,
    }
    if context.format == Format::Text {
        // The token is not in the address, so that this output may be shown to others.
        eprintln!(
            "\nView the job in a browser that `phalanx jobs dashboard` has let in:\n  {}\nView its logs:\n  $ phalanx jobs logs -f {job}",
            client.page(job)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// A job for people.
pub(super) fn summary(job: &Json) -> String {
    let mut all = String::new();
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(all, "{name:<10} {}", printable(value));
        }
    };
    line("job", text(job, "jobId"));
    line("state", text(job, "state"));
    line("error", text(job, "errorMessage"));
    line("created", text(job, "createTime"));
    line("started", text(job, "startTime"));
    line("ended", text(job, "endTime"));
    let ours = &job["phalanx"];
    line("waits for", text(ours, "waitsFor"));
    line("executor", text(ours, "executor"));
    line("handle", text(ours, "handle"));
    line("results", text(ours, "jobDir"));
    let tasks = ours["tasks"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if !tasks.is_empty() {
        let mut rows = vec![row(&["TASK", "ATTEMPT", "WHERE", "STATE"])];
        rows.extend(tasks.iter().map(|task| {
            let state = task["end"].as_str().unwrap_or_else(|| text(task, "state"));
            let again = task["restarts"].as_u64();
            let again = again.map(|times| format!("; started again {times} times"));
            row(&[
                text(task, "task"),
                &task["attempt"].to_string(),
                text(task, "place"),
                &format!("{state}{}", again.unwrap_or_default()),
            ])
        }));
        all.push_str(&table(&rows));
    }
    all.push_str(&trials(&job["trainingOutput"]));
    all.push_str(&failure(&ours["firstFailure"]));
    all
}

/// A number with five digits that count, as the dashboard shows it.
fn significant(value: f64) -> String {
    let scientific = format!("{value:.4e}");
    let exponent = scientific.split_once('e');
    match exponent.and_then(|(_, exponent)| exponent.parse().ok()) {
        Some(exponent @ -6..=4) => format!("{value:.*}", (4_i32 - exponent) as usize),
        _ => scientific,
    }
}

/// The trials of a search.
pub(super) fn trials(output: &Json) -> String {
    let trials = output["trials"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if trials.is_empty() {
        return String::new();
    }
    let names: Vec<&String> = trials[0]["hyperparameters"]
        .as_object()
        .map(|map| map.keys().collect())
        .unwrap_or_default();
    let mut head = vec![
        "TRIAL".to_owned(),
        "STATE".to_owned(),
        printable(text(output, "hyperparameterMetricTag")),
    ];
    head.extend(names.iter().map(|name| printable(name)));
    let mut rows = vec![head];
    for trial in trials {
        let metric = trial["finalMetric"]["objectiveValue"]
            .as_f64()
            .map(significant);
        let state = match trial["isTrialStoppedEarly"].as_bool() {
            Some(true) => "STOPPED",
            _ => text(trial, "state"),
        };
        let mut cells = row(&[text(trial, "trialId"), state, &metric.unwrap_or_default()]);
        cells.extend(
            names
                .iter()
                .map(|name| printable(text(&trial["hyperparameters"], name))),
        );
        rows.push(cells);
    }
    table(&rows)
}

/// The task that failed first, with its last lines.
pub(super) fn failure(failure: &Json) -> String {
    let Some(task) = failure["task"].as_str() else {
        return String::new();
    };
    let rank = failure["rank"]
        .as_u64()
        .map(|rank| format!(" (rank {rank})"));
    let mut all = format!(
        "first failure: {}{} {}, attempt {}; its last lines:\n",
        printable(task),
        rank.unwrap_or_default(),
        text(failure, "end"),
        failure["attempt"]
    );
    for line in failure["lastLines"].as_array().into_iter().flatten() {
        let _ = writeln!(all, "    {}", printable(line.as_str().unwrap_or_default()));
    }
    let _ = writeln!(all, "all of its output: {}", text(failure, "log"));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_printed_for_scripts() {
        let fields = ["state", "labels.team", "trials[1].x", "none"].map(str::to_owned);
        let one = serde_json::json!({"state": "A\nB", "labels": {"team": "t"}, "trials": [{}, {"x": 1.5}]});
        let line = "A\u{fffd}B\tt\t1.5\t\n";
        assert_eq!(values(&one, &fields), line);
        assert_eq!(
            values(&Json::from(vec![one.clone(), one]), &fields),
            line.repeat(2)
        );
        assert_eq!(values(&Json::Array(Vec::new()), &fields), "");
    }

    #[test]
    fn numbers_have_the_digits_that_count() {
        for (value, text) in [
            (0.0, "0.0000"),
            (0.987_654_3, "0.98765"),
            (-12.5, "-12.500"),
            (0.000_123_456_7, "0.00012346"),
            (3.5e-7, "3.5000e-7"),
            (99_999.6, "1.0000e5"),
            (1234.5678, "1234.6"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(significant(value), text);
        }
    }
}
