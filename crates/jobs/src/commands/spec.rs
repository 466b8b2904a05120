//! The flags of `submit training` as values of a job file.

use std::fs;
use std::path::Path;

use phalanx_launch::spec::{Flag, Source};
use phalanx_yaml::{Key, Node, Position, Value};

use crate::args::SpecArgs;
use crate::failure::Failure;

/// `KEY=VALUE` texts, apart.
pub(super) fn pairs(flag: &str, texts: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for text in texts {
        let Some((name, value)) = text.split_once('=') else {
            return Err(Failure::usage(format!(
                "{flag} has {text:?}, expected KEY=VALUE"
            )));
        };
        if pairs.iter().any(|(before, _)| before == name) {
            let message = format!("{flag} has the key {name:?} twice; give it one value");
            return Err(Failure::usage(message));
        }
        pairs.push((name.to_owned(), value.to_owned()));
    }
    Ok(pairs)
}

/// The job file with the flags above it.
pub(super) fn source(args: &SpecArgs, file: Option<&Path>) -> Result<Source, Failure> {
    let mut source = match args.config.as_deref().or(file) {
        Some(path) => {
            let text = fs::read(path);
            let text = text.map_err(|error| {
                Failure::usage(format!(
                    "cannot read {}: {error}; check the path",
                    path.display()
                ))
            })?;
            Source::of_file(&path.display().to_string(), &text).map_err(Failure::usage)?
        }
        None => Source::empty(),
    };
    for flag in flags(args)? {
        source.set(flag);
    }
    Ok(source)
}

const INPUT: &str = "trainingInput";

fn flags(args: &SpecArgs) -> Result<Vec<Flag>, Failure> {
    let mut flags = Vec::new();
    texts(args, &mut flags);
    for (name, field, value) in [
        (
            "--master-accelerator",
            "masterConfig",
            &args.master_accelerator,
        ),
        (
            "--worker-accelerator",
            "workerConfig",
            &args.worker_accelerator,
        ),
        (
            "--parameter-server-accelerator",
            "parameterServerConfig",
            &args.parameter_server_accelerator,
        ),
    ] {
        if let Some(value) = value {
            let value = accelerator(name, value)?;
            flags.push(flag(name, vec![INPUT, field, "acceleratorConfig"], value));
        }
    }
    switches(args, &mut flags);
    if !args.labels.is_empty() {
        let labels = pairs("--labels", &args.labels)?;
        let entry = |(name, value)| (key(name), node(Value::Text(value)));
        let labels = Value::Map(labels.into_iter().map(entry).collect());
        flags.push(flag("--labels", vec!["labels"], labels));
    }
    let packages = args.package_path.iter().chain(&args.packages).cloned();
    let packages: Vec<String> = packages.collect();
    if !packages.is_empty() {
        let path = vec![INPUT, "packageUris"];
        let name = match args.package_path {
            Some(_) => "--package-path",
            None => "--packages",
        };
        flags.push(flag(name, path, list(&packages)));
    }
    if !args.user_args.is_empty() {
        let path = vec![INPUT, "args"];
        flags.push(flag("the arguments after --", path, list(&args.user_args)));
    }
    Ok(flags)
}

/// Flags that are on or off.
fn switches(args: &SpecArgs, flags: &mut Vec<Flag>) {
    for (name, path, value) in [
        (
            "--use-chief-in-tf-config",
            "useChiefInTfConfig",
            &args.use_chief_in_tf_config,
        ),
        (
            "--enable-web-access",
            "enableWebAccess",
            &args.enable_web_access,
        ),
    ] {
        if let Some(value) = value {
            let value = match value.to_lowercase().as_str() {
                "true" | "yes" => Value::Bool(true),
                "false" | "no" => Value::Bool(false),
                _ => Value::Text(value.clone()),
            };
            flags.push(flag(name, vec![INPUT, path], value));
        }
    }
}

/// Flags whose value is text under one key.
fn texts(args: &SpecArgs, flags: &mut Vec<Flag>) {
    let mut take = |name: &str, path: &[&'static str], value: &Option<String>| {
        if let Some(value) = value {
            flags.push(flag(name, path.to_vec(), Value::Text(value.clone())));
        }
    };
    let tier = args.scale_tier.as_deref().map(as_enum);
    take("--to", &["phalanx", "executor"], &args.to);
    take("--workers", &["phalanx", "workers"], &args.workers);
    for (name, field, value) in [
        ("--region", "region", &args.region),
        ("--job-dir", "jobDir", &args.job_dir),
        ("--scale-tier", "scaleTier", &tier),
        ("--module-name", "pythonModule", &args.module_name),
        ("--runtime-version", "runtimeVersion", &args.runtime_version),
        ("--python-version", "pythonVersion", &args.python_version),
        (
            "--master-machine-type",
            "masterType",
            &args.master_machine_type,
        ),
        (
            "--worker-machine-type",
            "workerType",
            &args.worker_machine_type,
        ),
        ("--worker-count", "workerCount", &args.worker_count),
        (
            "--parameter-server-machine-type",
            "parameterServerType",
            &args.parameter_server_machine_type,
        ),
        (
            "--parameter-server-count",
            "parameterServerCount",
            &args.parameter_server_count,
        ),
        ("--kms-key", "encryptionConfig", &args.kms_key),
        ("--kms-keyring", "encryptionConfig", &args.kms_keyring),
        ("--kms-location", "encryptionConfig", &args.kms_location),
        ("--kms-project", "encryptionConfig", &args.kms_project),
        ("--network", "network", &args.network),
        ("--service-account", "serviceAccount", &args.service_account),
    ] {
        take(name, &[INPUT, field], value);
    }
    for (name, field, value) in [
        ("--master-image-uri", "masterConfig", &args.master_image_uri),
        ("--worker-image-uri", "workerConfig", &args.worker_image_uri),
        (
            "--parameter-server-image-uri",
            "parameterServerConfig",
            &args.parameter_server_image_uri,
        ),
    ] {
        take(name, &[INPUT, field, "imageUri"], value);
    }
}

fn flag(name: &str, path: Vec<&'static str>, value: Value) -> Flag {
    let name = name.to_owned();
    Flag { name, path, value }
}

fn node(value: Value) -> Node {
    let at = Position::START;
    Node { value, at }
}

fn key(name: String) -> Key {
    let at = Position::START;
    Key { name, at }
}

fn list(texts: &[String]) -> Value {
    Value::List(
        texts
            .iter()
            .map(|text| node(Value::Text(text.clone())))
            .collect(),
    )
}

/// A word of `gcloud`'s, such as `basic-gpu`, as job files have it.
fn as_enum(word: &str) -> String {
    word.replace('-', "_").to_uppercase()
}

/// `type=NAME,count=N`.
fn accelerator(name: &str, text: &str) -> Result<Value, Failure> {
    let parts: Vec<String> = text.split(',').map(str::to_owned).collect();
    let pairs = pairs(name, &parts)?;
    let entry = |(name, value): (String, String)| {
        let value = match name.as_str() {
            "type" => Value::Text(as_enum(&value)),
            _ => Value::Text(value),
        };
        (key(name), node(value))
    };
    Ok(Value::Map(pairs.into_iter().map(entry).collect()))
}
