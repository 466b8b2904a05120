//! Results of rounds, and one table of them with ratios.

use std::fmt::Write;

use serde::Deserialize;

use super::peer_process::{Hello, Turn};
use super::score::Score;

/// The name of our framework in results.
pub(super) const OURS: &str = "phalanx";

/// One line that a peer prints.
#[derive(Deserialize)]
struct Line {
    name: String,
    median_ms: f64,
    framework: String,
    version: String,
    /// Ours only: microseconds of a step outside the device.
    #[serde(default)]
    overhead_us: Option<f64>,
    /// The most memory that the program had, where it says so.
    #[serde(default)]
    peak_mib: Option<f64>,
}

/// A peer at a work: the medians of its rounds.
struct Series {
    work: usize,
    name: String,
    framework: String,
    version: String,
    medians_ms: Vec<f64>,
    overheads_us: Vec<f64>,
    peak_mib: Option<f64>,
}

/// What all rounds gave, in the order of first appearance.
#[derive(Default)]
pub(super) struct Results {
    series: Vec<Series>,
}

impl Results {
    /// Adds what a peer printed about a work.
    pub(super) fn add(&mut self, work: usize, output: &str) -> Result<(), String> {
        let json: Vec<&str> = output
            .lines()
            .filter(|line| line.starts_with('{'))
            .collect();
        if json.is_empty() {
            return Err(format!(
                "found no result, expected a line of JSON, in:\n{output}"
            ));
        }
        for text in json {
            let line: Line = serde_json::from_str(text)
                .map_err(|error| format!("cannot read {text}: {error}"))?;
            let series = self.series_of(work, &line);
            series.medians_ms.push(line.median_ms);
            series.overheads_us.extend(line.overhead_us);
            let peaks = [series.peak_mib, line.peak_mib];
            series.peak_mib = peaks.into_iter().flatten().reduce(f64::max);
        }
        Ok(())
    }

    fn series_of(&mut self, work: usize, line: &Line) -> &mut Series {
        let known = |series: &Series| series.work == work && series.name == line.name;
        let place = self.series.iter().position(known).unwrap_or_else(|| {
            self.series.push(Series {
                work,
                name: line.name.clone(),
                framework: line.framework.clone(),
                version: line.version.clone(),
                medians_ms: Vec::new(),
                overheads_us: Vec::new(),
                peak_mib: None,
            });
            self.series.len() - 1
        });
        &mut self.series[place]
    }

    /// What each peer did of a work.
    pub(super) fn scores(&self, work: usize) -> Vec<Score> {
        let of_work = self.series.iter().filter(|series| series.work == work);
        of_work.map(Series::score).collect()
    }

    /// A row a peer and work: median, range over the rounds, rate, and how much faster ours is.
    pub(super) fn table(&self, works: &[&str]) -> String {
        let mut text = String::from(
            "| work | framework | median | rounds | rate | ours is faster by |\n|---|---|---:|---:|---:|---:|\n",
        );
        for (work, shown) in works.iter().enumerate() {
            let rows: Vec<&Series> = self
                .series
                .iter()
                .filter(|series| series.work == work)
                .collect();
            let ours = rows
                .iter()
                .find(|series| series.framework == OURS)
                .map(|series| series.median_ms());
            for series in rows {
                // Writing to a string does not fail.
                let _ = writeln!(text, "| {shown} | {}", series.row(ours));
            }
        }
        for series in self
            .series
            .iter()
            .filter(|series| !series.overheads_us.is_empty())
        {
            let overhead = median(&series.overheads_us);
            let _ = writeln!(
                text,
                "\n{}: {overhead:.1} µs a step outside the device.",
                works[series.work]
            );
        }
        text
    }
}

impl Series {
    fn score(&self) -> Score {
        let mut score = Score::new(Hello {
            framework: self.framework.clone(),
            version: self.version.clone(),
            variant: self.variant().to_owned(),
        });
        for &median_ms in &self.medians_ms {
            score.add(&Turn {
                median_ms,
                loss: f64::NAN,
            });
        }
        score.peak_mib = self.peak_mib;
        score
    }

    fn median_ms(&self) -> f64 {
        median(&self.medians_ms)
    }

    /// The cells after the work's.
    fn row(&self, ours: Option<f64>) -> String {
        let median = self.median_ms();
        let ends = |pick: fn(f64, f64) -> f64| {
            self.medians_ms
                .iter()
                .copied()
                .reduce(pick)
                .unwrap_or(median)
        };
        let ratio = match ours {
            Some(ours) if self.framework != OURS => format!("{:.2}x", median / ours),
            _ => String::new(),
        };
        format!(
            "{} | {} | {} .. {} | {:.1} /s | {ratio} |",
            self.label(),
            milliseconds(median),
            milliseconds(ends(f64::min)),
            milliseconds(ends(f64::max)),
            1e3 / median
        )
    }

    /// `torch 2.9`, with what sets a result apart from another of the framework: `torch 2.9, loader`.
    fn label(&self) -> String {
        let variant = match self.variant() {
            "" => String::new(),
            variant => format!(", {variant}"),
        };
        format!("{} {}{variant}", self.framework, self.version)
    }

    fn variant(&self) -> &str {
        let last = self.name.rsplit('_').next();
        last.filter(|word| ["slices", "loader"].contains(word))
            .unwrap_or_default()
    }
}

pub(super) fn milliseconds(value: f64) -> String {
    match value {
        0.0..10.0 => format!("{value:.3} ms"),
        10.0..1000.0 => format!("{value:.1} ms"),
        _ => format!("{value:.0} ms"),
    }
}

/// The middle value, or the mean of the two middle ones; NaN of nothing.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, framework: &str, median: f64, more: &str) -> String {
        format!(
            "noise\n{{\"name\": \"{name}\", \"median_ms\": {median}, \"framework\": \"{framework}\", \"version\": \"1\"{more}}}\n"
        )
    }

    #[test]
    fn rounds_become_medians_and_ratios() {
        let mut results = Results::default();
        for round in [1.0, 9.0, 2.0] {
            results
                .add(
                    0,
                    &line("phalanx_mlp", "phalanx", round, ", \"overhead_us\": 30.0"),
                )
                .unwrap();
            results
                .add(0, &line("torch_fit_mlp_slices", "torch", round * 2.0, ""))
                .unwrap();
        }
        let table = results.table(&["steps", "epochs"]);
        assert!(
            table.contains("| steps | phalanx 1 | 2.000 ms | 1.000 ms .. 9.000 ms | 500.0 /s |  |"),
            "{table}"
        );
        assert!(
            table.contains(
                "| steps | torch 1, slices | 4.000 ms | 2.000 ms .. 18.0 ms | 250.0 /s | 2.00x |"
            ),
            "{table}"
        );
        let medians = results.scores(0).into_iter();
        let medians: Vec<_> = medians
            .map(|score| (score.variant.clone(), score.median_ms()))
            .collect();
        let expected = [(String::new(), Some(2.0)), ("slices".to_owned(), Some(4.0))];
        assert_eq!(medians, expected);
        assert!(
            table.contains("steps: 30.0 µs a step outside the device."),
            "{table}"
        );
    }

    #[test]
    fn output_without_a_result_is_an_error() {
        assert!(
            Results::default()
                .add(0, "Killed\n")
                .unwrap_err()
                .contains("Killed")
        );
        assert!(
            Results::default()
                .add(0, "{\"name\": 1}\n")
                .unwrap_err()
                .contains("cannot read")
        );
    }

    #[test]
    fn medians_take_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
