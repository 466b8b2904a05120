//! TF_CONFIG against what TensorFlow's own resolver reads (`tests/golden/tensorflow/make_tf_config.py`), and its mistakes.

use phalanx_cluster::tf_config::{self, TfConfig};
use phalanx_cluster::{Address, ClusterSpec, Task, TaskKind, Variables, membership_from_env};
use serde_json::Value;

const GOLDEN: &str = include_str!("../../../tests/golden/tensorflow/tf_config.json");

fn golden() -> Vec<(String, Value)> {
    let rows: Vec<Value> = serde_json::from_str(GOLDEN).unwrap();
    let row = |row: &Value| {
        (
            row["text"].as_str().unwrap().to_owned(),
            row["read"].clone(),
        )
    };
    rows.iter().map(row).collect()
}

/// A TF_CONFIG in the form that the script prints.
fn as_tensorflow_reads(config: &TfConfig) -> Value {
    let mut cluster = serde_json::json!({});
    for (task, address) in config.cluster.tasks() {
        let kind = &mut cluster[task.kind.name()];
        if kind.is_null() {
            *kind = serde_json::json!({});
        }
        kind[task.index.to_string()] = address.to_string().into();
    }
    serde_json::json!({"cluster": cluster, "type": config.task.kind.name(), "index": config.task.index})
}

#[test]
fn what_tensorflow_reads_we_read() {
    for (text, read) in golden() {
        match tf_config::parse(&text).unwrap() {
            Some(config) => assert_eq!(as_tensorflow_reads(&config), read, "{text}"),
            None => assert_eq!(read["cluster"], serde_json::json!({}), "{text}"),
        }
    }
}

#[test]
fn what_we_write_tensorflow_reads() {
    let rows = golden();
    for (text, read) in &rows {
        let Some(config) = tf_config::parse(text).unwrap() else {
            continue;
        };
        let written = tf_config::write(&config.cluster, config.task);
        let row = rows.iter().find(|(text, _)| *text == written);
        let (_, read_back) = row.unwrap_or_else(|| panic!("add to tf_config.json: {written}"));
        assert_eq!(read_back, read, "{text}");
    }
}

