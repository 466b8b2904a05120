//! Jobs of images, by engines of the test that write down what they are asked for and run it without a container.

#![cfg(target_os = "linux")]

mod service;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use service::Service;

/// An engine as far as the tests need one: its options up to the image, the entry point, the variables that it passes on.
const ENGINE: &str = r#"#!/bin/bash
printf '%s\n' "$*" >> "ROOT/asked"
case $1 in ps) echo 0123abcd; exit;; rm) exit;; esac
entry=(sh -c 'echo "entry point: $*"' sh); kept=(PATH="$PATH"); folder=.
exec=$1; shift
while case $1 in --pwd) folder=$2; shift;; -*) ;; *) false;; esac; do
  case $1 in
    --env=*) kept+=("${1#--env=}=$(printenv "${1#--env=}")");;
    --workdir=*) folder=${1#--workdir=};;
    --entrypoint=*) entry=("${1#--entrypoint=}");;
  esac
  shift
done
echo "image: $1"; shift
[ "$exec" = exec ] && entry=()
cd "$folder" || exit 3
[ "ENGINE" = apptainer ] && exec "${entry[@]}" "$@"
exec env -i "${kept[@]}" "${entry[@]}" "$@"
"#;

fn write_engine(folder: &Path, name: &str) {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).unwrap();
    let text = ENGINE
        .replace("ROOT", &folder.display().to_string())
        .replace("ENGINE", name);
    fs::write(bin.join(name), text).unwrap();
    fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    // What engines need, and no engine of this machine.
    for program in ["bash", "sh", "env", "printenv", "sleep", "cat"] {
        let _ = std::os::unix::fs::symlink(Path::new("/usr/bin").join(program), bin.join(program));
    }
}

