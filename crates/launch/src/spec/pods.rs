//! Which nodes pods may run on, and by whose right their images are pulled: `nodeSelector`, `tolerations` and `imagePullSecrets`.

use std::collections::BTreeMap;

use phalanx_yaml::{Value, shown};
use serde::Serialize;

use super::fields::{Fields, Notes};
use super::phalanx_keys::is_object_name;

const TOLERATION: [&str; 5] = ["key", "operator", "value", "effect", "tolerationSeconds"];
const OPERATORS: [&str; 2] = ["Equal", "Exists"];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// A taint of nodes that keeps no pod of the job away, as Kubernetes has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// The taint's key; any where it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `Equal` or `Exists`.
    pub operator: &'static str,
    /// The taint's value, for `Equal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`; any where it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<&'static str>,
    /// For how many seconds a pod stays on a node with such a taint; for ever where it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// Labels that nodes must have.
pub(super) fn node_selector(fields: &Fields<'_>, notes: &mut Notes) -> BTreeMap<String, String> {
    let labels = fields.map("nodeSelector", notes);
    for (key, value) in &labels {
        if !is_label_key(key) || !is_label_value(value) {
            notes.wrong(
                fields.place("nodeSelector"),
                format!(
                    "nodeSelector has {}: {}, which is no label in Kubernetes",
                    shown(key),
                    shown(value)
                ),
                "write it as the nodes have it, such as cloud.google.com/gke-accelerator: nvidia-l4",
            );
        }
    }
    labels
}

/// The secrets by which images are pulled.
pub(super) fn pull_secrets(fields: &Fields<'_>, notes: &mut Notes) -> Vec<String> {
    let names = fields.texts("imagePullSecrets", notes);
    for name in names.iter().filter(|name| !is_object_name(name, true)) {
        notes.wrong(
            fields.place("imagePullSecrets"),
            format!(
                "imagePullSecrets has {}, which is no name in Kubernetes",
                shown(name)
            ),
            "write the names of secrets, such as [registry]",
        );
    }
    names
}

/// Taints of nodes that do not keep pods away.
pub(super) fn tolerations(fields: &Fields<'_>, notes: &mut Notes) -> Vec<Toleration> {
    let Some(node) = fields.get("tolerations") else {
        return Vec::new();
    };
    let Value::List(items) = &node.value else {
        notes.wrong(
            node.at,
            format!(
                "phalanx.kubernetes.tolerations is {}, expected a list",
                node.describe()
            ),
            "write it as [{key: nvidia.com/gpu, operator: Exists}]",
        );
        return Vec::new();
    };
    let one = |(index, item)| {
        let path = format!("phalanx.kubernetes.tolerations[{index}]");
        toleration(&Fields::of(item, &path, &TOLERATION, notes), notes)
    };
    items.iter().enumerate().map(one).collect()
}

fn toleration(fields: &Fields<'_>, notes: &mut Notes) -> Toleration {
    let toleration = Toleration {
        key: fields.text("key", notes),
        operator: fields
            .word("operator", &OPERATORS, notes)
            .unwrap_or("Equal"),
        value: fields.text("value", notes),
        effect: fields.word("effect", &EFFECTS, notes),
        toleration_seconds: fields.whole("tolerationSeconds", 0, i64::MAX, notes),
    };
    if let Some((message, next)) = mistake(&toleration) {
        notes.wrong(fields.at(), format!("a toleration {message}"), next);
    }
    toleration
}

/// What Kubernetes would refuse, and what to do.
fn mistake(one: &Toleration) -> Option<(String, &'static str)> {
    let exists = one.operator == "Exists";
    let key = one.key.as_deref().filter(|key| !is_label_key(key));
    let value = one.value.as_deref().filter(|value| !is_label_value(value));
    if let Some(text) = key.or(value) {
        let message = format!("has {}, which no taint in Kubernetes has", shown(text));
        return Some((message, "write it as the nodes have it"));
    }
    let fixed = match (&one.key, &one.value) {
        (None, _) if !exists => Some((
            "without a key has the operator Equal",
            "add a key, or operator: Exists, which takes all",
        )),
        (_, Some(_)) if exists => Some((
            "with the operator Exists has a value",
            "remove the value, or write operator: Equal",
        )),
        _ if one.toleration_seconds.is_some() && one.effect != Some("NoExecute") => Some((
            "has tolerationSeconds, which count for NoExecute alone",
            "add effect: NoExecute, or remove them",
        )),
        _ => None,
    };
    fixed.map(|(message, next)| (message.to_owned(), next))
}