/// The memberships of texts: kind, index, workers, worker, rendezvous, chief.
#[test]
fn tasks_are_numbered_as_tensorflow_numbers_them() {
    let cluster = r#""cluster":{"chief":["c:1"],"worker":["a:1","a:2","b:1"],"ps":["p:1"]}"#;
    for (task, workers, worker, chief, local) in [
        ("chief:0", 4, 0, true, Some((0, 1))),
        ("worker:0", 4, 1, false, Some((0, 2))),
        ("worker:1", 4, 2, false, Some((1, 2))),
        ("worker:2", 4, 3, false, Some((0, 1))),
        ("ps:0", 4, 0, false, None),
        ("evaluator:0", 4, 0, false, None),
    ] {
        let (kind, index) = task.split_once(':').unwrap();
        let text = format!(r#"{{{cluster},"task":{{"type":"{kind}","index":{index}}}}}"#);
        let membership = membership_of(&text).unwrap().unwrap();
        assert_eq!(membership.task.to_string(), task);
        let numbers = (membership.workers, membership.worker, membership.is_chief());
        assert_eq!(numbers, (workers, worker, chief), "{task}");
        assert_eq!(membership.rendezvous.to_string(), "c:1");
        assert_eq!(
            membership.local.map(|local| (local.rank, local.size)),
            local,
            "{task}"
        );
        let addresses = membership.addresses.unwrap();
        assert_eq!(addresses[3], Address::new("b", 1));
    }
}

#[test]
fn without_a_chief_worker_0_is_it() {
    let text = r#"{"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":0}}"#;
    let membership = membership_of(text).unwrap().unwrap();
    assert!(membership.is_chief() && membership.workers == 2);
}

#[test]
fn master_is_the_chief_and_a_lone_task_needs_no_name() {
    let text =
        r#"{"cluster":{"master":["c:1"],"worker":["a:1"]},"task":{"type":"master","index":0}}"#;
    let config = tf_config::parse(text).unwrap().unwrap();
    assert_eq!(config.task, Task::new(TaskKind::Chief, 0));
    assert_eq!(config.cluster.workers(), 2);
    assert_eq!(config.notes.len(), 1, "{:?}", config.notes);

    let alone = r#"{"cluster":{"worker":["worker0:2222"]}}"#;
    assert_eq!(membership_of(alone).unwrap().unwrap().workers, 1);
}

#[test]
fn nothing_is_no_cluster() {
    for text in [
        "",
        " ",
        "{}",
        r#"{"cluster":{}}"#,
        r#"{"task":{"type":"worker","index":0}}"#,
    ] {
        assert_eq!(membership_of(text), Ok(None), "{text:?}");
    }
    assert_eq!(membership_from_env(&Variables::default()), Ok(None));
}

/// Mistakes in clusters, and what the error says.
const CLUSTERS: [(&str, [&str; 2]); 18] = [
    ("{'cluster': {}}", ["line 1, column 2", "double quotes"]),
    (
        "{\"cluster\": {\"worker\": [\"a:1\",]}}",
        ["line 1, column 31", "JSON library"],
    ),
    ("[1]", ["an object in braces", "a list"]),
    (r#"{"cluster":["a:1"]}"#, [".cluster", "a list"]),
    (
        r#"{"cluster":{"workers":["a:1"]}}"#,
        ["\"workers\"", "chief, worker, ps or evaluator"],
    ),
    (
        r#"{"cluster":{"123456":["a:1"]},"task":{"type":123456,"index":0}}"#,
        ["\"123456\"", "chief, worker"],
    ),
    (
        r#"{"cluster":{"worker":"a:1"}}"#,
        [".cluster.worker:", "a list of addresses"],
    ),
    (
        r#"{"cluster":{"worker":["a"]}}"#,
        [".cluster.worker[0]", "the port is missing"],
    ),
    (
        r#"{"cluster":{"worker":["a:1","b:port"]}}"#,
        [".cluster.worker[1]", "1 to 65535"],
    ),
    (
        r#"{"cluster":{"worker":[2222]}}"#,
        [".cluster.worker[0]", "got 2222"],
    ),
    (
        r#"{"cluster":{"worker":["a:1","a:1"]}}"#,
        [".cluster.worker[0]=a:1", ".cluster.worker[1]=a:1"],
    ),
    (
        r#"{"cluster":{"worker":["a:1"],"ps":["a:1"]}}"#,
        ["=a:1", "an address of its own"],
    ),
    (
        r#"{"cluster":{"chief":["a:1","b:1"]}}"#,
        ["at most one", "2 of them"],
    ),
    (
        r#"{"cluster":{"chief":["a:1"],"master":["b:1"]}}"#,
        ["another chief:0", "remove one"],
    ),
    (
        r#"{"cluster":{"evaluator":["a:1","b:1"]}}"#,
        ["at most one", ".cluster.evaluator"],
    ),
    (
        r#"{"cluster":{"worker":{"first":"a:1"}}}"#,
        ["\"first\"", "the number of a task"],
    ),
    (
        r#"{"cluster":{"worker":{"-1":"a:1"}}}"#,
        ["\"-1\"", "the number of a task"],
    ),
    (
        r#"{"cluster":{"worker":{"1":"b:1"}},"task":{"type":"worker","index":1}}"#,
        ["the address of worker:0", "workers meet there"],
    ),
];

/// Each mistake names its place, what was expected, what is there.
#[test]
fn mistakes_say_where_and_what_to_do() {
    for (text, parts) in CLUSTERS {
        check_mistake(text, parts);
    }
}

#[test]
fn mistakes_in_tasks_say_where_and_what_to_do() {
    let two = r#""cluster":{"worker":["a:1","b:1"]}"#;
    for (text, parts) in [
        (
            format!("{{{two}}}"),
            [".task: expected which", "got nothing"],
        ),
        (
            format!(r#"{{{two},"task":"worker"}}"#),
            [".task: expected an object", "\"worker\""],
        ),
        (
            format!(r#"{{{two},"task":{{"type":"worker"}}}}"#),
            [".task.index", "got nothing"],
        ),
        (
            format!(r#"{{{two},"task":{{"index":0}}}}"#),
            [".task.type", "got nothing"],
        ),
        (
            format!(r#"{{{two},"task":{{"type":"worker","index":-1}}}}"#),
            [".task.index", "got -1"],
        ),
        (
            format!(r#"{{{two},"task":{{"type":"worker","index":1.5}}}}"#),
            [".task.index", "got 1.5"],
        ),
        (
            format!(r#"{{{two},"task":{{"type":"worker","index":2}}}}"#),
            ["got worker:2", "(worker:0, worker:1)"],
        ),
        (
            format!(r#"{{{two},"task":{{"type":"chief","index":0}}}}"#),
            ["got chief:0", "(worker:0, worker:1)"],
        ),
    ] {
        check_mistake(&text, parts);
    }
}

fn check_mistake(text: &str, parts: [&str; 2]) {
    let error = membership_of(text).unwrap_err().to_string();
    assert!(error.contains("TF_CONFIG"), "{error}");
    for part in parts {
        assert!(error.contains(part), "no {part:?} in {error:?}, of {text}");
    }
}

#[test]
fn what_has_no_effect_is_noted() {
    let text = r#"{"cluster":{"worker":["a:1"]},"rpc_layer":"grpc","clutser":1}"#;
    let notes = tf_config::parse(text).unwrap().unwrap().notes.join("\n");
    assert!(
        notes.contains("\"rpc_layer\" is TensorFlow's own"),
        "{notes}"
    );
    assert!(
        notes.contains("\"clutser\", which has no meaning"),
        "{notes}"
    );
}

#[test]
fn workers_with_other_lists_are_of_other_jobs() {
    let job = |cluster: ClusterSpec, index| {
        let text = tf_config::write(&cluster, Task::new(TaskKind::Worker, index));
        membership_of(&text).unwrap().unwrap().job
    };
    let cluster = |last| ClusterSpec::of_workers([Address::new("a", 1), Address::new(last, 1)]);
    assert_eq!(job(cluster("b"), 0), job(cluster("b"), 1));
    assert_ne!(job(cluster("b"), 0), job(cluster("c"), 0));
}

fn membership_of(
    text: &str,
) -> Result<Option<phalanx_cluster::Membership>, phalanx_cluster::EnvError> {
    membership_from_env(&[("TF_CONFIG", text)].into_iter().collect())
}
