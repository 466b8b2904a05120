//! Checkpoints and data in buckets, against servers that `cargo xtask check cloud` starts and names in the environment.
//!
//! PHALANX_TEST_STORES has the URLs of the buckets; without it each test says so and ends.
#![cfg(all(unix, feature = "cloud"))]

#[path = "cloud/data.rs"]
mod data;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use phalanx::checkpoint::TrainingState;
use phalanx_store::{Bucket, Limits, ObjectUrl};
use phalanx_testkit::{Answer, Gate, bucket_urls};

/// The last object of a save.
const LAST: &str = "checkpoint.json";

/// A folder with data, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let process = std::process::id();
        let path = std::env::temp_dir().join(format!("phalanx-cloud-{process}-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        let row = |i: u32| {
            let (x, y) = ((i * 7) % 13, (i * 5) % 11);
            format!("{x},{y},{}\n", u8::from(x > y))
        };
        fs::write(path.join("a.csv"), (0..40).map(row).collect::<String>()).unwrap();
        Self(path)
    }

    /// The file of a training, whose checkpoints go to a URL if one is given.
    fn describe(&self, name: &str, more: &str) {
        let text = format!(
            "data: {{csv: a.csv, divide_by: 10}}\n\
             model: [{{dense: {{units: 8, activation: tanh}}}}, {{dropout: {{rate: 0.2}}}}, {{dense: {{units: 2, activation: softmax}}}}]\n\
             optimizer: {{adam: {{learning_rate: 0.05}}}}\nloss: sparse_categorical_crossentropy\n\
             fit: {{epochs: 4, batch_size: 8, save_freq: epoch}}\noutput: {name}\n{more}\n"
        );
        fs::write(self.0.join(format!("{name}.yaml")), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.args(arguments).current_dir(&self.0);
        command.stdin(Stdio::null());
        command
    }

    /// What the command prints when it ends with this code.
    fn run(&self, arguments: &[&str], code: i32) -> String {
        told(&self.command(arguments).output().unwrap(), code)
    }

    fn model(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.join(name).join("model/weights.safetensors")).unwrap()
    }

    /// A state after a training of some epochs.
    fn state(&self, epochs: usize) -> TrainingState {
        let name = format!("of{epochs}");
        self.describe(&name, "");
        let (file, epochs) = (format!("{name}.yaml"), epochs.to_string());
        self.run(&["train", &file, "--epochs", &epochs], 0);
        TrainingState::load(self.0.join(name).join("checkpoint")).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn told(output: &Output, code: i32) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

fn bucket(url: &str) -> (ObjectUrl, Bucket) {
    let url = ObjectUrl::parse(url).unwrap();
    let bucket = Bucket::open(&url, Limits::default()).unwrap();
    (url, bucket)
}

/// The names of the objects under a URL that end so.
fn names(url: &str, end: &str) -> Vec<String> {
    let (url, bucket) = bucket(url);
    let objects = bucket.list(&url).unwrap().into_iter();
    let names = objects.map(|object| object.name);
    names.filter(|name| name.ends_with(end)).collect()
}

fn flip_a_byte(url: &str, name: &str) {
    let (url, bucket) = bucket(url);
    let url = url.join(name);
    let mut bytes = bucket.read(&url, 0, 1 << 30).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    bucket.put(&url, bytes).unwrap();
}

#[test]
fn a_state_comes_back_with_equal_bits_and_damage_is_found() {
    let folder = Folder::new("bits");
    let states = [1, 2, 3].map(|epochs| folder.state(epochs));
    for url in bucket_urls("bits/checkpoint") {
        assert!(!TrainingState::is_at(&url).unwrap());
        states[0].save(&url).unwrap();
        assert_eq!(TrainingState::load(&url).unwrap(), states[0]);
        states[1].save(&url).unwrap();
        assert_eq!(TrainingState::load(&url).unwrap(), states[1]);
        // `save` keeps one.
        assert_eq!(names(&url, LAST).len(), 1);
        for name in names(&url, "") {
            states[2].save(&url).unwrap();
            let newest = names(&url, LAST).pop().unwrap();
            let file = name.split_once('/').unwrap().1;
            let damaged = newest.replace(LAST, file);
            flip_a_byte(&url, &damaged);
            let error = TrainingState::load(&url).unwrap_err().to_string();
            assert!(error.contains(&format!("{url}/{damaged}")), "{error}");
            let told = folder.run(&["ckpt", "verify", &url], 1);
            assert!(told.contains("1 of 1 checkpoint damaged"), "{told}");
        }
        TrainingState::remove(&url).unwrap();
        assert!(names(&url, "").is_empty() && !TrainingState::is_at(&url).unwrap());
    }
}

#[test]
fn a_training_that_goes_on_from_a_bucket_ends_with_the_bits_of_an_unbroken_one() {
    let folder = Folder::new("resume");
    folder.describe("unbroken", "");
    folder.run(&["train", "unbroken.yaml"], 0);
    for (number, url) in bucket_urls("resume/checkpoint").into_iter().enumerate() {
        let name = format!("broken{number}");
        let file = format!("{name}.yaml");
        folder.describe(&name, &format!("checkpoint: {url}"));
        let told = folder.run(&["train", &file, "--resume", "--epochs", "2"], 0);
        assert!(
            told.contains(&format!("no checkpoint at {url} yet")),
            "{told}"
        );
        assert_ne!(folder.model(&name), folder.model("unbroken"));
        let told = folder.run(&["train", &file], 2);
        assert!(told.contains("go on with it with --resume"), "{told}");
        let told = folder.run(&["train", &file, "--resume"], 0);
        assert!(
            told.contains(&format!("training goes on from {url}, after step 10")),
            "{told}"
        );
        assert_eq!(folder.model(&name), folder.model("unbroken"));
        assert!(!folder.0.join(&name).join("checkpoint").exists());
    }
}

#[test]
fn older_ones_are_kept_listed_pruned_and_taken_where_the_newest_is_damaged() {
    let folder = Folder::new("keep");
    for (number, url) in bucket_urls("keep/checkpoint").into_iter().enumerate() {
        let name = format!("kept{number}");
        let callback = format!(
            "callbacks: [{{backup_and_restore: {{backup_dir: \"{url}\", keep: 3, delete_checkpoint: false}}}}]"
        );
        folder.describe(&name, &callback);
        folder.run(&["train", &format!("{name}.yaml")], 0);
        let told = folder.run(&["ckpt", "ls", &url], 0);
        let steps: Vec<bool> = ["step 20,", "step 15,", "step 10,", "step 5,"]
            .map(|step| told.contains(step))
            .into();
        assert_eq!(steps, [true, true, true, false], "{told}");
        // One without its last object, one that is damaged: the third is taken, and both are spoken of.
        let saves = names(&url, LAST);
        assert_eq!(saves.len(), 3);
        let (of_url, bucket) = bucket(&url);
        bucket.remove(&of_url.join(&saves[2])).unwrap();
        flip_a_byte(&url, &saves[1].replace(LAST, "weights.safetensors"));
        let (state, left_out) = TrainingState::load_newest(&url).unwrap();
        assert_eq!(
            (state.iterations(), left_out.len()),
            (10, 3),
            "{left_out:?}"
        );
        assert!(
            left_out[0].contains("has no `checkpoint.json`"),
            "{left_out:?}"
        );
        assert!(
            left_out[1].contains(&format!(
                "{}: ",
                saves[1].replace(LAST, "weights.safetensors")
            )),
            "{left_out:?}"
        );
        assert!(
            left_out[2].contains("after step 10, is taken instead"),
            "{left_out:?}"
        );
        let told = folder.run(&["ckpt", "export", &url, "w.safetensors"], 0);
        assert!(told.contains("the variables after step 10"), "{told}");
        // What is damaged does not count, so that the whole one stays until it is whole again.
        let told = folder.run(&["ckpt", "prune", &url, "--keep", "1"], 0);
        assert!(told.contains("it stays"), "{told}");
        assert_eq!(names(&url, LAST), saves[..2]);
        flip_a_byte(&url, &saves[1].replace(LAST, "weights.safetensors"));
        let told = folder.run(&["ckpt", "prune", &url, "--keep", "1"], 0);
        assert!(told.contains("removed"), "{told}");
        assert_eq!(names(&url, LAST), [saves[1].clone()]);
        let local = folder.0.join(&name).join("checkpoint");
        let local = local.to_str().unwrap();
        let told = folder.run(&["ckpt", "diff", local, local], 0);
        assert!(told.contains("equal"), "{told}");
    }
}

#[test]
fn two_that_save_at_once_leave_one_of_their_states_whole() {
    let folder = Folder::new("two");
    let states = [1, 2].map(|epochs| folder.state(epochs));
    for url in bucket_urls("two/checkpoint") {
        states[0].save(&url).unwrap();
        thread::scope(|scope| {
            for state in &states {
                let url = &url;
                scope.spawn(move || (0..5).for_each(|_| state.save(url).unwrap()));
            }
            for _ in 0..5 {
                let read = TrainingState::load(&url).unwrap();
                assert!(states.contains(&read));
            }
        });
        assert!(states.contains(&TrainingState::load(&url).unwrap()));
        assert_eq!(names(&url, LAST).len(), 1);
    }
}

/// The variable that says where the server of a bucket is, and where that is.
fn server(url: &str) -> (&'static str, String) {
    let name = match url.starts_with("s3") {
        true => "AWS_ENDPOINT_URL",
        false => "STORAGE_EMULATOR_HOST",
    };
    (name, std::env::var(name).unwrap())
}

#[test]
fn a_save_that_breaks_before_its_last_object_is_not_seen() {
    let folder = Folder::new("breaks");
    for (number, url) in bucket_urls("breaks/checkpoint").into_iter().enumerate() {
        let (variable, address) = server(&url);
        let gate = Gate::before(&address, |request| {
            match request.contains(LAST) && request.starts_with("PUT") {
                true => Answer::Close,
                false => Answer::Pass,
            }
        });
        let name = format!("broken{number}");
        folder.describe(&name, &format!("checkpoint: {url}"));
        let mut command = folder.command(&["train", &format!("{name}.yaml")]);
        command
            .env(variable, &gate.address)
            .env("PHALANX_STORE_RETRY", "1");
        let told = told(&command.output().unwrap(), 1);
        assert!(told.contains(&format!("cannot write {url}/")), "{told}");
        assert!(told.contains("cannot be reached"), "{told}");
        let puts = gate.requests("PUT");
        let last = puts.iter().position(|put| put.contains(LAST)).unwrap();
        assert!(
            last >= 3 && puts[last..].iter().all(|put| put.contains(LAST)),
            "{puts:?}"
        );
        assert!(!TrainingState::is_at(&url).unwrap());
        assert!(!names(&url, "weights.safetensors").is_empty());
        // The next one begins anew, and its checkpoint is the one that is there.
        let told = folder.run(&["train", &format!("{name}.yaml"), "--resume"], 0);
        assert!(told.contains("no checkpoint at"), "{told}");
        assert_eq!(TrainingState::load(&url).unwrap().iterations(), 20);
    }
}

#[test]
fn a_removal_whose_connection_breaks_is_tried_again() {
    let folder = Folder::new("removal");
    for (number, url) in bucket_urls("removal/checkpoint").into_iter().enumerate() {
        let (variable, address) = server(&url);
        let gate = Gate::before(&address, {
            let count = std::sync::atomic::AtomicUsize::new(0);
            move |request| {
                let is_removal = request.starts_with("DELETE") || request.starts_with("POST");
                match is_removal && count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
                    true => Answer::Close,
                    false => Answer::Pass,
                }
            }
        });
        let name = format!("removal{number}");
        folder.describe(&name, &format!("checkpoint: {url}"));
        let mut command = folder.command(&["train", &format!("{name}.yaml")]);
        told(&command.env(variable, &gate.address).output().unwrap(), 0);
        assert_eq!(gate.requests("POST"), [""; 0]);
        let removals = gate.requests("DELETE");
        assert!(
            removals.len() > 3 && removals[0] == removals[1],
            "{removals:?}"
        );
    }
}