impl Service {
    fn submit(&self, name: &str, words: &[&str]) {
        let start = ["submit", "training", name, "--config", "config.yaml"];
        let mut command = self.command();
        command
            .args(start)
            .args(words)
            .env("PATH", self.folder.join("bin"));
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn an_image_runs_by_the_engine_that_is_there() {
    for engine in ["docker", "podman", "apptainer"] {
        let service = Service::new(engine);
        write_engine(&service.folder, engine);
        let config = "trainingInput: {masterConfig: {imageUri: registry/image}}\nphalanx: {env: {MINE: its own}}\n";
        fs::write(service.folder.join("config.yaml"), config).unwrap();
        service.submit("entry", &["--", "--epochs", "a b"]);
        assert_eq!(
            service.end("entry")["state"],
            "SUCCEEDED",
            "{}",
            service.ok(&["logs", "entry"])
        );
        let logs = service.ok(&["logs", "entry"]);
        assert!(
            logs.contains("entry point: --epochs a b --job-dir runs/entry"),
            "{logs}"
        );
        let scheme = if engine == "apptainer" {
            "docker://"
        } else {
            ""
        };
        assert!(
            logs.contains(&format!("image: {scheme}registry/image")),
            "{logs}"
        );
        let script = "echo $MINE at $PWD; echo \"$TF_CONFIG\"; cat $PHALANX_SECRET_FILE | wc -c";
        let config = format!(
            "trainingInput: {{masterConfig: {{imageUri: registry/image, containerCommand: [sh, -c], containerArgs: ['{script}']}}}}\nphalanx: {{env: {{MINE: its own}}}}\n"
        );
        fs::write(
            service.folder.join("config.yaml"),
            config.replace(" | wc -c", ""),
        )
        .unwrap();
        service.submit("command", &[]);
        assert_eq!(
            service.end("command")["state"],
            "SUCCEEDED",
            "{}",
            service.ok(&["logs", "command"])
        );
        let logs = service.ok(&["logs", "command"]);
        let folder = service.folder.display();
        assert!(
            logs.contains(&format!("its own at {folder}")) && logs.contains("\"task\":{"),
            "{logs}"
        );
        let secret = fs::read_to_string(service.root().join("jobs/command/secret")).unwrap();
        assert!(logs.contains(&secret), "the file of the secret is there");
        let asked = fs::read_to_string(service.folder.join("asked")).unwrap();
        assert!(
            !asked.contains(&secret) && !asked.contains("--env=PATH"),
            "{asked}"
        );
    }
}

#[test]
fn results_and_packages_elsewhere_are_in_the_container() {
    let service = Service::new("container-elsewhere");
    write_engine(&service.folder, "docker");
    let (inner, package) = (service.folder.join("inner"), service.folder.join("code"));
    for folder in [&inner, &package] {
        fs::create_dir(folder).unwrap();
    }
    let config = "trainingInput: {masterConfig: {imageUri: i}}\n";
    fs::write(inner.join("config.yaml"), config).unwrap();
    let mut command = service.command();
    command.args("submit training demo --config config.yaml --job-dir ../out".split(' '));
    command.args(["--package-path", "../code"]);
    let path = service.folder.join("bin");
    let output = command.env("PATH", path).current_dir(&inner).output();
    let error = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
    let job = service.end("demo");
    assert_eq!(job["state"], "SUCCEEDED", "{error}{job:#}");
    let asked = fs::read_to_string(service.folder.join("asked")).unwrap();
    let out = service.folder.join("out");
    let copy = job["trainingInput"]["packageUris"][0].as_str().unwrap();
    for folder in [&*inner.to_string_lossy(), &*out.to_string_lossy(), copy] {
        let volume = format!("--volume={folder}:{folder} ");
        assert!(asked.contains(&volume), "{volume}: {asked}");
    }
    // Before the engine makes it as its own user.
    assert!(out.is_dir());
}

#[test]
fn a_container_whose_client_is_killed_is_removed() {
    let service = Service::new("killed-container");
    write_engine(&service.folder, "docker");
    let config = "trainingInput: {masterConfig: {imageUri: i, containerCommand: [sh, -c], containerArgs: ['trap \"\" TERM; echo up; while :; do sleep 0.1; done']}}\n";
    fs::write(service.folder.join("config.yaml"), config).unwrap();
    service.submit("demo", &[]);
    service.until("demo", |_| service.ok(&["logs", "demo"]).contains("up"));
    service.ok(&["cancel", "demo"]);
    service.ok(&["cancel", "demo"]);
    assert_eq!(service.end("demo")["state"], "CANCELLED");
    let asked = fs::read_to_string(service.folder.join("asked")).unwrap();
    assert!(asked.trim_end().ends_with("rm --force 0123abcd"), "{asked}");
}

#[test]
fn a_container_that_was_killed_is_tried_again() {
    let service = Service::new("lost-container");
    write_engine(&service.folder, "docker");
    // As `docker run` ends when there was no memory for the container.
    let config = "trainingInput: {masterConfig: {imageUri: i, containerCommand: [sh, -c], containerArgs: ['[ -e again ] || { echo > again; exit 137; }']}}\nphalanx: {restarts: 1}\n";
    fs::write(service.folder.join("config.yaml"), config).unwrap();
    service.submit("demo", &[]);
    let job = service.end("demo");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    assert_eq!(job["phalanx"]["attempt"], 2, "{job:#}");
}

/// Its program would find nothing in a new one.
#[test]
fn a_job_whose_folder_is_gone_does_not_run_in_an_empty_one() {
    gone_folder("gone-folder", "");
    // Of a search, whose trials have folders of their own in it.
    gone_folder(
        "gone-folder-of-trials",
        "  jobDir: out\n  hyperparameters: {goal: MINIMIZE, maxTrials: 1, params: [{parameterName: a, type: INTEGER, minValue: 1, maxValue: 2}]}\n",
    );
}

fn gone_folder(name: &str, more: &str) {
    let service = Service::new(name);
    write_engine(&service.folder, "docker");
    let inner = service.folder.join("inner");
    fs::create_dir(&inner).unwrap();
    let args = format!("cd /; mv {0} {0}-gone; exit 137", inner.display());
    let config = format!(
        "trainingInput:\n  masterConfig: {{imageUri: i, containerCommand: [sh, -c], containerArgs: ['{args}']}}\n{more}phalanx: {{restarts: 1}}\n"
    );
    fs::write(inner.join("config.yaml"), config).unwrap();
    let mut command = service.command();
    command.args("submit training demo --config config.yaml".split(' '));
    let command = command.env(
        "PATH",
        format!("{}:/usr/bin", service.folder.join("bin").display()),
    );
    let output = command.current_dir(&inner).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let job = service.end("demo");
    let expected = "in which the job was submitted, is gone";
    assert!(job.to_string().contains(expected), "{error}{job:#}");
    assert!(!inner.exists());
}

#[test]
fn without_an_engine_the_job_says_what_is_missing() {
    let service = Service::new("no-engine");
    write_engine(&service.folder, "another");
    fs::write(
        service.folder.join("config.yaml"),
        "trainingInput: {masterConfig: {imageUri: i}}\n",
    )
    .unwrap();
    service.submit("demo", &[]);
    let job = service.end("demo");
    let error = job["errorMessage"].as_str().unwrap();
    assert!(
        error.contains("needs docker, podman or apptainer, and none is in PATH"),
        "{error}"
    );
}

#[test]
fn a_container_has_the_gpus_of_its_task() {
    for (engine, options) in [
        ("docker", "--gpus=\"device=GPU-3,GPU-5\""),
        (
            "podman",
            "--device=nvidia.com/gpu=GPU-3 --device=nvidia.com/gpu=GPU-5",
        ),
        ("apptainer", "--nv"),
    ] {
        let service = Service::new("container-gpus").with_gpus("GPU-3,GPU-5,GPU-7");
        write_engine(&service.folder, engine);
        let config = "trainingInput: {masterConfig: {imageUri: i, containerCommand: [sh, -c], containerArgs: ['echo sees [$CUDA_VISIBLE_DEVICES]']}}\nphalanx: {gpus: 2}\n";
        fs::write(service.folder.join("config.yaml"), config).unwrap();
        service.submit("demo", &[]);
        let job = service.end("demo");
        assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
        let asked = fs::read_to_string(service.folder.join("asked")).unwrap();
        assert!(asked.contains(options), "{asked}");
        // In a container that has some of them they have other numbers.
        let seen = if engine == "apptainer" {
            "[GPU-3,GPU-5]"
        } else {
            "[]"
        };
        let logs = service.ok(&["logs", "demo"]);
        assert!(logs.contains(&format!("sees {seen}")), "{engine}: {logs}");
        assert!(!asked.contains("--env=CUDA"), "{asked}");
    }
}
