//! The search.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use phalanx_testkit::{asked_number, commit_number, search_seed};

use crate::case::Case;
use crate::draw::Draw;
use crate::judge::Verdict;
use crate::relations::{RELATIONS, Relation};

/// How many trainings a run of the tests tries.
const FEW: u64 = 4;
/// Of so many, all of which eleven commits in a row try.
const KNOWN: u64 = 44;

/// Draws trainings until the time of `PHALANX_FUZZ_MINUTES` is over, or so many as `PHALANX_FUZZ_COUNT` says. Without these it tries a few of
/// the same ones always, which the commit chooses.
#[test]
fn search() {
    let minutes = asked_number("PHALANX_FUZZ_MINUTES");
    let count = asked_number("PHALANX_FUZZ_COUNT");
    let (seed, first) = match (minutes, count) {
        (None, None) => {
            let commit = u64::from(commit_number().unwrap_or(0));
            (1, commit * FEW % KNOWN)
        }
        _ => (search_seed(), 0),
    };
    let first = asked_number("PHALANX_FUZZ_FIRST").unwrap_or(first);
    let count = count.unwrap_or(FEW);
    let budget = minutes.map(|minutes| Duration::from_secs(60 * minutes));
    let is_set = |variable| std::env::var_os(variable).is_some();
    let (goes_on, tells_all) = (is_set("PHALANX_FUZZ_GO_ON"), is_set("PHALANX_FUZZ_LOG"));
    let start = Instant::now();
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut wrong = Vec::new();
    for number in first.. {
        let is_over = budget.map_or(number >= first + count, |budget| start.elapsed() >= budget);
        if is_over || !wrong.is_empty() && !goes_on {
            break;
        }
        let relation = chosen(seed, number);
        let name = relation.name;
        let begun = Instant::now();
        let draw = Draw::new(seed, number, without(relation));
        let verdict = tried(&draw, relation);
        let (kind, what) = told(&verdict);
        *counts.entry((name, kind)).or_default() += 1;
        if tells_all || matches!(kind, "wrong" | "near-tie" | "refused") {
            let (seconds, features) = (begun.elapsed().as_secs_f64(), draw.features());
            println!(
                "{kind} seed {seed} training {number} {name} {seconds:.1} s: {what} {features:?}"
            );
        }
        if kind == "wrong" {
            wrong.push(number);
            println!("SHRUNK {}", shrunk(seed, number, relation, draw.features()));
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("seed {seed}: {counts:?} in {seconds:.0} s");
    assert!(
        wrong.is_empty(),
        "seed {seed}: trainings {wrong:?} are wrong"
    );
}

fn told(verdict: &Verdict) -> (&'static str, String) {
    match verdict {
        Verdict::Right(apart) => ("right", format!("{apart:.1e}")),
        Verdict::NearTie(what) => ("near-tie", what.clone()),
        Verdict::Skipped(what) => ("skipped", what.clone()),
        Verdict::Refused(what) => ("refused", what.clone()),
        Verdict::Wrong(what) => ("wrong", what.clone()),
    }
}

/// The features that a relation does not hold for, and those of `PHALANX_FUZZ_WITHOUT`.
fn without(relation: &Relation) -> BTreeSet<String> {
    let text = std::env::var("PHALANX_FUZZ_WITHOUT").unwrap_or_default();
    let features = text.split(',').chain(relation.without.iter().copied());
    features.map(str::to_owned).collect()
}

/// The relations in turn, from another one for each seed.
fn chosen(seed: u64, number: u64) -> &'static Relation {
    if let Ok(wanted) = std::env::var("PHALANX_FUZZ_RELATION") {
        let found = RELATIONS.iter().find(|relation| relation.name == wanted);
        return found.unwrap_or_else(|| panic!("there is no relation `{wanted}`"));
    }
    &RELATIONS[((seed.wrapping_add(number)) % RELATIONS.len() as u64) as usize]
}

fn tried(draw: &Draw, relation: &Relation) -> Verdict {
    let found = Case::drawn(draw).and_then(|case| (relation.check)(&case));
    found.unwrap_or_else(|error| Verdict::Skipped(error.to_string()))
}

/// The features that a wrong training cannot do without.
fn shrunk(seed: u64, number: u64, relation: &Relation, features: Vec<&'static str>) -> String {
    let mut left_out = without(relation);
    let mut last = String::new();
    for feature in features {
        left_out.insert(feature.to_owned());
        let draw = Draw::new(seed, number, left_out.clone());
        match tried(&draw, relation) {
            Verdict::Wrong(what) => last = format!("{:?}: {what}", draw.features()),
            _ => {
                left_out.remove(feature);
            }
        }
    }
    last
}