#[test]
fn older_ones_that_cannot_be_removed_fail_no_save() {
    let folder = Folder::new("left");
    for (number, url) in bucket_urls("left/checkpoint").into_iter().enumerate() {
        let (variable, address) = server(&url);
        let gate = Gate::before(&address, |request| {
            match request.contains(LAST) && request.starts_with("DELETE") {
                true => Answer::Busy,
                false => Answer::Pass,
            }
        });
        let name = format!("left{number}");
        folder.describe(&name, &format!("checkpoint: {url}"));
        let file = format!("{name}.yaml");
        let mut command = folder.command(&["train", &file, "--epochs", "2"]);
        command
            .env(variable, &gate.address)
            .env("PHALANX_STORE_RETRY", "1");
        let told = told_of(&mut command, 0);
        assert!(
            told.contains("could not be removed: cannot remove"),
            "{told}"
        );
        assert!(names(&url, LAST).len() > 2);
        // The next save does, but for the one that is kept.
        folder.run(&["train", &file, "--resume", "--epochs", "3"], 0);
        assert_eq!(names(&url, LAST).len(), 2);
    }
}

#[test]
fn a_url_of_one_save_ends_a_training_before_its_first_step() {
    let folder = Folder::new("one");
    let state = folder.state(1);
    for (number, url) in bucket_urls("one/checkpoint").into_iter().enumerate() {
        state.save(&url).unwrap();
        let save = names(&url, LAST)[0].replace(&format!("/{LAST}"), "");
        let name = format!("one{number}");
        folder.describe(&name, &format!("checkpoint: {url}/{save}"));
        let (variable, address) = server(&url);
        let gate = Gate::before(&address, |_| Answer::Pass);
        let mut command = folder.command(&["train", &format!("{name}.yaml"), "--resume"]);
        let told = told_of(command.env(variable, &gate.address), 2);
        assert!(told.contains("is a single checkpoint of several"), "{told}");
        assert!(gate.requests("PUT").is_empty());
    }
}

