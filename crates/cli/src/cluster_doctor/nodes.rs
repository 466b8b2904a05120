//! What the workers say of themselves, and what of it must be equal.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::doctor::Check;

/// What a worker says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeFacts {
    /// The name of its machine.
    pub(crate) host: String,
    /// Its clock, in seconds since 1970, when all have met.
    pub(crate) clock: f64,
    /// What must be equal: what it is, and a hash or text.
    pub(crate) equal: BTreeMap<String, String>,
    /// Folders that should be the same for all, and whether this worker sees in them what worker 0 has written.
    pub(crate) shared: BTreeMap<String, bool>,
}

/// A clock that is further off is not right.
const CLOCK_WRONG: f64 = 30.0;
/// A clock that is further off mixes up the logs of several machines.
const CLOCK_OFF: f64 = 2.0;

fn named(worker: usize, all: &[NodeFacts]) -> String {
    format!("worker {worker} ({})", all[worker].host)
}

/// Whether the clocks agree; `met` is how long it took until all had met, by which they may seem to differ.
pub(crate) fn clocks(all: &[NodeFacts], met: Duration) -> Check {
    const NAME: &str = "clock";
    let mut sorted: Vec<f64> = all.iter().map(|facts| facts.clock).collect();
    sorted.sort_by(f64::total_cmp);
    // Of two, worker 0's counts.
    let median = match all.len() {
        2 => all[0].clock,
        count => sorted[count / 2],
    };
    let apart: Vec<f64> = all.iter().map(|facts| facts.clock - median).collect();
    let furthest = (0..all.len()).max_by(|a, b| apart[*a].abs().total_cmp(&apart[*b].abs()));
    let worker = furthest.unwrap_or_default();
    let off = apart[worker].abs() - met.as_secs_f64();
    let direction = if apart[worker] > 0.0 {
        "ahead of"
    } else {
        "behind"
    };
    let found = format!(
        "{} is {:.1} s {direction} the others",
        named(worker, all),
        apart[worker].abs()
    );
    let next = format!(
        "set the clock of {} (NTP, chrony): training does not depend on it, but logs, certificates and files' times do",
        all[worker].host
    );
    if !off.is_finite() || off > CLOCK_WRONG {
        Check::fail(NAME, found, next)
    } else if off > CLOCK_OFF {
        Check::warn(NAME, found, next)
    } else {
        Check::ok(NAME, "all agree")
    }
}

/// Whether all have the same of everything that must be equal.
pub(crate) fn equality(all: &[NodeFacts]) -> Vec<Check> {
    const NAME: &str = "versions";
    let names: Vec<&String> = all.iter().flat_map(|facts| facts.equal.keys()).collect();
    let mut checks = Vec::new();
    let mut seen: Vec<&String> = Vec::new();
    for name in names {
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        checks.extend(difference(name, all));
    }
    if checks.is_empty() {
        let list: Vec<&str> = seen.iter().map(|name| name.as_str()).collect();
        checks.push(Check::ok(
            NAME,
            format!("equal on all {} workers: {}", all.len(), list.join(", ")),
        ));
    }
    checks
}

/// The first worker that has another of something than most (on a tie, than worker 0).
fn difference(name: &str, all: &[NodeFacts]) -> Option<Check> {
    let of = |facts: &NodeFacts| {
        facts
            .equal
            .get(name)
            .cloned()
            .unwrap_or_else(|| "none".into())
    };
    let values: Vec<String> = all.iter().map(of).collect();
    let count = |value: &String| values.iter().filter(|other| *other == value).count();
    // The last of equal maxima is returned, hence in reverse.
    let expected = values.iter().rev().max_by_key(|value| count(value))?;
    let others: Vec<usize> = (0..values.len())
        .filter(|at| values[*at] != *expected)
        .collect();
    let first = *others.first()?;
    let list: Vec<String> = others.iter().map(|worker| named(*worker, all)).collect();
    Some(Check::fail(
        "versions",
        format!(
            "{} has another {name}: expected {expected}, got {}",
            list.join(", "),
            values[first]
        ),
        format!("install the same {name} on all machines"),
    ))
}

/// Whether the folders that should be the same for all are.
pub(crate) fn sharing(all: &[NodeFacts], must: &[String]) -> Vec<Check> {
    let one = |folder: &String| {
        let sees = |worker: &usize| all[*worker].shared.get(folder) == Some(&true);
        let (seen, not): (Vec<usize>, Vec<usize>) = (0..all.len()).partition(sees);
        let list = |workers: &[usize]| {
            workers
                .iter()
                .map(|worker| named(*worker, all))
                .collect::<Vec<_>>()
                .join(", ")
        };
        match (not.is_empty(), must.contains(folder)) {
            (true, _) => Check::ok("shared", format!("{folder} is the same for all")),
            (false, true) => Check::fail(
                "shared",
                format!(
                    "in {folder} these do not see what worker 0 has written: {}",
                    list(&not)
                ),
                "mount the same file system there on all machines",
            ),
            (false, false) if seen.len() <= 1 => {
                Check::ok("shared", format!("{folder} is each machine's own"))
            }
            (false, false) => Check::ok(
                "shared",
                format!("{folder} is shared by {} alone", list(&seen)),
            ),
        }
    };
    all[0].shared.keys().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    fn facts(host: &str) -> NodeFacts {
        NodeFacts {
            host: host.into(),
            clock: 1_000_000.0,
            equal: [("program".to_owned(), "aa".to_owned())].into(),
            shared: [("/cache".to_owned(), true)].into(),
        }
    }

    #[test]
    fn equal_nodes_are_fine() {
        let all = [facts("a"), facts("b"), facts("c")];
        let mut checks = vec![clocks(&all, Duration::ZERO)];
        checks.extend(equality(&all));
        checks.extend(sharing(&all, &["/cache".into()]));
        assert_eq!(checks.len(), 3);
        assert!(
            checks.iter().all(|check| check.state == State::Ok),
            "{checks:?}"
        );
    }

    #[test]
    fn the_one_that_differs_is_named() {
        let mut all = [facts("a"), facts("b"), facts("c")];
        all[1].clock += 3600.0;
        all[2].equal.insert("program".into(), "bb".into());
        all[1].shared.insert("/cache".into(), false);
        let clock = clocks(&all, Duration::from_secs(1));
        assert!(
            clock.is_failure() && clock.found.contains("worker 1 (b) is 3600.0 s ahead"),
            "{clock}"
        );
        let [program] = &equality(&all)[..] else {
            panic!()
        };
        assert!(
            program.is_failure()
                && program
                    .found
                    .starts_with("worker 2 (c) has another program: expected aa, got bb"),
            "{program}"
        );
        let [shared] = &sharing(&all, &["/cache".into()])[..] else {
            panic!()
        };
        assert!(
            shared.is_failure() && shared.found.ends_with("written: worker 1 (b)"),
            "{shared}"
        );
        assert!(!sharing(&all, &[])[0].is_failure());
    }

    #[test]
    fn a_clock_that_is_no_number_or_a_little_off_is_not_right() {
        let mut all = [facts("a"), facts("b")];
        all[1].clock -= 5.0;
        assert!(matches!(clocks(&all, Duration::ZERO).state, State::Warn(_)));
        assert_eq!(clocks(&all, Duration::from_secs(4)).state, State::Ok);
        all[1].clock = f64::NAN;
        assert!(clocks(&all, Duration::ZERO).is_failure());
    }
}
