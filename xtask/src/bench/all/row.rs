//! A row: ours, each peer's best variant, the bar, the first step, the memory.

use super::super::peer_process::PeerFailure;
use super::super::score::Score;
use super::super::table::{OURS, milliseconds};
use super::Workload;
use super::bars::{Against, Bar};

/// The frameworks, as programs and as people name them.
const PEERS: [(&str, &str); 3] = [("torch", "PyTorch"), ("tf", "TensorFlow"), ("jax", "JAX")];

/// The columns of a row.
pub(super) const HEADER: &str = "\
| workload | Phalanx | PyTorch | TensorFlow | JAX | bar | met | first step: cold, cached; peers | peak memory, MiB; peers | rounds |
|---|---:|---:|---:|---:|---|---|---|---|---|
";

/// What a workload gave.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) scores: Vec<Score>,
    /// The first step of ours in a process that finds its program in the cache.
    pub(super) cached_ms: Option<f64>,
    /// How many times the work of one replica two do.
    pub(super) gain: Option<f64>,
    /// How many times the work of one replica two programs at once do, which exchange nothing.
    pub(super) gain_apart: Option<f64>,
    /// Why there are no scores, or not all.
    pub(super) failure: Option<String>,
}

impl Measured {
    /// Whether ours was timed and no program failed; one that was too slow has not failed.
    pub(super) fn is_complete(&self) -> bool {
        let failed = |score: &Score| matches!(score.failure, Some(PeerFailure::Failed(_)));
        self.failure.is_none() && self.ours().is_some() && !self.scores.iter().any(failed)
    }

    /// The fastest variant of a framework that was timed; else one that was not.
    fn best(&self, framework: &str) -> Option<&Score> {
        let of_it = || {
            self.scores
                .iter()
                .filter(|score| score.framework == framework)
        };
        let key = |score: &&Score| score.median_ms().unwrap_or(f64::INFINITY);
        of_it().min_by(|a, b| key(a).total_cmp(&key(b)))
    }

    fn ours(&self) -> Option<f64> {
        self.best(OURS)?.median_ms()
    }

    /// Whether a framework was too slow, so that its memory is the least that it takes.
    fn is_cut_off(&self, framework: &str) -> bool {
        self.best(framework)
            .is_some_and(|score| matches!(score.failure, Some(PeerFailure::TimedOut(_))))
    }

    /// How many times as long as ours a framework takes; where it exceeded a limit the ratio is a lower bound.
    fn ratio(&self, framework: &str) -> Option<Ratio> {
        let (ours, best) = (self.ours()?, self.best(framework)?);
        let over = |limit: f64| Ratio {
            value: limit / ours,
            is_least: true,
        };
        match (best.median_ms(), &best.failure) {
            (Some(theirs), _) => Some(Ratio {
                value: theirs / ours,
                is_least: false,
            }),
            (None, Some(PeerFailure::TimedOut(limit))) => Some(over(limit.as_secs_f64() * 1e3)),
            (None, _) => None,
        }
    }
}

struct Ratio {
    value: f64,
    /// Whether the peer was still running.
    is_least: bool,
}

/// The row of a workload.
pub(super) fn text(workload: &Workload, measured: &Measured, rounds: &str) -> String {
    let ours = ours(measured);
    let peers = PEERS.map(|(framework, _)| peer(measured, framework));
    let bars: Vec<String> = workload.bars.iter().map(Bar::shown).collect();
    format!(
        "| {} | {ours} | {} | {} | {} | {} | {} | {rounds} |",
        workload.shown,
        peers.join(" | "),
        bars.join(", "),
        met(&workload.bars, measured),
        first_steps(measured),
        memory(measured)
    )
}

/// What ours took, or why there is no such number.
pub(super) fn ours(measured: &Measured) -> String {
    match (measured.ours(), &measured.failure, measured.best(OURS)) {
        (Some(ms), _, _) => milliseconds(ms),
        (None, Some(why), _) => format!("failed: {}", one_line(why)),
        (None, None, Some(score)) => why_not(score),
        (None, None, None) => "failed: no result".to_owned(),
    }
}

/// `2862 ms compiled, 1.55x`, or why there is no such number; nothing where it was not run.
pub(super) fn peer(measured: &Measured, framework: &str) -> String {
    let Some(score) = measured.best(framework) else {
        return String::new();
    };
    let Some(ms) = score.median_ms() else {
        return why_not(score);
    };
    let ratio = measured.ratio(framework);
    let ratio = ratio.map_or(String::new(), |ratio| format!(", {:.2}x", ratio.value));
    let variant = match score.variant.as_str() {
        "" => String::new(),
        variant => format!(" {variant}"),
    };
    format!("{}{variant}{ratio}", milliseconds(ms))
}