#[test]
fn a_try_that_takes_longer_than_tries_go_on_is_made_again() {
    let folder = Folder::new("long");
    let state = folder.state(1);
    for url in bucket_urls("long/checkpoint") {
        state.save(&url).unwrap();
        let (variable, address) = server(&url);
        let gate = Gate::before(&address, {
            let count = std::sync::atomic::AtomicUsize::new(0);
            move |_| match count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                0 => {
                    thread::sleep(std::time::Duration::from_millis(1200));
                    Answer::Close
                }
                _ => Answer::Pass,
            }
        });
        let mut command = folder.command(&["ckpt", "verify", &url]);
        command
            .env(variable, &gate.address)
            .env("PHALANX_STORE_RETRY", "1");
        assert!(told_of(&mut command, 0).contains("step 5,"));
    }
}

#[test]
fn a_busy_server_is_asked_again() {
    let folder = Folder::new("busy");
    let state = folder.state(1);
    for url in bucket_urls("busy/checkpoint") {
        state.save(&url).unwrap();
        let (variable, address) = server(&url);
        let gate = Gate::before(&address, {
            let count = std::sync::atomic::AtomicUsize::new(0);
            move |_| match count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2 {
                0 => Answer::Busy,
                _ => Answer::Pass,
            }
        });
        let mut command = folder.command(&["ckpt", "verify", &url]);
        let told = told(&command.env(variable, &gate.address).output().unwrap(), 0);
        assert!(told.contains("step 5,"), "{told}");
        assert!(gate.requests("GET").len() >= 6);
    }
}

