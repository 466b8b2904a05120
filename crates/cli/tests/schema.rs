//! The JSON Schema of training files and the tables of their page are those of the parser.
//!
//! `PHALANX_UPDATE_EXPECTED=1 cargo test -p phalanx-cli --test schema` writes the tables of `docs/train-yaml.md` anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use phalanx_cli::config::{self, document, json_schema::schema, parse_bytes, reference};
use serde_json::{Value, json};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// As much of JSON Schema as the schema uses: what is wrong, if anything.
fn invalid(root: &Value, schema: &Value, value: &Value) -> Option<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(&reference[1..]).expect("a definition");
        return invalid(root, target, value);
    }
    if let Some(words) = schema["enum"].as_array() {
        return (!words.contains(value)).then(|| format!("{value} is none of {words:?}"));
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let wrong = any.iter().map(|one| invalid(root, one, value));
        let wrong: Option<Vec<String>> = wrong.collect();
        if wrong.is_some() || schema["type"].is_null() {
            return wrong.map(|wrong| wrong.join("; "));
        }
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        one => vec![one.clone()],
    };
    if !types
        .iter()
        .any(|kind| is_of(kind.as_str().unwrap_or(""), value))
    {
        return Some(format!("{value} is not of type {types:?}"));
    }
    out_of_range(schema, value)
        .or_else(|| wrong_item(root, schema, value))
        .or_else(|| wrong_member(root, schema, value))
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => panic!("type {kind}"),
    }
}

fn out_of_range(schema: &Value, value: &Value) -> Option<String> {
    let number = value.as_f64()?;
    let limit = |name: &str| schema[name].as_f64();
    let wrong = limit("minimum").is_some_and(|limit| number < limit)
        || limit("maximum").is_some_and(|limit| number > limit)
        || limit("exclusiveMinimum").is_some_and(|limit| number <= limit)
        || limit("exclusiveMaximum").is_some_and(|limit| number >= limit);
    wrong.then(|| format!("{value} is out of range"))
}

fn wrong_item(root: &Value, schema: &Value, value: &Value) -> Option<String> {
    let items = value.as_array()?;
    let count = items.len() as u64;
    let least = schema["minItems"].as_u64().unwrap_or(0);
    if count < least || schema["maxItems"].as_u64().is_some_and(|most| count > most) {
        return Some(format!("{count} items"));
    }
    items
        .iter()
        .find_map(|item| invalid(root, &schema["items"], item))
}

fn wrong_member(root: &Value, schema: &Value, value: &Value) -> Option<String> {
    let members = value.as_object()?;
    let count = members.len() as u64;
    let least = schema["minProperties"].as_u64().unwrap_or(0);
    if count < least
        || schema["maxProperties"]
            .as_u64()
            .is_some_and(|most| count > most)
    {
        return Some(format!("{count} members"));
    }
    let required = schema["required"].as_array().into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        if !members.contains_key(name) {
            return Some(format!("{name} is missing"));
        }
    }
    members.iter().find_map(|(name, value)| {
        match (
            schema["properties"].get(name),
            &schema["additionalProperties"],
        ) {
            (Some(property), _) => {
                invalid(root, property, value).map(|why| format!("{name}: {why}"))
            }
            (None, Value::Bool(false)) => Some(format!("{name} is unknown")),
            (None, Value::Null) => None,
            (None, more) => invalid(root, more, value),
        }
    })
}

fn check(text: &str) -> Option<String> {
    static SCHEMA: LazyLock<Value> = LazyLock::new(schema);
    invalid(&SCHEMA, &SCHEMA, &document(text).unwrap())
}

/// The training files of the repository that people read.
fn examples() -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(repository().join("examples")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<(PathBuf, String)> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
        .map(|path| (path.clone(), fs::read_to_string(&path).unwrap()))
        .collect();
    for path in ["docs/train-yaml.md", "docs/callbacks.md"] {
        let page = fs::read_to_string(repository().join(path)).unwrap();
        let (_, example) = page.split_once("```yaml\n").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        files.push((path.into(), example.to_owned()));
    }
    files
}

#[test]
fn every_example_is_valid() {
    let files = examples();
    assert!(files.len() >= 3);
    for (path, text) in files {
        assert_eq!(check(&text), None, "{}", path.display());
        parse_bytes(text.as_bytes(), &path).unwrap_or_else(|problems| panic!("{problems}"));
    }
}

#[test]
fn what_the_schema_refuses_the_parser_refuses() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/malformed/yaml");
    let mut refused = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap_or_default();
        // These are refused by the parser, each of them; the schema sees most.
        if document(&text).is_ok() && check(&text).is_some() {
            refused += 1;
        }
    }
    assert!(refused >= 120, "{refused}");
}