fn why_not(score: &Score) -> String {
    match &score.failure {
        Some(PeerFailure::TimedOut(limit)) => format!("> {} s", limit.as_secs()),
        Some(PeerFailure::Failed(why)) => format!("failed: {}", one_line(why)),
        None => "not timed".into(),
    }
}

/// The last line of a report, which fits a cell.
fn one_line(text: &str) -> String {
    let last = text.trim().lines().last().unwrap_or_default();
    last.chars().take(80).collect::<String>().replace('|', "/")
}

/// `yes`, or what falls short.
fn met(bars: &[Bar], measured: &Measured) -> String {
    let short: Vec<String> = bars.iter().filter_map(|bar| bar.short(measured)).collect();
    match short.is_empty() {
        true => "yes".into(),
        false => format!("no: {}", short.join(", ")),
    }
}

impl Bar {
    fn shown(&self) -> String {
        let limit = self.limit;
        match self.against {
            Against::Best => format!("{limit}x the best"),
            Against::Peer(framework) => format!("{limit}x {}", name_of(framework)),
            Against::OneReplica => format!("{limit}x one replica"),
            Against::Memory(framework) => {
                format!("{limit} of {}'s memory", name_of(framework))
            }
        }
    }

    /// What falls short of the bar; nothing where it is met.
    fn short(&self, measured: &Measured) -> Option<String> {
        let slower = |ratio: Option<Ratio>, who: &str| match ratio {
            Some(ratio) if ratio.value >= self.limit => None,
            Some(ratio) if ratio.is_least => Some(format!("> {:.2}x {who}", ratio.value)),
            Some(ratio) => Some(format!("{:.2}x {who}", ratio.value)),
            None => Some(format!("not timed beside {who}")),
        };
        match self.against {
            Against::Best => {
                let ratios = PEERS
                    .iter()
                    .filter_map(|(framework, name)| Some((measured.ratio(framework)?, *name)));
                match ratios.min_by(|(a, _), (b, _)| a.value.total_cmp(&b.value)) {
                    Some((ratio, name)) => slower(Some(ratio), name),
                    None => slower(None, "a peer"),
                }
            }
            Against::Peer(framework) => slower(measured.ratio(framework), name_of(framework)),
            Against::OneReplica => match measured.gain {
                Some(gain) if gain >= self.limit => None,
                Some(gain) => {
                    let apart = measured.gain_apart;
                    let apart = apart.map(|apart| format!(", two programs {apart:.2}x"));
                    Some(format!(
                        "{gain:.2}x one replica{}",
                        apart.unwrap_or_default()
                    ))
                }
                None => Some("not timed beside one replica".into()),
            },
            Against::Memory(framework) => {
                let peak = |framework| measured.best(framework)?.peak_mib;
                match (peak(OURS), peak(framework)) {
                    (Some(ours), Some(theirs)) if ours <= self.limit * theirs => None,
                    (Some(ours), Some(theirs)) => {
                        let (part, name) = (ours / theirs, name_of(framework));
                        let most = if measured.is_cut_off(framework) {
                            "< "
                        } else {
                            ""
                        };
                        Some(format!("{most}{part:.2} of {name}'s memory"))
                    }
                    _ => Some(format!("no memory of {}", name_of(framework))),
                }
            }
        }
    }
}

fn name_of(framework: &str) -> &str {
    let known = PEERS.iter().find(|(known, _)| *known == framework);
    known.map_or(framework, |(_, name)| name)
}

/// `8.1 s, 0.6 s; PyTorch 3.0 s`.
fn first_steps(measured: &Measured) -> String {
    let seconds = |ms: Option<f64>| ms.map(|ms| format!("{:.1} s", ms / 1e3));
    let first = |framework: &str| measured.best(framework).and_then(|score| score.first_ms);
    let own: Vec<String> = [seconds(first(OURS)), seconds(measured.cached_ms)]
        .into_iter()
        .flatten()
        .collect();
    joined(own.join(", "), |framework| seconds(first(framework)))
}

fn memory(measured: &Measured) -> String {
    let peak = |framework: &str| {
        let mib = measured.best(framework)?.peak_mib?;
        let least = if measured.is_cut_off(framework) {
            "> "
        } else {
            ""
        };
        Some(format!("{least}{mib:.0}"))
    };
    joined(peak(OURS).unwrap_or_default(), peak)
}