/// Whether a text is the key of a label or a taint: a name, before which a domain may stand.
fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => is_object_name(domain, true) && is_label_key_name(name),
        None => is_label_key_name(text),
    }
}

fn is_label_key_name(name: &str) -> bool {
    !name.is_empty() && is_label_value(name)
}

/// Whether a text is the value of a label or a taint.
fn is_label_value(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text.chars().all(plain)
        && edge(text.chars().next())
        && edge(text.chars().next_back())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use crate::spec::{Source, Spec};

    fn read(key: &str, value: &Json) -> Result<Spec, String> {
        let ours = json!({"program": "echo", "executor": "kubernetes", "kubernetes": {"image": "i", (key): value}});
        Spec::read(&Source::of_json(&json!({ "phalanx": ours })))
    }

    #[test]
    fn nodes_and_pull_secrets_have_names_of_kubernetes() {
        for (key, value, is_right) in [
            (
                "nodeSelector",
                json!({"cloud.google.com/gke-accelerator": "nvidia-l4"}),
                true,
            ),
            ("nodeSelector", json!({"spot": true, "Zone_1": ""}), true),
            ("nodeSelector", json!({"a b": "x"}), false),
            ("nodeSelector", json!({"Upper.Case/x": "x"}), false),
            ("nodeSelector", json!({"x/y/z": "x"}), false),
            ("nodeSelector", json!({"x/": "x"}), false),
            ("nodeSelector", json!({"x": "-y"}), false),
            ("nodeSelector", json!({"x": "a".repeat(64)}), false),
            ("nodeSelector", json!(["x"]), false),
            ("imagePullSecrets", json!(["registry", "other.one"]), true),
            ("imagePullSecrets", json!(["Registry"]), false),
            ("imagePullSecrets", json!("registry"), false),
        ] {
            let read = read(key, &value);
            assert_eq!(read.is_ok(), is_right, "{key} {value}: {read:?}");
            assert!(read.is_ok() || read.unwrap_err().contains(key), "{key}");
        }
    }

    #[test]
    fn tolerations_are_what_kubernetes_takes() {
        for (toleration, said) in [
            (
                json!({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}),
                "",
            ),
            (json!({"operator": "Exists"}), ""),
            (json!({"key": "spot", "value": true}), ""),
            (
                json!({"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}),
                "",
            ),
            (
                json!({"key": "k", "operator": "In"}),
                "expected one of Equal, Exists",
            ),
            (
                json!({"key": "k", "effect": "NoRun"}),
                "expected one of NoSchedule",
            ),
            (
                json!({"value": "x"}),
                "without a key has the operator Equal",
            ),
            (
                json!({"key": "k", "operator": "Exists", "value": "x"}),
                "with the operator Exists has a value",
            ),
            (
                json!({"key": "k", "tolerationSeconds": 60}),
                "which count for NoExecute alone",
            ),
            (json!({"key": "a b"}), "which no taint in Kubernetes has"),
            (
                json!({"key": "k", "taint": "x"}),
                "tolerations[0] has no field",
            ),
            (json!("k"), "tolerations[0] is"),
        ] {
            let read = read("tolerations", &json!([toleration]));
            match said {
                "" => assert!(read.is_ok(), "{toleration}: {read:?}"),
                said => assert!(read.unwrap_err().contains(said), "{toleration}"),
            }
        }
        let why = read("tolerations", &json!({"key": "k"})).unwrap_err();
        assert!(
            why.contains("tolerations is a mapping, expected a list"),
            "{why}"
        );
    }
}
