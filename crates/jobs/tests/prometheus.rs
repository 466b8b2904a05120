//! `/metrics`, read as strictly as Prometheus and `promtool check metrics` read it.

#![cfg(target_os = "linux")]

mod service;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Instant, SystemTime};

use service::{PATIENCE, Service, ask, daemon};

/// Names of labels with their values.
type Labels = Vec<(String, String)>;
/// The labels of a line, in their order, and its value.
type Series = BTreeMap<Labels, f64>;

/// A metric: its type and its lines.
#[derive(Debug)]
struct Metric {
    kind: String,
    series: Series,
}

/// What the service answers, by the names of the metrics.
struct Page(BTreeMap<String, Metric>);

impl Page {
    fn of(service: &Service) -> Self {
        let (address, token) = daemon(service);
        let token = format!("Bearer {token}");
        let headers = [("Host", address.as_str()), ("Authorization", &token)];
        let (status, answer) = ask(&address, "GET", "/metrics", &headers);
        assert_eq!(status, 200, "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let kind = "content-type: text/plain; version=0.0.4; charset=utf-8";
        assert!(head.to_lowercase().contains(kind), "{head}");
        Self(read(body).unwrap_or_else(|error| panic!("{error}\n{body}")))
    }

    /// The value of a line, if it is there.
    fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let labels: Vec<_> = labels.iter().map(own).collect();
        self.0.get(name)?.series.get(&labels).copied()
    }

    /// The value of a line of the job `demo`.
    fn of_demo(&self, name: &str) -> Option<f64> {
        self.get(&format!("phalanx_job_{name}"), &[("job_name", "demo")])
    }
}

/// Reads the text format 0.0.4, and refuses what Prometheus or its lint does.
fn read(text: &str) -> Result<BTreeMap<String, Metric>, String> {
    let mut all: BTreeMap<String, Metric> = BTreeMap::new();
    let mut current = String::new();
    let text = text.strip_suffix('\n').ok_or("no end of the last line")?;
    let mut lines = text.split('\n');
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, said) = help.split_once(' ').ok_or(format!("no help: {line}"))?;
            let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE "));
            let kind = kind.and_then(|kind| kind.strip_prefix(name)?.strip_prefix(' '));
            let kind = kind.ok_or(format!("no type after: {line}"))?.to_owned();
            check_names(name, &kind)?;
            if said.is_empty() {
                return Err(format!("{name} says nothing"));
            }
            current = name.to_owned();
            let series = BTreeMap::new();
            if all
                .insert(current.clone(), Metric { kind, series })
                .is_some()
            {
                return Err(format!("{name} comes twice"));
            }
            continue;
        }
        let (name, labels, value) = sample(line).ok_or(format!("no sample: {line}"))?;
        if name != current {
            return Err(format!("{line} is not below its type"));
        }
        let metric = all.get_mut(&current).unwrap();
        if metric.kind == "counter" && (value.is_nan() || value < 0.0) {
            return Err(format!("a counter of {value}: {line}"));
        }
        let names: BTreeSet<&String> = labels.iter().map(|(name, _)| name).collect();
        if names.len() != labels.len() || metric.series.insert(labels, value).is_some() {
            return Err(format!("twice the same: {line}"));
        }
    }
    match all.iter().find(|(_, metric)| metric.series.is_empty()) {
        Some((name, _)) => Err(format!("{name} has no line")),
        None => Ok(all),
    }
}

/// A name of letters, digits, `_` and, of metrics, `:`.
fn is_name(name: &str, more: &str) -> bool {
    let begins = |c: char| c.is_ascii_alphabetic() || c == '_' || more.contains(c);
    name.starts_with(begins) && name.chars().all(|c| begins(c) || c.is_ascii_digit())
}