/// Ours; then each peer that has something, by name.
fn joined(ours: String, of: impl Fn(&str) -> Option<String>) -> String {
    let peers = PEERS
        .iter()
        .filter_map(|(framework, name)| of(framework).map(|shown| format!("{name} {shown}")));
    let peers: Vec<String> = peers.collect();
    match peers.is_empty() {
        true => ours,
        false => format!("{ours}; {}", peers.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::peer_process::{Hello, Turn};
    use super::super::Timed;
    use super::*;
    use std::time::Duration;

    fn score(framework: &str, variant: &str, median_ms: Option<f64>, peak_mib: f64) -> Score {
        let mut score = Score::new(Hello {
            framework: framework.into(),
            version: "1".into(),
            variant: variant.into(),
        });
        match median_ms {
            Some(median_ms) => score.add(&Turn {
                median_ms,
                loss: 1.0,
            }),
            None => score.failure = Some(PeerFailure::TimedOut(Duration::from_secs(30))),
        }
        score.first_ms = Some(3000.0);
        score.peak_mib = Some(peak_mib);
        score
    }

    fn workload(bars: &[(Against, f64)]) -> Workload {
        let bars = bars.iter().map(|&(against, limit)| Bar { against, limit });
        Workload {
            name: "m".into(),
            shown: "a model".into(),
            bars: bars.collect(),
            timed: Timed::Model(&super::super::models::WORKS[0]),
        }
    }

    #[test]
    fn the_best_variant_of_each_peer_counts() {
        let measured = Measured {
            scores: vec![
                score(OURS, "", Some(1000.0), 100.0),
                score("torch", "", Some(2000.0), 200.0),
                score("torch", "compiled", Some(1500.0), 120.0),
                score("tf", "", None, 50.0),
            ],
            cached_ms: Some(600.0),
            ..Measured::default()
        };
        assert!(measured.is_complete());
        let asked = workload(&[
            (Against::Best, 1.6),
            (Against::Peer("tf"), 2.0),
            (Against::Memory("torch"), 0.8),
            (Against::Memory("tf"), 0.8),
            (Against::Peer("jax"), 1.0),
        ]);
        let expected = "| a model | 1000 ms | 1500 ms compiled, 1.50x | > 30 s |  | 1.6x the best, 2x TensorFlow, 0.8 of PyTorch's memory, 0.8 of TensorFlow's memory, 1x JAX \
            | no: 1.50x PyTorch, 0.83 of PyTorch's memory, < 2.00 of TensorFlow's memory, not timed beside JAX | 3.0 s, 0.6 s; PyTorch 3.0 s, TensorFlow 3.0 s \
            | 100; PyTorch 120, TensorFlow > 50 | 2 |";
        assert_eq!(text(&asked, &measured, "2"), expected);
        let lower = workload(&[(Against::Best, 1.5), (Against::Memory("torch"), 0.85)]);
        assert!(text(&lower, &measured, "2").contains("| yes |"));
    }

    #[test]
    fn a_failure_fills_its_row() {
        let failed = Measured {
            failure: Some("long\nits | reason\n".into()),
            ..Measured::default()
        };
        assert!(!failed.is_complete());
        let row = text(&workload(&[(Against::Best, 1.0)]), &failed, "2");
        assert!(
            row.starts_with("| a model | failed: its / reason |"),
            "{row}"
        );
        assert!(row.contains("no: not timed beside a peer"), "{row}");
        let mut scores = vec![score(OURS, "", Some(1.0), 1.0), score("tf", "", None, 1.0)];
        scores[1].failure = Some(PeerFailure::Failed("it ended".into()));
        let one = Measured {
            scores,
            ..Measured::default()
        };
        assert!(!one.is_complete());
        let row = text(&workload(&[(Against::Best, 1.0)]), &one, "2");
        assert!(row.contains("| failed: it ended |"), "{row}");
    }

    #[test]
    fn replicas_are_compared_with_one() {
        let measured = |gain| Measured {
            scores: vec![score(OURS, "", Some(1.0), 1.0)],
            gain,
            ..Measured::default()
        };
        let asked = workload(&[(Against::OneReplica, 1.3)]);
        let met = |gain| text(&asked, &measured(gain), "2");
        assert!(met(Some(1.3)).contains("| yes |"));
        assert!(met(Some(1.2)).contains("| no: 1.20x one replica |"));
        assert!(met(Some(f64::NAN)).contains("| no: NaNx one replica |"));
        assert!(met(None).contains("| no: not timed beside one replica |"));
        let apart = Measured {
            gain_apart: Some(1.25),
            ..measured(Some(1.2))
        };
        let found = text(&asked, &apart, "2");
        assert!(found.contains("| no: 1.20x one replica, two programs 1.25x |"));
    }
}
