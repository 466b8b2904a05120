//! What the rounds of a model gave, and a table of them with ratios.

use std::fmt::Write;

use super::peer_process::{Hello, PeerFailure, Turn};
use super::table::{OURS, median, milliseconds};

/// A program at a model: the medians of its rounds, its losses, and why it left if it did.
pub(super) struct Score {
    pub(super) framework: String,
    pub(super) label: String,
    pub(super) version: String,
    pub(super) variant: String,
    /// What a step counts for in the rate.
    pub(super) units: f64,
    medians_ms: Vec<f64>,
    /// The first step, which traces and compiles.
    pub(super) first_ms: Option<f64>,
    /// The most memory that the program had; of one that was too slow, until its first step had ended.
    pub(super) peak_mib: Option<f64>,
    pub(super) first_loss: Option<f64>,
    last_loss: f64,
    pub(super) failure: Option<PeerFailure>,
}

impl Score {
    pub(super) fn new(hello: Hello) -> Self {
        let words = [&hello.framework, &hello.version, &hello.variant];
        let words: Vec<&str> = words.iter().map(|word| word.as_str()).collect();
        Self {
            label: words.join(" ").trim().to_owned(),
            framework: hello.framework,
            version: hello.version,
            variant: hello.variant,
            units: 1.0,
            medians_ms: Vec::new(),
            first_ms: None,
            peak_mib: None,
            first_loss: None,
            last_loss: f64::NAN,
            failure: None,
        }
    }

    pub(super) fn add(&mut self, turn: &Turn) {
        self.medians_ms.push(turn.median_ms);
        self.last_loss = turn.loss;
    }

    /// Median, range and rate, or why there are none: three cells.
    pub(super) fn time(&self) -> String {
        let Some(median) = self.median_ms() else {
            return format!("{} |  |  ", self.why());
        };
        let ends = |pick: fn(f64, f64) -> f64| self.medians_ms.iter().copied().fold(median, pick);
        format!(
            "{} | {} .. {} | {:.*} /s",
            milliseconds(median),
            milliseconds(ends(f64::min)),
            milliseconds(ends(f64::max)),
            if self.units * 1e3 < 100.0 * median {
                2
            } else {
                0
            },
            self.units * 1e3 / median
        )
    }

    /// Why there is no median, for a cell.
    pub(super) fn why(&self) -> String {
        match &self.failure {
            Some(PeerFailure::TimedOut(limit)) => format!("> {} s", limit.as_secs()),
            Some(PeerFailure::Failed(why)) => format!("failed: {}", why.replace('|', "/")),
            None => "not timed".into(),
        }
    }

    /// Milliseconds of a step, if it took any in time.
    pub(super) fn median_ms(&self) -> Option<f64> {
        let done = self.failure.is_none() && !self.medians_ms.is_empty();
        done.then(|| median(&self.medians_ms))
    }

    /// How much longer than ours a step takes, or took at least.
    fn ratio(&self, ours: Option<f64>) -> String {
        let Some(ours) = ours.filter(|_| self.framework != OURS) else {
            return String::new();
        };
        match (self.median_ms(), &self.failure) {
            (Some(median), _) => format!("{:.2}x", median / ours),
            (None, Some(PeerFailure::TimedOut(limit))) => {
                format!("> {:.1}x", limit.as_secs_f64() * 1e3 / ours)
            }
            (None, _) => String::new(),
        }
    }

    fn losses(&self) -> String {
        match self.first_loss {
            Some(first) if self.last_loss.is_finite() => {
                format!("{first:.3} -> {:.3}", self.last_loss)
            }
            _ => String::new(),
        }
    }
}

/// A row a program: median, range over the rounds, rate, how much faster ours is, loss of the first and the last step.
pub(super) fn table(shown: &str, scores: &[Score]) -> String {
    let mut text = format!(
        "## {shown}\n\n| framework | step | rounds | rate | ours is faster by | loss |\n|---|---:|---:|---:|---:|---:|\n"
    );
    let ours = scores.iter().find(|score| score.framework == OURS);
    let ours = ours.and_then(Score::median_ms);
    for score in scores {
        let (time, ratio) = (score.time(), score.ratio(ours));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {} | {time} | {ratio} | {} |",
            score.label,
            score.losses()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn score(framework: &str, medians: &[f64], failure: Option<PeerFailure>) -> Score {
        let mut score = Score::new(Hello {
            framework: framework.into(),
            version: "1".into(),
            variant: String::new(),
        });
        score.first_loss = Some(2.0);
        for &median_ms in medians {
            score.add(&Turn {
                median_ms,
                loss: 1.5,
            });
        }
        score.failure = failure;
        score
    }

    #[test]
    fn a_row_each_even_for_who_was_late() {
        let late = Some(PeerFailure::TimedOut(Duration::from_secs(30)));
        let text = table(
            "m",
            &[
                score(OURS, &[1000.0, 3000.0, 2000.0], None),
                score("torch", &[4000.0], None),
                score("tf", &[], late),
                score("jax", &[], Some(PeerFailure::Failed("it ended".into()))),
            ],
        );
        assert!(
            text.contains(
                "| phalanx 1 | 2000 ms | 1000 ms .. 3000 ms | 0.50 /s |  | 2.000 -> 1.500 |"
            ),
            "{text}"
        );
        assert!(text.contains("| 0.25 /s | 2.00x |"), "{text}");
        assert!(
            text.contains("| tf 1 | > 30 s |  |   | > 15.0x |  |"),
            "{text}"
        );
        assert!(text.contains("failed: it ended"), "{text}");
    }
}