#[test]
fn what_is_wrong_is_said_without_secrets() {
    let folder = Folder::new("wrong");
    let secret = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY";
    for url in bucket_urls("wrong/checkpoint") {
        let key = url.split_once("phalanx-test").unwrap().1;
        let elsewhere = format!("{}no-such-bucket{key}", &url[..5]);
        let mut command = folder.command(&["ckpt", "ls", &elsewhere]);
        let told = told_of(command.env("PHALANX_STORE_RETRY", "1"), 1);
        // The stand-in for Google's server answers 500 where that answers 404.
        let expected = match url.starts_with("s3") {
            true => "there is no bucket `no-such-bucket`",
            false => "no bucket named no-such-bucket",
        };
        assert!(told.contains(expected), "{told}");
        let told = folder.run(&["ckpt", "ls", &url], 2);
        assert!(told.contains("there is no checkpoint at"), "{told}");
        let (variable, _) = server(&url);
        let mut command = folder.command(&["ckpt", "ls", &url]);
        // Nobody listens on port 1.
        command
            .env(variable, "http://127.0.0.1:1")
            .env("PHALANX_STORE_RETRY", "1");
        let unreachable = told_of(&mut command, 1);
        assert!(unreachable.contains("cannot be reached"), "{unreachable}");
        let told = folder.run(&["ckpt", "ls", &format!("{}{secret}@x/y", &url[..5])], 2);
        assert!(
            told.contains("credentials") && !told.contains(secret),
            "{told}"
        );
        if variable == "AWS_ENDPOINT_URL" {
            for (name, value) in [
                ("AWS_SECRET_ACCESS_KEY", secret),
                ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE"),
            ] {
                let mut command = folder.command(&["ckpt", "ls", &url]);
                let told = told_of(command.env(name, value), 1);
                assert!(told.contains("the credentials are wrong"), "{told}");
                assert!(!told.contains(secret) && !told.contains("AKIA"), "{told}");
            }
        }
    }
}

fn told_of(command: &mut Command, code: i32) -> String {
    told(&command.output().unwrap(), code)
}

#[test]
fn no_credentials_and_what_else_is_no_bucket() {
    if bucket_urls("none/checkpoint").is_empty() {
        return;
    }
    let folder = Folder::new("none");
    let home = Path::new("/nonexistent");
    for (url, variables) in [
        (
            "s3://bucket/x",
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
        ("gs://bucket/x", "GOOGLE_APPLICATION_CREDENTIALS"),
    ] {
        let mut command = folder.command(&["ckpt", "ls", url]);
        for name in [
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "STORAGE_EMULATOR_HOST",
        ] {
            command.env_remove(name);
        }
        command.env("PHALANX_STORE_RETRY", "1");
        let told = told_of(command.env("HOME", home), 1);
        assert!(
            told.contains("there are no credentials") && told.contains(variables),
            "{told}"
        );
    }
    folder.describe("url", "");
    let told = folder.run(&["train", "url.yaml", "--output", "s3://bucket/x"], 2);
    assert!(told.contains("expected is a folder"), "{told}");
    let told = folder.run(&["ckpt", "ls", "hdfs://bucket/x"], 2);
    assert!(told.contains("expected a folder, s3:// or gs://"), "{told}");
    assert!(!folder.0.join("s3:").exists() && !folder.0.join("hdfs:").exists());
}