/// The rules of `promtool`'s lint for names.
fn check_names(name: &str, kind: &str) -> Result<(), String> {
    if !is_name(name, ":") || name.contains(':') {
        return Err(format!("{name} is no name"));
    }
    if !["counter", "gauge"].contains(&kind) || name.contains(kind) {
        return Err(format!("{name} is a {kind}"));
    }
    if name.ends_with("_total") != (kind == "counter") {
        return Err(format!("{name} is a {kind}"));
    }
    let units = [
        "milliseconds",
        "ms",
        "minutes",
        "hours",
        "kilobytes",
        "kib",
        "mib",
        "megabytes",
        "percent",
    ];
    match name.split('_').find(|word| units.contains(word)) {
        Some(unit) => Err(format!("{name} is in {unit}, which is no base unit")),
        None => Ok(()),
    }
}

/// Name, labels and value of a line.
fn sample(line: &str) -> Option<(&str, Labels, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push((label.to_owned(), value));
            rest = after;
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None => break,
            }
        }
        rest = rest.strip_prefix('}')?;
    }
    let value = rest.strip_prefix(' ')?;
    let is_number = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
    let value = match value {
        "NaN" | "+Inf" | "-Inf" => value.parse().ok()?,
        number => number
            .parse()
            .ok()
            .filter(|_| number.chars().all(is_number))?,
    };
    let are_names = labels.iter().all(|(label, _)| is_name(label, ""));
    (is_name(name, ":") && are_names).then_some((name, labels, value))
}

/// A value up to its quote, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match letters.next()?.1 {
                'n' => '\n',
                letter @ ('"' | '\\') => letter,
                _ => return None,
            }),
            letter => value.push(letter),
        }
    }
    None
}

#[test]
fn what_prometheus_refuses_is_refused_here() {
    let head = "# HELP a_total A.\n# TYPE a_total counter\n";
    for right in ["a_total 1\n", "a_total{b=\"x\\\"\\\\\\n\",c=\"\"} 1e9\n"] {
        assert!(read(&format!("{head}{right}")).is_ok(), "{right}");
    }
    for wrong in [
        "",
        "a_total 1",
        "a_total -1\n",
        "a_total NaN\n",
        "a_total\n",
        "a_total 1 x\n",
        "b 1\n",
        "a_total 1\n\n",
        "a_total inf\n",
        "a_total{b=\"x\" 1\n",
        "a_total{b=\"\\x\"} 1\n",
        "a_total{2b=\"x\"} 1\n",
        "a_total 1\na_total 2\n",
        "a_total{b=\"x\",b=\"y\"} 1\n",
    ] {
        assert!(read(&format!("{head}{wrong}")).is_err(), "{wrong}");
    }
    for (name, kind) in [
        ("a", "counter"),
        ("a_total", "gauge"),
        ("a_ms", "gauge"),
        ("a-b", "gauge"),
    ] {
        let text = format!("# HELP {name} A.\n# TYPE {name} {kind}\n{name} 1\n");
        assert!(read(&text).is_err(), "{name}");
    }
}

/// In the third epoch.
const SPEED: &str = r#"{"step":9,"steps_per_second":4.0,"examples_per_second":128.0}
{"step":13,"steps_per_second":5.0,"examples_per_second":160.0}
"#;

const HISTORY: &str = r#"{"epoch":1,"steps":5,"throughput":{"steps_per_second":2.0,"examples_per_second":64.0},"logs":{"loss":2.5}}
{"epoch":2,"steps":5,"throughput":{"steps_per_second":4.0,"examples_per_second":128.0},"logs":{"loss":0.5,"val_loss":0.75}}
"#;