#[test]
fn a_typo_a_wrong_type_and_a_wrong_limit_are_refused() {
    let file = |change: fn(&mut Value)| {
        let mut file = json!({
            "data": {"csv": "a.csv", "test": {"last": 3}},
            "model": ["flatten", {"dense": {"units": 2, "activation": {"elu": {"alpha": 1}}}}],
            "optimizer": {"adam": {"learning_rate": {"cosine_decay": {"initial_learning_rate": 0.1, "decay_steps": 9}}}},
            "loss": "huber", "metrics": [{"auc": {"curve": "PR"}}],
            "fit": {"epochs": 3, "validation": {"split": 0.1}},
            "strategy": {"mirrored": {"devices": "cpu:2", "reduction": {"wire": "bf16"}}},
        });
        change(&mut file);
        let schema = schema();
        invalid(&schema, &schema, &file)
    };
    assert_eq!(file(|_| {}), None);
    let of_keras = |file: &mut Value| {
        file["model"] = json!("m.keras");
        file.as_object_mut().unwrap().remove("loss");
    };
    assert_eq!(file(of_keras), None);
    let changes: [fn(&mut Value); 10] = [
        |file| {
            file.as_object_mut().unwrap().remove("loss");
        },
        |file| file["fits"] = json!({}),
        |file| file["fit"]["epochs"] = json!(0),
        |file| file["fit"]["validation"] = json!({"split": 1}),
        |file| file["data"]["test"]["first"] = json!(3),
        |file| file["model"][1]["dense"]["units"] = json!("many"),
        |file| file["model"] = json!(["dense"]),
        |file| file["model"][1]["dense"]["unit"] = json!(3),
        |file| file["loss"] = json!("hubert"),
        |file| file["strategy"]["mirrored"]["reduction"]["wire"] = json!("f8"),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        assert!(file(change).is_some(), "{index}");
    }
}

#[test]
fn the_page_has_the_tables_of_the_parser() {
    let path = repository().join("docs/train-yaml.md");
    let page = fs::read_to_string(&path).unwrap();
    let written = reference::with_tables(&page).unwrap();
    if std::env::var_os("PHALANX_UPDATE_EXPECTED").is_some() {
        fs::write(&path, &written).unwrap();
        return;
    }
    let different = page
        .lines()
        .zip(written.lines())
        .find(|(old, new)| old != new);
    assert!(
        page == written,
        "run PHALANX_UPDATE_EXPECTED=1 cargo test -p phalanx-cli --test schema, and read the difference: {different:?}"
    );
    for family in phalanx::config::Family::ALL {
        for component in phalanx::components::components(family) {
            let name = format!("**`{}`**", component.name);
            assert!(page.contains(&name), "{name} is not on the page");
        }
    }
}

#[test]
fn a_default_means_the_same_as_leaving_the_key_out() {
    let read = |text: &str| {
        let config = parse_bytes(text.as_bytes(), Path::new("a.yaml"));
        config.unwrap_or_else(|problems| panic!("{text}: {problems}"))
    };
    let schema = schema();
    let with = |section: &str, line: &str| {
        let (data, fit) = match section {
            "data" => (format!("csv: a.csv, {line}"), String::new()),
            "fit" => ("csv: a.csv".to_owned(), line.to_owned()),
            _ => (
                format!("image_folder: a, image_size: [8, 8], {line}"),
                String::new(),
            ),
        };
        read(&format!(
            "data: {{{data}}}\nfit: {{{fit}}}\nmodel: [flatten]\noptimizer: sgd\nloss: huber\n"
        ))
    };
    let kinds = &schema["properties"]["data"]["anyOf"];
    let sections = [
        ("data", &kinds[0]),
        ("images", &kinds[1]),
        ("fit", &schema["properties"]["fit"]),
    ];
    let mut defaults = 0;
    for (section, schema) in sections {
        let plain = with(section, "");
        for (name, field) in schema["properties"].as_object().unwrap() {
            let Some(default) = field.get("default") else {
                continue;
            };
            defaults += 1;
            let given = with(section, &format!("{name}: {default}"));
            assert_eq!(shown(&plain), shown(&given), "{name}");
        }
    }
    assert!(defaults >= 10, "{defaults}");
}

/// What was read, without where and how it was written.
fn shown(config: &config::TrainConfig) -> String {
    let text = format!("{:?} {:?}", config.data, config.fit);
    let mut plain = String::new();
    let mut parts = text.split("Position {");
    plain.push_str(parts.next().unwrap_or(""));
    for part in parts {
        plain.push_str(part.split_once('}').map_or("", |(_, rest)| rest));
    }
    plain
}