/// The page, once it holds something of a job.
fn page_with(service: &Service, holds: impl Fn(&Page) -> bool) -> Page {
    let start = Instant::now();
    loop {
        let page = Page::of(service);
        if holds(&page) {
            return page;
        }
        assert!(start.elapsed() < PATIENCE, "{:#?}", page.0);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// What is told of the job that runs; all of its times are after this one.
fn check_of_demo(page: &Page, since: f64) {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64() + 1.0;
    for (name, expected) in [
        ("tasks", 1.0),
        ("restarts_total", 1.0),
        ("task_restarts_total", 0.0),
        ("workers_lost", 0.0),
        ("epochs_total", 2.0),
        ("steps_total", 13.0),
        ("steps_per_second", 5.0),
        ("examples_per_second", 160.0),
    ] {
        assert_eq!(page.of_demo(name), Some(expected), "{name}");
    }
    for (data, expected) in [("training", 0.5), ("validation", 0.75)] {
        let labels = [("job_name", "demo"), ("data", data)];
        assert_eq!(page.get("phalanx_job_loss", &labels), Some(expected));
    }
    for name in ["start", "last_epoch", "checkpoint"] {
        let at = page.of_demo(&format!("{name}_timestamp_seconds")).unwrap();
        assert!(
            (since..now).contains(&at),
            "{name}: {at} of {since} to {now}"
        );
    }
    let queued = page
        .get("phalanx_queue_oldest_timestamp_seconds", &[])
        .unwrap();
    assert!((since..now).contains(&queued), "{queued}");
    let used = &page.0["phalanx_task_memory_bytes"].series;
    let memory = used.values().next().unwrap();
    assert!((1e4..1e9).contains(memory), "{used:?}");
}

/// What is told of one job that runs and one that waits.
fn check_of_all(page: &Page) {
    for (name, labels, expected) in [
        ("phalanx_jobs", &[("state", "RUNNING")][..], 1.0),
        ("phalanx_jobs", &[("state", "QUEUED")], 1.0),
        ("phalanx_queue_length", &[], 1.0),
        ("phalanx_tasks", &[("state", "RUNNING")], 1.0),
        ("phalanx_restarts_total", &[], 1.0),
    ] {
        assert_eq!(page.get(name, labels), Some(expected), "{name} {labels:?}");
    }
}

#[test]
fn jobs_are_told_to_prometheus_while_they_wait_run_and_end() {
    // There is room for one of them.
    let service = Service::with_cpus("prometheus", 1);
    let empty = Page::of(&service);
    assert_eq!(empty.get("phalanx_queue_length", &[]), Some(0.0));
    for state in ["QUEUED", "RUNNING", "FAILED", "CANCELLED"] {
        assert_eq!(empty.get("phalanx_jobs", &[("state", state)]), Some(0.0));
    }
    assert_eq!(empty.of_demo("tasks"), None);
    fs::write(service.folder.join("history.jsonl"), HISTORY).unwrap();
    fs::write(service.folder.join("speed.jsonl"), SPEED).unwrap();
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64() - 1.0;
    // The first start ends as one that was told to, and the second finds its results.
    let script = "[ $PHALANX_RESTART_COUNT = 0 ] && exit 143
        mkdir -p runs/demo/checkpoint; cp history.jsonl speed.jsonl runs/demo; echo {} >runs/demo/checkpoint/checkpoint.json
        exec sleep 1000";
    service.script("demo", &[], script);
    service.state("demo", "RUNNING");
    service.script("waits", &[], "true");
    let page = page_with(&service, |page| {
        // A process that has just ended, and of which nobody has asked how, has no memory.
        let memory = page.0.get("phalanx_task_memory_bytes");
        let mut memory = memory.iter().flat_map(|metric| metric.series.values());
        memory.any(|bytes| *bytes > 0.0) && page.of_demo("checkpoint_timestamp_seconds").is_some()
    });
    check_of_demo(&page, since);
    check_of_all(&page);
    service.ok(&["cancel", "demo"]);
    service.end("demo");
    service.end("waits");
    let page = page_with(&service, |page| page.of_demo("tasks").is_none());
    let over = page
        .0
        .keys()
        .filter(|name| name.starts_with("phalanx_job_"));
    assert_eq!(over.count(), 0);
    for state in ["CANCELLED", "SUCCEEDED"] {
        assert_eq!(page.get("phalanx_jobs", &[("state", state)]), Some(1.0));
    }
    assert_eq!(page.get("phalanx_restarts_total", &[]), Some(1.0));
}
